#pragma once
// 3 x 3 convolutions of stride 1 by Winograd's minimal filtering (Lavin & Gray, "Fast algorithms for convolutional
// neural networks", 2016): a tile of 4 x 4 outputs costs 36 products per pair of channels instead of 144. Tiles of 6 x
// 6 inputs and the kernels are evaluated at 36 points, multiplied there as 36 matrix products, and interpolated.
//
// Rounding errors at the points are amplified: relative to those of a plain sum, by sqrt(sum over p of A_rp^2 |B_p|^2
// |G_p|^2 / taps) along each axis for result r, where A, B and G are the transforms of results, inputs and kernel. For
// the worst result that is 7.3 for both axes with the points 0, +-11/16, +-23/16 and infinity, or 6.0 if taps are
// computed (dw); the usual points 0, +-1, +-2 give 31 and 24.

#include "hpcdl/ops/conv2d/gather.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::conv {
namespace {

inline constexpr int kPoints = 6, kPlanes = kPoints * kPoints, kTile = 4;
inline constexpr float kA = 0.6875f, kB = 1.4375f, kA2 = kA * kA, kB2 = kB * kB;

/// Values at the points from the 6 inputs of 4 outputs.
template <class V> [[gnu::always_inline]] inline void input_points(const V* d, V* v) {
  const V even = fma(V(-kB2), d[2], d[4]), odd = V(kA) * fma(V(-kB2), d[1], d[3]);
  const V even2 = fma(V(-kA2), d[2], d[4]), odd2 = V(kB) * fma(V(-kA2), d[1], d[3]);
  v[0] = fma(V(kA2 * kB2), d[0], fma(V(-(kA2 + kB2)), d[2], d[4]));
  v[1] = even + odd, v[2] = even - odd;
  v[3] = even2 + odd2, v[4] = even2 - odd2;
  v[5] = fma(V(kA2 * kB2), d[1], fma(V(-(kA2 + kB2)), d[3], d[5]));
}

/// The same for the other factor with `kTerms` coefficients: 3 taps, or 4 gradients of outputs if taps are computed.
template <int kTerms, class V> [[gnu::always_inline]] inline void factor_points(const V* g, V* u) {
  constexpr float kAtA = 1 / (2 * kA2 * (kA2 - kB2)), kAtB = 1 / (2 * kB2 * (kB2 - kA2));
  V even = fma(V(kA2), g[2], g[0]), odd = V(kA) * g[1], even2 = fma(V(kB2), g[2], g[0]), odd2 = V(kB) * g[1];
  if constexpr (kTerms == 4) odd = fma(V(kA2 * kA), g[3], odd), odd2 = fma(V(kB2 * kB), g[3], odd2);
  u[0] = V(1 / (kA2 * kB2)) * g[0];
  u[1] = V(kAtA) * (even + odd), u[2] = V(kAtA) * (even - odd);
  u[3] = V(kAtB) * (even2 + odd2), u[4] = V(kAtB) * (even2 - odd2);
  u[5] = g[kTerms - 1];
}

/// From products at the points to `kTerms` results: 4 outputs, or 3 taps.
template <int kTerms, class V> [[gnu::always_inline]] inline void results(const V* m, V* y) {
  const V sum = m[1] + m[2], difference = m[1] - m[2], sum2 = m[3] + m[4], difference2 = m[3] - m[4];
  y[0] = m[0] + (sum + sum2);
  y[1] = fma(V(kA), difference, V(kB) * difference2);
  y[2] = fma(V(kA2), sum, V(kB2) * sum2);
  if constexpr (kTerms == 4) y[3] = fma(V(kA2 * kA), difference, fma(V(kB2 * kB), difference2, m[5]));
  if constexpr (kTerms == 3) y[2] = y[2] + m[5];
}

/// The same along both axes: kIn x kIn values to kOut x kOut; `one` transforms a line of them.
template <int kIn, int kOut, class V, class One>
[[gnu::always_inline]] inline void both_axes(V (&from)[kIn][kIn], V (&to)[kOut][kOut], One one) {
  V half[kIn][kOut];
#pragma GCC unroll 6
  for (int i = 0; i < kIn; ++i) one(from[i], half[i]);
#pragma GCC unroll 6
  for (int j = 0; j < kOut; ++j) {
    V column[kIn], put[kOut];
#pragma GCC unroll 6
    for (int i = 0; i < kIn; ++i) column[i] = half[i][j];
    one(column, put);
#pragma GCC unroll 6
    for (int i = 0; i < kOut; ++i) to[i][j] = put[i];
  }
}

/// How images are divided into tiles.
struct TileGrid {
  std::int64_t rows, cols, height, width;  // tiles; outputs
  explicit TileGrid(const Images& x)
      : rows(ceil_div(x.rows.outputs, kTile)),
        cols(ceil_div(x.cols.outputs, kTile)),
        height(x.rows.outputs),
        width(x.cols.outputs) {}
  std::int64_t of_image() const { return rows * cols; }
};

/// Addresses of the pixels of a square of `kSize` x `kSize` pixels of (N, height, width, channels); those outside the
/// image are at `zeros`.
template <int kSize>
void square(const float* data, std::int64_t image, std::int64_t row, std::int64_t col, std::int64_t height,
            std::int64_t width, std::int64_t channels, const float* zeros, const float* (&at)[kSize][kSize]) {
  for (int i = 0; i < kSize; ++i)
    for (int j = 0; j < kSize; ++j) {
      const bool inside = row + i >= 0 && row + i < height && col + j >= 0 && col + j < width;
      at[i][j] = inside ? data + ((image * height + row + i) * width + col + j) * channels : zeros;
    }
}

/// Loads `kIn` x `kIn` pixels of all channels, stores their values at the points: plane p of channels from c on at
/// to(p, c).
template <class Isa, int kIn, class To, class One>
void evaluate(const float* (&at)[kIn][kIn], std::int64_t channels, To to, One one) {
  using V = simd::Vec<Isa>;
  simd::loop<Isa>(channels, [&](std::int64_t c, auto lanes) {
    V d[kIn][kIn], p[kPoints][kPoints];
#pragma GCC unroll 6
    for (int i = 0; i < kIn; ++i)
#pragma GCC unroll 6
      for (int j = 0; j < kIn; ++j) d[i][j] = simd::load<V>(at[i][j] + c, lanes);
    both_axes<kIn, kPoints>(d, p, one);
#pragma GCC unroll 6
    for (int i = 0; i < kPoints; ++i)
#pragma GCC unroll 6
      for (int j = 0; j < kPoints; ++j)
        p[i][j].store(to(i * kPoints + j, c));  // whole registers: rows have room for them
  });
}

/// True if it pays: f32 throughout, 3 x 3 of stride 1, whole registers of channels, tiles mostly full, and enough of
/// them to amortise the transform of the kernel to 36 points.
inline bool fits_winograd(const Conv2dShape& c) {
  if (c.kh != 3 || c.kw != 3 || c.stride != 1 || c.dilation != 1 || c.i < 32 || c.o < 32) return false;
  const auto useful = [](std::int64_t height, std::int64_t width, std::int64_t n) {
    const std::int64_t tiles = ceil_div(height, kTile) * ceil_div(width, kTile);
    return height * width * 10 >= tiles * kTile * kTile * 7 && n * tiles >= 64;
  };
  return useful(c.oh, c.ow, c.n) && useful(c.h, c.w, c.n);
}

/// Like Gather, for 3 x 3 taps of stride 1 in f32.
template <class Isa> class Winograd {
  using D = gemm::Dot<Isa, gemm::Compute::f32>;
  using V = simd::Vec<Isa>;
  static constexpr int kRows = Tiles<D>::kRows, kLanes = D::kLanes;

 public:
  Winograd(Pool& pool, const Images& x, const Weights& w, const Outputs<float>& y)
      : pool_(pool),
        set_(gemm::vector_set(Isa{}, gemm::Compute::f32)),
        x_(x),
        w_(w),
        y_(y),
        grid_(x),
        panels_(y.channels, kLanes, Tiles<D>::kVectors),
        c_(ceil_div(x.channels, kLanes) * kLanes) {
    const std::int64_t tiles = x.n * grid_.of_image(), most_tiles = c_ > 96 ? 64 : 32;
    units_ = least(tiles, ceil_div(ceil_div(tiles, most_tiles), pool.threads()) * pool.threads());
    unit_tiles_ = ceil_div(tiles, units_);
    plane_ = unit_tiles_ * c_ + 16;
    out_plane_ = unit_tiles_ * panels_.widest() + 16;
  }

  void run() {
    panel_bytes_ = round_up(kPlanes * x_.channels * panels_.widest() * 4);
    own_bytes_ = ceil_div(panels_.parts, pool_.threads()) * panel_bytes_;
    const std::int64_t v = round_up(kPlanes * plane_ * 4), m = round_up(kPlanes * out_plane_ * 4),
                       zeros = round_up(c_ * 4), rows = round_up(unit_tiles_ * 8);
    const std::int64_t packed = 9 * x_.channels * panels_.widest() * 4, work = most(v + m + zeros + rows, packed);
    pool_.reserve_scratch(own_bytes_ + work + y_.channels * 4);
    if (y_.bias) bias_ = widened(y_.bias, reinterpret_cast<float*>(pool_.scratch(0) + own_bytes_ + work));
    tasks(panels_.parts, [&](int thread, std::int64_t p) {
      transform_weights(p, reinterpret_cast<float*>(pool_.scratch(thread) + own_bytes_));
    });
    const std::int64_t tiles = x_.n * grid_.of_image();
    tasks(units_, [&](int thread, std::int64_t unit) {
      std::byte* at = pool_.scratch(thread) + own_bytes_;
      Memory memory{reinterpret_cast<float*>(at), reinterpret_cast<float*>(at + v),
                    reinterpret_cast<float*>(at + v + m), reinterpret_cast<std::int64_t*>(at + v + m + zeros)};
      run_tiles(memory, share(tiles, unit, units_), share(tiles, unit + 1, units_));
    });
  }

 private:
  struct Memory {
    float *v, *m, *zeros;
    std::int64_t* rows;
  };
  template <class F> void tasks(std::int64_t n, F&& f) {
    std::atomic<std::int64_t> next{0};
    pool_.run([&](int thread) {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(thread, i);
    });
  }
  float* panel(std::int64_t p) const {
    return reinterpret_cast<float*>(pool_.scratch(static_cast<int>(p % pool_.threads())) +
                                    p / pool_.threads() * panel_bytes_);
  }

  /// Panel p: (planes, channels, width).
  void transform_weights(std::int64_t p, float* packed) const {
    const std::int64_t width = panels_.width(p), plane = x_.channels * width;
    pack_weights(set_, x_, w_, y_.channels, panels_.begin(p), static_cast<int>(width), x_.channels,
                 reinterpret_cast<std::uint32_t*>(packed));
    float* to = panel(p);
    for (std::int64_t at = 0; at < plane; at += kLanes) {
      V g[3][3], u[kPoints][kPoints];
      for (int t = 0; t < 9; ++t) g[t / 3][t % 3] = V::load(packed + t * plane + at);
      both_axes<3, kPoints>(g, u, [](const V* a, V* b) __attribute__((always_inline)) { factor_points<3>(a, b); });
      for (int i = 0; i < kPlanes; ++i) u[i / kPoints][i % kPoints].store(to + i * plane + at);
    }
  }

  void run_tiles(const Memory& memory, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t c = 0; c < c_; ++c) memory.zeros[c] = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      memory.rows[t - begin] = (t - begin) * c_ * 4;
      const std::int64_t image = t / grid_.of_image(), row = t % grid_.of_image() / grid_.cols, col = t % grid_.cols;
      const float* at[kPoints][kPoints];
      square<kPoints>(reinterpret_cast<const float*>(x_.data), image, row * kTile + x_.rows.first,
                      col * kTile + x_.cols.first, x_.rows.size, x_.cols.size, x_.channels, memory.zeros, at);
      evaluate<Isa, kPoints>(
          at, x_.channels, [&](int plane, std::int64_t c) { return memory.v + plane * plane_ + (t - begin) * c_ + c; },
          [](const V* a, V* b) __attribute__((always_inline)) { input_points(a, b); });
    }
    for (std::int64_t p = 0; p < panels_.parts; ++p) {
      multiply(memory, p, end - begin);
      for (std::int64_t t = begin; t < end; ++t) interpolate(memory.m + (t - begin) * panels_.width(p), p, t);
    }
  }

  void multiply(const Memory& memory, std::int64_t p, std::int64_t tiles) const {
    const std::int64_t width = panels_.width(p), n = ceil_div(tiles, kRows);
    const Run run{0, x_.channels};
    for (int plane = 0; plane < kPlanes; ++plane)
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t first = share(tiles, i, n), rows = share(tiles, i + 1, n) - first;
        kTiles<D>.pixel[rows - 1][width / kLanes - 1](
            {.base = reinterpret_cast<const std::byte*>(memory.v + plane * plane_),
             .pixels = memory.rows + first,
             .runs = &run,
             .n_runs = 1,
             .b = reinterpret_cast<const std::byte*>(panel(p) + plane * x_.channels * width),
             .cin = nullptr,
             .cout = memory.m + plane * out_plane_ + first * width});
      }
  }

  /// The outputs of one tile and panel.
  void interpolate(const float* m, std::int64_t p, std::int64_t t) const {
    const std::int64_t image = t / grid_.of_image(), row = t % grid_.of_image() / grid_.cols * kTile,
                       col = t % grid_.cols * kTile, first = panels_.begin(p);
    const std::int64_t height = least(kTile, grid_.height - row), width = least(kTile, grid_.width - col),
                       line = y_.width * y_.channels;
    float* to = y_.data + ((image * y_.height + row) * y_.width + col) * y_.channels + first;
    simd::loop<Isa>(least(panels_.width(p), y_.channels - first), [&](std::int64_t c, auto lanes) {
      V d[kPoints][kPoints], r[kTile][kTile];
#pragma GCC unroll 6
      for (int i = 0; i < kPoints; ++i)
#pragma GCC unroll 6
        for (int j = 0; j < kPoints; ++j) d[i][j] = V::load(m + (i * kPoints + j) * out_plane_ + c);
      both_axes<kPoints, kTile>(d, r, [](const V* a, V* b) __attribute__((always_inline)) { results<4>(a, b); });
      const V bias = bias_ ? simd::load<V>(bias_ + first + c, lanes) : V(0.0f);
      for (int i = 0; i < height; ++i)
        for (int j = 0; j < width; ++j) {
          float* put = to + i * line + j * y_.channels + c;
          V v = r[i][j] + bias;
          if (y_.accumulate) v = v + simd::load<V>(put, lanes);
          if (y_.stream) simd::stream(put, v, lanes);
          else simd::store(put, v, lanes);
        }
    });
    if (y_.stream) simd::stream_fence<Isa>();
  }

  Pool& pool_;
  const gemm::KernelSet& set_;
  const Images& x_;
  const Weights& w_;
  const Outputs<float>& y_;
  TileGrid grid_;
  Panels panels_;
  std::int64_t c_, units_ = 1, unit_tiles_ = 1, plane_ = 0, out_plane_ = 0;
  std::int64_t panel_bytes_ = 0, own_bytes_ = 0;
  const float* bias_ = nullptr;
};

}  // namespace
}  // namespace hpcdl::conv
