#pragma once
// The header of a safetensors file, parsed as untrusted input.
// File: u64 little-endian length N (<= 100 MB) | N bytes of JSON, may end in spaces | data. JSON entry:
// "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, offsets relative to the data; tensors cover
// the data without holes or overlaps. "__metadata__" maps strings to strings.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/tensor.h"

namespace hpcdl::io {

inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

struct TensorInfo {
  std::string name;
  Spec spec;
  std::int64_t offset = 0;  // bytes from the start of the file
};

struct SafeTensorsHeader {
  std::vector<TensorInfo> tensors;  // in file order
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;
};

/// Parses a whole file image; only the header is touched. `where` names the file in errors.
/// Throws Error for anything that is not a valid file, naming the tensor, what was expected and what was found.
SafeTensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view where);

/// The length word and the JSON, padded with spaces so that the data start at a multiple of 64 bytes. Offsets in
/// `tensors` are relative to the data here. Throws Error for names that are not UTF-8 or that appear twice.
std::string make_safetensors_header(const std::vector<TensorInfo>& tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace hpcdl::io
