#include "hpcdl/ops/int4_linear/int4_linear.h"

#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/int4_linear/int4_amx.h"
#include "hpcdl/ops/int4_linear/int4_rows.h"
#include "hpcdl/ops/int4_linear/int4_vec.h"
#include "hpcdl/simd/math.h"
#include "hpcdl/simd/prefetch.h"

namespace hpcdl::cpu {
namespace {

using int4::kBatch;
using int4::kTileRows;

// Prefetch distances in bytes: weights into L2 and from there into L1, scales into L2. Weights then stream from memory
// at the speed of a plain read. The hardware prefetcher, which stops at every 4 KiB page, reaches 0.75 of that on Zen 5
// and 0.6 on an Intel Xeon; the latter gains 8 % from the prefetch into L1 and 4 % from scales that are prefetched as
// far ahead as this, a line at a time. Prefetching past the end of a tensor is harmless.
constexpr std::int64_t kAhead = 16384, kNearAhead = 2048, kScaleAhead = 4096;

/// out[c][r] = row r of the tile . input c, with 8-bit inputs. L rows at a time. kRows: 16, or 0 for t.rows. A group is
/// fully unrolled and the function is not inlined: as a loop, or inlined, GCC 12 spills half of the accumulators (1.5
/// times slower at batch 64).
template <class Isa, int C, int kBlocks, int kRows>
[[gnu::noinline]] void tile_dot(float (*out)[kTileRows], const Tile& t, const Block& x, std::int64_t groups) {
  using V = simd::Vec<Isa>;
  using I = Int4Vec<Isa>;
  const int rows = kRows > 0 ? kRows : t.rows;
  const std::int64_t stride = rows * 4;
  for (int r = 0; r < rows; r += V::N) {
    const int n = kRows > 0 || rows - r > V::N ? V::N : rows - r;
    V y[C];
    for (int c = 0; c < C; ++c) y[c] = V(0.0f);
    const std::uint8_t* q = t.packed + r * 4;
    const std::byte* v = x.values;
    for (std::int64_t g = 0; g < groups; ++g) {
      typename I::Int low[C], high[C];
      for (int c = 0; c < C; ++c) {
        low[c] = I::set(x.sums[g * C + c]);
        high[c] = I::set(0);
      }
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b, q += stride, v += 8 * C) {
        simd::prefetch_pages_in_turn(q + kAhead);
        __builtin_prefetch(q + kNearAhead);
        const auto w = I::load(q, n);
        const auto wl = I::low(w), wh = I::high(w);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          low[c] = I::dot(low[c], wl, v + 4 * c);
          high[c] = I::dot(high[c], wh, v + 4 * (C + c));
        }
      }
      const bf16* scales = t.scale + g * rows + r;
      if (g % 2 == 0) __builtin_prefetch(reinterpret_cast<const char*>(scales) + kScaleAhead, 0, 2);
      const V scale = V::load(scales, n);
      for (int c = 0; c < C; ++c) y[c] = fma(I::to_float(I::add(low[c], high[c])), scale * V(x.steps[g * C + c]), y[c]);
      if (t.offset) {
        const V offset = V::load(t.offset + g * rows + r, n);
        for (int c = 0; c < C; ++c)
          y[c] = fma(offset, V(x.steps[g * C + c] * (static_cast<float>(x.sums[g * C + c]) * -0.125f)), y[c]);
      }
    }
    for (int c = 0; c < C; ++c) y[c].store(out[c] + r);
  }
}

template <class Isa, int C>
void tile_dot(float (*out)[kTileRows], const Tile& t, const Block& x, std::int64_t groups, std::int64_t blocks) {
  if (simd::Vec<Isa>::N == 1 || t.rows < kTileRows) {  // single rows gain nothing from a constant number
    if (blocks == 4) return tile_dot<Isa, C, 4, 0>(out, t, x, groups);
    if (blocks == 8) return tile_dot<Isa, C, 8, 0>(out, t, x, groups);
    return tile_dot<Isa, C, 16, 0>(out, t, x, groups);
  }
  if (blocks == 4) return tile_dot<Isa, C, 4, kTileRows>(out, t, x, groups);
  if (blocks == 8) return tile_dot<Isa, C, 8, kTileRows>(out, t, x, groups);
  return tile_dot<Isa, C, 16, kTileRows>(out, t, x, groups);
}

/// The same with inputs in float.
template <class Isa, int C>
void tile_exact(float (*out)[kTileRows], const Tile& t, const Block& x, std::int64_t groups, std::int64_t blocks) {
  using V = simd::Vec<Isa>;
  using I = Int4Vec<Isa>;
  const std::int64_t stride = t.rows * 4;
  for (int r = 0; r < t.rows; r += V::N) {
    const int n = t.rows - r < V::N ? t.rows - r : V::N;
    V y[C];
    for (int c = 0; c < C; ++c) y[c] = V(0.0f);
    const std::uint8_t* q = t.packed + r * 4;
    const float* v = reinterpret_cast<const float*>(x.values);
    for (std::int64_t g = 0; g < groups; ++g) {
      V even[C], odd[C];  // two chains hide the latency of fma if there are few inputs
      for (int c = 0; c < C; ++c) even[c] = odd[c] = V(0.0f);
      for (std::int64_t b = 0; b < blocks; ++b, q += stride, v += 8 * C) {
        const auto w = I::load(q, n);
        const auto step = [&]<int J>(std::integral_constant<int, J>) {
          const V w0 = I::template value<J>(w), w1 = I::template value<J + 1>(w);
          for (int c = 0; c < C; ++c) {
            even[c] = fma(w0, V(v[J * C + c]), even[c]);
            odd[c] = fma(w1, V(v[(J + 1) * C + c]), odd[c]);
          }
        };
        step(std::integral_constant<int, 0>{});
        step(std::integral_constant<int, 2>{});
        step(std::integral_constant<int, 4>{});
        step(std::integral_constant<int, 6>{});
      }
      const V scale = V::load(t.scale + g * t.rows + r, n);
      for (int c = 0; c < C; ++c) y[c] = fma(even[c] + odd[c], scale, y[c]);
      if (t.offset) {
        const V offset = V::load(t.offset + g * t.rows + r, n);
        for (int c = 0; c < C; ++c) y[c] = fma(offset, V(x.steps[g * C + c]), y[c]);
      }
    }
    for (int c = 0; c < C; ++c) y[c].store(out[c] + r);
  }
}

template <class Isa> simd::Vec<Isa> activate(simd::Vec<Isa> v, Int4Activation a) {
  using V = simd::Vec<Isa>;
  switch (a) {
    case Int4Activation::relu: return max(v, V(0.0f));
    // 0.5 (1 + tanh z) = sigmoid(2 z)
    case Int4Activation::gelu:
      return fuse::gated(v, simd::sigmoid<Isa>(V(1.5957691216057308f) * fma(V(0.044715f) * v * v, v, v)));
    case Int4Activation::gelu_erf: return v * fma(simd::erf<Isa>(v * V(0.70710678118654752f)), V(0.5f), V(0.5f));
    case Int4Activation::silu: return fuse::gated(v, simd::sigmoid<Isa>(v));
    default: return v;
  }
}

template <class Isa> simd::Vec<Isa> load_as(const View& x, std::int64_t at, int n) {
  return visit_dtype(x.dtype(), [&]<class T>() { return simd::Vec<Isa>::load(x.ptr<T>() + at, n); });
}

/// Writes rows [first, first + c) x columns [col, col + n) of y.
template <class Isa, class T>
void finish(const Tensor& y, const float (*acc)[kTileRows], std::int64_t first, int c, std::int64_t col, int n,
            const View& bias, const View& residual, Int4Activation a) {
  using V = simd::Vec<Isa>;
  for (int i = 0; i < c; ++i) {
    T* row = y.ptr<T>() + (first + i) * y.row_stride() + col;
    for (int j = 0; j < n; j += V::N) {
      const int m = n - j < V::N ? n - j : V::N;
      V v = V::load(acc[i] + j, m);
      if (bias) v = v + load_as<Isa>(bias, col + j, m);
      v = activate<Isa>(v, a);
      if (residual) v = v + V::load(residual.ptr<T>() + (first + i) * residual.row_stride() + col + j, m);
      v.store(row + j, m);
    }
  }
}

template <class Isa, int C>
void tile(float (*out)[kTileRows], const Tile& t, const Block& x, int c, const int4::Weight& w, bool exact) {
  if constexpr (C > 0) {
    if (c < C) return tile<Isa, C - 1>(out, t, x, c, w, exact);
    if (exact) tile_exact<Isa, C>(out, t, x, w.groups(), w.group() / 8);
    else tile_dot<Isa, C>(out, t, x, w.groups(), w.group() / 8);
  }
}

/// A product on vector registers, from rows in blocks of kBatch.
template <class Isa, class Finish>
void on_vectors(Pool& pool, std::int64_t rows, const int4::Weight& w, const int4::Scratch& s, bool exact,
                const Finish& finish) {
  const std::int64_t k = w.k(), groups = w.groups();
  const std::int64_t grain = 1 + 65536 / (kTileRows * k * rows);
  parallel_for(pool, int4::tiles(w.n()), grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const Tile t = tile_of(w, i);
      for (std::int64_t first = 0; first < rows; first += kBatch) {
        const int c = static_cast<int>(rows - first < kBatch ? rows - first : kBatch);
        alignas(64) float acc[kBatch][kTileRows];
        tile<Isa, kBatch>(acc, t, block_of(s, first, k, groups, exact ? 4 : 1), c, w, exact);
        finish(acc, first, c, i * kTileRows, t.rows);
      }
    }
  });
}

}  // namespace

template <class Isa>
void int4_linear(Isa, Pool& pool, Tensor y, View x, const int4::Weight& w, View bias, View residual,
                 const int4::Scratch& s, const Int4Linear::Args& a) {
  const std::int64_t rows = x.rows();
  if (rows == 0 || x.size() == 0) return;
  const auto write = [&](const float (*acc)[kTileRows], std::int64_t first, int c, std::int64_t col, int n) {
    visit_dtype(y.dtype(), [&]<class T>() { finish<Isa, T>(y, acc, first, c, col, n, bias, residual, a.activation); });
  };
#if defined(HPCDL_SIMD_AVX512)
  if (simd::has_tiles() && !a.exact && gains_from_tiles(rows, w.group())) {
    prepare<Isa>(pool, s, x, w, false, kBlockRows, w.group());
    return on_tile_registers(pool, rows, w, s, write);
  }
#endif
  prepare<Isa>(pool, s, x, w, a.exact, kBatch, 4);
  on_vectors<Isa>(pool, rows, w, s, a.exact, write);
}

template void int4_linear(simd::Isa, Pool&, Tensor, View, const int4::Weight&, View, View, const int4::Scratch&,
                          const Int4Linear::Args&);

}  // namespace hpcdl::cpu
