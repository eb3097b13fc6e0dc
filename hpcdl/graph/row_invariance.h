#pragma once

#include <string_view>

namespace hpcdl {

/// Whether the kernels of an op on a GPU keep to Numerics::row_invariant. Those of a CPU all do.
bool rows_alone_on_gpu(std::string_view op);

}  // namespace hpcdl
