#pragma once
// Rows of images copied into working memory with the surrounding zeros, as words of products (ops/matmul/kernel_set.h):
// tiles then need no special handling of edges, and read from L2.

#include <cstring>

#include "hpcdl/ops/conv2d/axis.h"
#include "hpcdl/ops/matmul/kernel_set.h"

namespace hpcdl::conv {
namespace {

/// Images (N, rows.size, cols.size, channels) and what output pixels read of them.
struct Images {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t n = 0, channels = 0;
  Axis rows, cols;

  std::int64_t lines() const { return n * rows.outputs; }                   // lines of output pixels, over all images
  std::int64_t width() const { return most(1, cols.reach(cols.outputs)); }  // width of a padded row, in pixels
  /// The number of padded rows that `count` lines may need, wherever they begin.
  std::int64_t padded_rows(std::int64_t count) const {
    const std::int64_t images = least(count, count / rows.outputs + 2);
    return most(1, count * rows.step + images * rows.reach(1));
  }
};

/// f(image, first row of outputs, their number, padded rows before them) for the lines [begin, end), image by image.
template <class F> void for_images(const Images& x, std::int64_t begin, std::int64_t end, F&& f) {
  for (std::int64_t at = begin, padded = 0; at < end;) {
    const std::int64_t image = at / x.rows.outputs, row = at % x.rows.outputs,
                       count = least(end - at, x.rows.outputs - row);
    f(image, row, count, padded);
    padded += x.rows.reach(count);
    at += count;
  }
}

/// The inputs of output rows [row, row + count) of an image: f(padded row, input row or null, leading zeros, pixels in
/// it).
template <class F>
void for_padded_rows(const Images& x, std::int64_t image, std::int64_t row, std::int64_t count, F&& f) {
  const std::int64_t top = row * x.rows.step + x.rows.first, reach = x.rows.reach(count), width = x.width();
  const std::int64_t front = least(width, most(0, -x.cols.first)),
                     end = most(front, least(width, x.cols.size - x.cols.first));
  for (std::int64_t t = 0; t < reach; ++t) {
    const std::int64_t at = top + t;
    if (at < 0 || at >= x.rows.size) f(t, static_cast<const std::byte*>(nullptr), width, std::int64_t{0});
    else
      f(t,
        x.data + ((image * x.rows.size + at) * x.cols.size + x.cols.first + front) * x.channels * dtype_bytes(x.dtype),
        front, end - front);
  }
}

/// Pads the inputs of lines [begin, end) into dst: (padded rows, width, words of a pixel). Writes up to one vector past
/// the end.
void pad(const gemm::KernelSet& set, const Images& x, std::int64_t begin, std::int64_t end, std::uint32_t* dst) {
  const std::int64_t words = ceil_div(x.channels, set.group), width = x.width();
  for_images(x, begin, end, [&](std::int64_t image, std::int64_t row, std::int64_t count, std::int64_t padded) {
    for_padded_rows(
        x, image, row, count, [&](std::int64_t t, const std::byte* src, std::int64_t front, std::int64_t pixels) {
          std::uint32_t* to = dst + (padded + t) * width * words;
          std::memset(to, 0, static_cast<std::size_t>(front * words) * 4);
          if (pixels > 0 && x.channels % set.group == 0)
            set.to_words(to + front * words, src, x.dtype, pixels * x.channels);
          else
            for (std::int64_t p = 0; p < pixels; ++p)
              set.to_words(to + (front + p) * words, src + p * x.channels * dtype_bytes(x.dtype), x.dtype, x.channels);
          std::memset(to + (front + pixels) * words, 0, static_cast<std::size_t>((width - front - pixels) * words) * 4);
        });
  });
}

}  // namespace
}  // namespace hpcdl::conv
