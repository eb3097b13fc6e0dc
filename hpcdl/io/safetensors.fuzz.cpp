// Any bytes, as a file and as its header, give tensors that lie inside the file or an Error.

#include <cstring>
#include <stdexcept>

#include "hpcdl/core/error.h"
#include "hpcdl/io/safetensors_header.h"

namespace {

void parse(std::span<const std::byte> file) {
  try {
    for (const auto& t : hpcdl::io::parse_safetensors_header(file, "fuzz").tensors)
      if (t.offset < 8 || t.spec.bytes() < 0 || t.offset + t.spec.bytes() > static_cast<std::int64_t>(file.size()))
        throw std::logic_error("a tensor lies outside the file");
  } catch (const hpcdl::Error&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  parse(bytes);
  if (size == 0) return 0;
  // The first byte says how many bytes of tensor data follow the rest, which is taken for the header.
  const std::size_t data_bytes = data[0];
  std::string file(8, '\0');
  const std::uint64_t length = size - 1;
  std::memcpy(file.data(), &length, 8);
  file.append(reinterpret_cast<const char*>(data) + 1, size - 1).append(data_bytes, '\0');
  parse(std::as_bytes(std::span(file)));
  return 0;
}
