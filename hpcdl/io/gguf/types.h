#pragma once
// The types of tensors in GGUF files. A quantised row is a sequence of blocks; a block holds a fixed number of elements.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hpcdl::io {

/// Values are the numbers in files.
enum class GgufType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
  mxfp4 = 39,
};

struct GgufTypeInfo {
  GgufType type;
  std::string_view name;
  std::int64_t elements;  // of a block
  std::int64_t bytes;     // of a block
  bool quantized() const { return elements > 1; }
};

/// None for a number that is not among the types that can be read.
const GgufTypeInfo* find_gguf_type(std::uint32_t number);
/// By its name, such as "Q4_K"; none if there is no such type.
const GgufTypeInfo* find_gguf_type(std::string_view name);
const GgufTypeInfo& info_of(GgufType type);
/// What a number means: "Q4_K", "IQ2_XS, which is not supported", "no type".
std::string describe_gguf_type(std::uint32_t number);
/// "F32, F16, ...": the types that can be read.
std::string known_gguf_types();

}  // namespace hpcdl::io
