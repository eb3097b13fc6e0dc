#pragma once
// Blocks of GGUF files as numbers, with the bits that gguf-py computes: every product and sum is rounded to f32.

#include <cstddef>
#include <cstdint>

#include "hpcdl/io/gguf/types.h"

namespace hpcdl::io {

/// `blocks` need not be aligned. Writes the elements of `count` blocks.
void decode_blocks(GgufType type, const std::byte* blocks, std::int64_t count, float* out);

}  // namespace hpcdl::io
