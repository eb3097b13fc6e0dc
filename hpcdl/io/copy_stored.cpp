#include "hpcdl/io/copy_stored.h"

#include <algorithm>

#include "hpcdl/buffer.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {

void for_each_converted(const StoredTensor& from, DType dtype, const std::function<void(const View& chunk)>& f) {
  const DType source = from.whole.dtype;
  require(source == dtype || (is_float(source) && is_float(dtype)), "io",
          "tensor {}: expected floating-point numbers, which {} can hold, found {}", shown(from.name),
          dtype_name(dtype), dtype_name(source));
  const auto most = std::min(from.whole.size(), kChunkElements);
  const Buffer read(most * dtype_bytes(source)), converted(source == dtype ? 0 : most * dtype_bytes(dtype));
  for_each_chunk(from.whole, [&](Interval range) {
    const Tensor chunk(read.data(), {{range.count()}, source});
    read_elements(from, range, chunk);
    if (source == dtype) return f(chunk);
    const Tensor other(converted.data(), {{range.count()}, dtype});
    convert_elements(other, chunk);
    require(count_non_finite(other) == count_non_finite(chunk), "io",
            "tensor {} has numbers that {} cannot represent: choose bf16, which has the range of f32", shown(from.name),
            dtype_name(dtype));
    f(other);
  });
}

std::uint32_t copy_stored(const StoredTensor& from, TensorFolderWriter& to, const std::string& name, DType dtype) {
  std::uint32_t crc = crc32c(std::string_view());
  for_each_converted(from, dtype, [&](const View& chunk) { crc = to.append(name, chunk); });
  return crc;
}

}  // namespace hpcdl::io
