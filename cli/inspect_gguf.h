#pragma once

#include <filesystem>

namespace hpcdl::cli {

struct GgufView {
  bool json = false, check = false;
};

/// hpcdl inspect for a GGUF file: its tensors and metadata. Reads data only with `check`, which throws Error at the first
/// tensor with NaN or infinity.
int inspect_gguf(const std::filesystem::path& path, const GgufView& view);

}  // namespace hpcdl::cli
