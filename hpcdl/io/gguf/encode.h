#pragma once
// Numbers as blocks of GGUF files. Q8_0 and Q4_0 have the bytes that gguf-py writes.

#include <cstddef>
#include <cstdint>
#include <string>

#include "hpcdl/io/gguf/types.h"

namespace hpcdl::io {

/// Whether encode_blocks() writes the type: F32, F16, BF16, Q8_0, Q4_0, Q4_K and Q6_K.
bool can_encode(GgufType type);
/// "F32, F16, ...": these types.
std::string encoded_gguf_types();

/// Writes `count` blocks. Values are finite; in F16 and in scales, those beyond its range become infinite.
void encode_blocks(GgufType type, const float* values, std::int64_t count, std::byte* blocks);

}  // namespace hpcdl::io
