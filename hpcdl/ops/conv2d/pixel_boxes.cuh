#pragma once
// Boxes of pixels for the copy engine: w x h pixels of n images, some of which may be outside. All three sizes are
// powers of two.

#include "hpcdl/ops/conv2d/implicit_gemm_tiles.cuh"

namespace hpcdl::cuda {

struct PixelBoxes {
  int w = 1, h = 1, n = 1;
  int across = 0, down = 0, count = 0;  // boxes side by side and below each other in an image; in total
};

/// The first pixel of box number i.
struct PixelBox {
  int w, h, n;
  HPCDL_HOST_DEVICE static PixelBox of(const PixelBoxes& p, int i) {
    const int per_image = p.across * p.down, image = i / per_image, rest = i - image * per_image, row = rest / p.across;
    return {(rest - row * p.across) * p.w, row * p.h, image * p.n};
  }
};

inline std::int64_t whole_units(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// These boxes over `rows` x `cols` pixels of n images.
inline PixelBoxes boxes_over(PixelBoxes b, std::int64_t rows, std::int64_t cols, std::int64_t n) {
  b.across = tiles_of(cols, b.w), b.down = tiles_of(rows, b.h);
  b.count = b.across * b.down * tiles_of(n, b.n);
  return b;
}

/// Boxes of `pixels` pixels, `stride` apart in memory, that waste the fewest pixels; of equal ones the widest.
inline PixelBoxes boxes_of(std::int64_t rows, std::int64_t cols, std::int64_t images, int pixels, std::int64_t stride) {
  PixelBoxes best;
  for (int w = pixels; w >= 1; w /= 2)
    for (int h = pixels / w; h >= 1; h /= 2) {
      if (w * stride > 256 || h * stride > 256) continue;
      const PixelBoxes b = boxes_over({.w = w, .h = h, .n = pixels / w / h}, rows, cols, images);
      if (best.count == 0 || b.count < best.count) best = b;
    }
  return best;
}

}  // namespace hpcdl::cuda
