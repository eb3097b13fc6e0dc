#pragma once

#include <span>

#include "hpcdl/io/checkpoint_files.h"

namespace hpcdl::io {

/// load_checkpoint() of a rank that has some tensors of the model while other ranks have the others: the checkpoint may
/// hold more than these.
void load_checkpoint_share(const fs::path& folder, std::span<const NamedTensor> model,
                           std::span<const NamedTensor> optimizer);

}  // namespace hpcdl::io
