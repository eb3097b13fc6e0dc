// Any bytes give metadata, or a tensor inside them, or an Error.

#include <cstdint>
#include <stdexcept>

#include "hpcdl/core/error.h"
#include "hpcdl/io/dcp/metadata.h"
#include "hpcdl/io/dcp/torch_tensor.h"
#include "hpcdl/io/pickle.h"

namespace {

using namespace hpcdl;

void read_metadata(std::string_view bytes) {
  for (const auto& t : io::dcp::parse_metadata(bytes, "fuzz").tensors)
    for (const auto& c : t.chunks)
      if (c.offset < 0 || c.bytes < 0 || c.file.find('/') != std::string::npos)
        throw std::logic_error("a chunk outside of the folder");
}

void read_tensor(std::string_view bytes) {
  const View v = io::dcp::read_torch_tensor(bytes, "fuzz");
  std::int64_t last = 0;
  for (int d = 0; d < v.rank(); ++d) last += (v[d] - 1) * v.strides()[d];
  const auto* begin = static_cast<const char*>(v.data());
  if (v.size() > 0 &&
      (begin < bytes.data() || begin + (last + 1) * dtype_bytes(v.dtype()) > bytes.data() + bytes.size()))
    throw std::logic_error("a tensor outside of its archive");
}

}  // namespace

/// The first byte says what the others are taken for.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 3 == 0) io::pickle::read(bytes, "fuzz", {});
    else if (data[0] % 3 == 1) read_metadata(bytes);
    else read_tensor(bytes);
  } catch (const Error&) {}
  return 0;
}
