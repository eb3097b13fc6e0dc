#pragma once
// The header of a GGUF file, parsed as untrusted input.
// File, little-endian: "GGUF" | u32 version | u64 tensors | u64 values | values | tensors | padding | data.
// Value: text key | u32 kind | value. Text: u64 bytes | UTF-8. List: u32 kind | u64 count | elements.
// Tensor: text name | u32 dimensions | u64 each, innermost first | u32 type | u64 offset into the data. Data and tensors
// start at multiples of general.alignment (32).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/io/gguf/metadata.h"
#include "hpcdl/io/gguf/types.h"
#include "hpcdl/shape.h"

namespace hpcdl::io {

inline constexpr std::int64_t kGgufAlignment = 32;  // of files that do not say another
inline constexpr int kGgufMaxDims = 4;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  Shape shape = {};         // outermost first, at least one dimension
  std::int64_t offset = 0;  // bytes from the start of the file
  std::int64_t bytes = 0;
};

struct GgufHeader {
  GgufMetadata metadata = GgufMetadata();  // views into the file
  std::vector<GgufTensor> tensors = {};    // in file order
  std::int64_t alignment = kGgufAlignment;
};

/// Parses a whole file image; only the header is touched. `where` names the file in errors. Throws Error for anything
/// that is not a valid file, naming the key or the tensor, what was expected and what was found.
GgufHeader parse_gguf_header(std::span<const std::byte> file, std::string_view where);

}  // namespace hpcdl::io
