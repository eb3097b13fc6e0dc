#pragma once
// Addresses of a convolution's terms, seen as a product of matrices that are not stored (implicit GEMM): maps a row and
// a depth of each operand to an offset. Shared by the kernels and by the test that runs it on a host.
//
//   forward  y (pixels of y, O)           = A (pixels of y; taps x I) of x           times B (O; taps x I) of w
//   data     dx (pixels of x of a class, I) = A (these pixels; its taps x O) of dy     times B (I; its taps x O) of w
//   weight   dw (O, taps x I)             = A (O; pixels of y) of dy               times B (taps x I; pixels of y) of x
//
// With a stride, the pixels of x are divided into stride^2 classes by the remainders of their rows and columns: all
// pixels of a class are reached by the same taps, and within a class the gradient is a convolution of stride 1. No
// product with a zero is computed.

#include <numeric>

#include "hpcdl/core/device_macros.h"
#include "hpcdl/ops/conv2d/conv2d.h"

namespace hpcdl::cuda {

/// A row or column outside of every image, even after another such value is added.
inline constexpr int kOutside = -(1 << 29);

/// n / d for 0 <= n < 2^31 by a multiplication: Granlund and Montgomery, "Division by invariant integers using
/// multiplication", 1994.
class Divisor {
 public:
  constexpr Divisor() = default;
  explicit constexpr Divisor(int d) : d_(d) {
    while ((std::int64_t{1} << shift_) < d) ++shift_;
    factor_ = static_cast<unsigned>(((std::uint64_t{1} << (31 + shift_)) + static_cast<unsigned>(d) - 1) /
                                    static_cast<unsigned>(d));
  }
  HPCDL_HOST_DEVICE constexpr int operator()(int n) const {
    return static_cast<int>(static_cast<unsigned>((std::uint64_t{static_cast<unsigned>(n) * 2u} * factor_) >> 32) >>
                            shift_);
  }
  HPCDL_HOST_DEVICE constexpr int divisor() const { return d_; }

 private:
  int d_ = 1, shift_ = 0;
  unsigned factor_ = 1u << 31;
};

/// The taps that connect pixels to images: pixel (i, j) and tap (a, b) read row i * stride + first_h + a * tap_step,
/// and likewise for columns.
struct Gather {
  int n = 0, rows = 0, cols = 0;  // pixels of the product
  int h = 0, w = 0;               // size of the images that are read
  int stride = 1, first_h = 0, first_w = 0, tap_step = 1;
  int taps_h = 0, taps_w = 0;
  Divisor image, row, channels,
      tap_row;  // pixels per image and per row of it; channels of the images that are read; taps per row

  struct Pixel {
    std::int64_t at;  // offset of tap 0 and channel 0, as if it were inside
    int row, col;
  };
  struct Term {
    std::int64_t at;
    int row, col;
  };
  HPCDL_HOST_DEVICE int pixels() const { return n * rows * cols; }
  HPCDL_HOST_DEVICE int terms() const { return taps_h * taps_w * channels.divisor(); }
  HPCDL_HOST_DEVICE Pixel pixel(int m) const {
    if (m >= pixels()) return {0, kOutside, kOutside};
    const int in = image(m), rest = m - in * image.divisor(), i = row(rest), j = rest - i * row.divisor();
    const int r = i * stride + first_h, c = j * stride + first_w;
    return {((std::int64_t{in} * h + r) * w + c) * channels.divisor(), r, c};
  }
  HPCDL_HOST_DEVICE Term term(int k) const {
    if (k >= terms()) return {0, kOutside, kOutside};
    const int tap = channels(k), channel = k - tap * channels.divisor(), a = tap_row(tap),
              b = tap - a * tap_row.divisor();
    const int r = a * tap_step, c = b * tap_step;
    return {(std::int64_t{r} * w + c) * channels.divisor() + channel, r, c};
  }
  /// The offset in elements of the element that both select; -1 outside of the image.
  HPCDL_HOST_DEVICE std::int64_t offset(const Pixel& p, const Term& t) const {
    const bool inside = static_cast<unsigned>(p.row + t.row) < static_cast<unsigned>(h) &&
                        static_cast<unsigned>(p.col + t.col) < static_cast<unsigned>(w);
    return inside ? p.at + t.at : -1;
  }
};

// The operands of the three products. offset(row(r), depth(k)) is the offset of element (r, k), or -1 where it is 0.
// kAlongK: neighbours in memory are neighbours in k; otherwise they are neighbouring rows.

struct PixelRows {
  static constexpr bool kAlongK = true;
  using Row = Gather::Pixel;
  using Depth = Gather::Term;
  Gather g;
  HPCDL_HOST_DEVICE Row row(int m) const { return g.pixel(m); }
  HPCDL_HOST_DEVICE Depth depth(int k) const { return g.term(k); }
  HPCDL_HOST_DEVICE std::int64_t offset(const Row& r, const Depth& d) const { return g.offset(r, d); }
};

struct TermRows {
  static constexpr bool kAlongK = false;
  using Row = Gather::Term;
  using Depth = Gather::Pixel;
  Gather g;
  HPCDL_HOST_DEVICE Row row(int k) const { return g.term(k); }
  HPCDL_HOST_DEVICE Depth depth(int m) const { return g.pixel(m); }
  HPCDL_HOST_DEVICE std::int64_t offset(const Row& r, const Depth& d) const { return g.offset(d, r); }
};

/// A stored matrix: `rows` of `depths` elements, contiguous along k or along rows.
template <bool kAlong> struct Dense {
  static constexpr bool kAlongK = kAlong;
  using Row = std::int64_t;
  using Depth = std::int64_t;
  int rows = 0, depths = 0;
  HPCDL_HOST_DEVICE Row row(int r) const { return r < rows ? (kAlong ? std::int64_t{r} * depths : r) : -1; }
  HPCDL_HOST_DEVICE Depth depth(int k) const { return k < depths ? (kAlong ? k : std::int64_t{k} * rows) : -1; }
  HPCDL_HOST_DEVICE std::int64_t offset(Row r, Depth d) const { return (r | d) < 0 ? -1 : r + d; }
};
using FilterRows = Dense<true>;    // w (O; taps x I)
using PixelDepths = Dense<false>;  // dy (O; pixels): pixels are O elements apart

/// w as the gradient of x reads it: row = channel of x, k = (tap of the class, O).
struct FilterColumns {
  static constexpr bool kAlongK = false;
  using Row = int;
  using Depth = std::int64_t;
  int inputs = 0, filter = 0;                               // channels of x; elements per filter
  int depths = 0, kw = 0, tap_h = 0, tap_w = 0, every = 1;  // its first tap, and the distance between taps
  Divisor outputs, tap_row;
  HPCDL_HOST_DEVICE Row row(int c) const { return c < inputs ? c : -1; }
  HPCDL_HOST_DEVICE Depth depth(int k) const {
    if (k >= depths) return -1;
    const int tap = outputs(k), o = k - tap * outputs.divisor(), a = tap_row(tap), b = tap - a * tap_row.divisor();
    return std::int64_t{o} * filter + ((tap_h + a * every) * kw + tap_w + b * every) * inputs;
  }
  HPCDL_HOST_DEVICE std::int64_t offset(Row r, Depth d) const { return r < 0 || d < 0 ? -1 : r + d; }
};

/// Addresses of the rows of a result: images of rows of pixels, `columns` elements per pixel.
struct Scatter {
  int rows = 0, columns = 0;
  std::int64_t first = 0, image_step = 0, row_step = 0, col_step = 0;
  Divisor image, row;
  /// -1 after the last row.
  HPCDL_HOST_DEVICE std::int64_t at(int m) const {
    if (m >= rows) return -1;
    const int in = image(m), rest = m - in * image.divisor(), i = row(rest), j = rest - i * row.divisor();
    return first + in * image_step + i * row_step + j * col_step;
  }
};
inline Scatter dense_rows(int rows, int columns) {
  return {.rows = rows,
          .columns = columns,
          .first = 0,
          .image_step = columns,
          .row_step = 0,
          .col_step = 0,
          .image = {},
          .row = {}};
}

// ---------------------------------------------------------------- computed from the shape of a convolution

inline int narrow_int(std::int64_t n) { return static_cast<int>(n); }

/// True if the rows, depths and pixels of every product, and offsets within an image, fit 31 bits.
inline bool countable(const Conv2dShape& c) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 29) - 1;
  const std::int64_t reach = c.dilation * std::max(c.kh, c.kw) + c.pad + c.stride * std::max(c.oh, c.ow);
  return c.pixels() <= kMost && c.n * c.h * c.w <= kMost && c.k() <= kMost && c.taps() * c.o <= kMost &&
         std::max({c.h, c.w, reach}) < kMost / 2;
}

/// x as read for the pixels of y.
inline Gather gather_of_x(const Conv2dShape& c) {
  return {.n = narrow_int(c.n),
          .rows = narrow_int(c.oh),
          .cols = narrow_int(c.ow),
          .h = narrow_int(c.h),
          .w = narrow_int(c.w),
          .stride = narrow_int(c.stride),
          .first_h = -narrow_int(c.pad),
          .first_w = -narrow_int(c.pad),
          .tap_step = narrow_int(c.dilation),
          .taps_h = narrow_int(c.kh),
          .taps_w = narrow_int(c.kw),
          .image = Divisor(narrow_int(c.oh * c.ow)),
          .row = Divisor(narrow_int(c.ow)),
          .channels = Divisor(narrow_int(c.i)),
          .tap_row = Divisor(narrow_int(c.kw))};
}

/// For the rows (or columns) of x that leave `remainder` when divided by the stride: which taps of `kernel` reach them,
/// and from which rows of dy.
struct TapClass {
  int pixels = 0;  // such rows
  int taps = 0;    // taps that reach them
  int tap = 0;     // the first tap
  int first = 0;   // the row of dy from which it reaches the first of them
};
inline TapClass tap_class(const Conv2dShape& c, std::int64_t remainder, std::int64_t size, std::int64_t kernel) {
  TapClass t;
  t.pixels = remainder < size ? narrow_int((size - remainder + c.stride - 1) / c.stride) : 0;
  const std::int64_t every = c.stride / std::gcd(c.stride, c.dilation);
  for (std::int64_t tap = 0; tap < std::min(every, kernel); ++tap) {
    const std::int64_t reached = remainder + c.pad - tap * c.dilation;
    if (reached % c.stride != 0) continue;
    t.taps = narrow_int((kernel - tap + every - 1) / every), t.tap = narrow_int(tap),
    t.first = narrow_int(reached / c.stride);
    break;
  }
  return t;
}

/// The gradient of the pixels of x in one class.
struct DataClass {
  Gather dy;
  FilterColumns w;
  Scatter dx;
};
inline DataClass data_class(const Conv2dShape& c, std::int64_t row_remainder, std::int64_t col_remainder) {
  const TapClass v = tap_class(c, row_remainder, c.h, c.kh), u = tap_class(c, col_remainder, c.w, c.kw);
  const auto common = std::gcd(c.stride, c.dilation);
  const int taps_h = u.taps > 0 ? v.taps : 0, taps_w = v.taps > 0 ? u.taps : 0, i = narrow_int(c.i),
            o = narrow_int(c.o);
  const Divisor image(std::max(1, v.pixels * u.pixels)), row(std::max(1, u.pixels)), tap_row(std::max(1, taps_w));
  return {.dy = {.n = narrow_int(c.n),
                 .rows = v.pixels,
                 .cols = u.pixels,
                 .h = narrow_int(c.oh),
                 .w = narrow_int(c.ow),
                 .stride = 1,
                 .first_h = v.first,
                 .first_w = u.first,
                 .tap_step = -narrow_int(c.dilation / common),
                 .taps_h = taps_h,
                 .taps_w = taps_w,
                 .image = image,
                 .row = row,
                 .channels = Divisor(o),
                 .tap_row = tap_row},
          .w = {.inputs = i,
                .filter = narrow_int(c.k()),
                .depths = taps_h * taps_w * o,
                .kw = narrow_int(c.kw),
                .tap_h = v.tap,
                .tap_w = u.tap,
                .every = narrow_int(c.stride / common),
                .outputs = Divisor(o),
                .tap_row = tap_row},
          .dx = {.rows = narrow_int(c.n) * v.pixels * u.pixels,
                 .columns = i,
                 .first = (row_remainder * c.w + col_remainder) * c.i,
                 .image_step = c.h * c.w * c.i,
                 .row_step = c.stride * c.w * c.i,
                 .col_step = c.stride * c.i,
                 .image = image,
                 .row = row}};
}

}  // namespace hpcdl::cuda
