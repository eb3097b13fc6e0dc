#include "hpcdl/core/copy_elements.h"

#include <algorithm>
#include <cstring>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"

namespace hpcdl {
namespace {

/// Copies the two innermost dims in tiles, so that a transpose reads and writes whole cache lines.
template <class T>
void copy_plane(T* dst, const T* src, std::int64_t rows, std::int64_t cols, const Shape& ds, const Shape& ss) {
  constexpr std::int64_t kTile = 32;
  const std::int64_t dr = ds.rank() > 1 ? ds[-2] : 0, sr = ss.rank() > 1 ? ss[-2] : 0, dc = ds[-1], sc = ss[-1];
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile)
    for (std::int64_t c0 = 0; c0 < cols; c0 += kTile)
      for (std::int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
        for (std::int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          std::memcpy(dst + r * dr + c * dc, src + r * sr + c * sc, sizeof(T));  // memcpy: either may be unaligned
}

template <class T> void copy_dims(T* dst, const T* src, const Shape& shape, const Shape& ds, const Shape& ss, int dim) {
  if (dim >= shape.rank() - 2) {
    copy_plane(dst, src, shape.rank() > 1 ? shape[-2] : 1, shape[-1], ds, ss);
    return;
  }
  for (std::int64_t i = 0; i < shape[dim]; ++i) copy_dims(dst + i * ds[dim], src + i * ss[dim], shape, ds, ss, dim + 1);
}

}  // namespace

void copy_elements(Tensor dst, View src) {
  require(dst.spec() == src.spec(), "copy", "expected {}, found {}", to_string(dst.spec()), to_string(src.spec()));
  if (src.size() == 0) return;
  if (src.rank() == 0 || (src.is_contiguous() && dst.is_contiguous())) {
    std::memcpy(dst.data(), src.data(), static_cast<std::size_t>(src.bytes()));
    return;
  }
  const auto run = [&]<class T>(T) {
    copy_dims(dst.ptr<T>(), src.ptr<T>(), src.shape(), dst.strides(), src.strides(), 0);
  };
  switch (dtype_bytes(src.dtype())) {
    case 8: return run(std::uint64_t{});
    case 4: return run(std::uint32_t{});
    case 2: return run(std::uint16_t{});
    default: return run(std::uint8_t{});
  }
}

}  // namespace hpcdl
