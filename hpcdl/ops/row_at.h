#pragma once

#include <cstdint>

#include "hpcdl/tensor.h"

namespace hpcdl {

/// The first element of row `r`, for ops that read a view and write a tensor in the same way.
template <class T> T* row_at(const View& v, std::int64_t r) { return const_cast<T*>(v.ptr<T>()) + r * v.row_stride(); }

}  // namespace hpcdl
