#include "hpcdl/ops/fp8_linear/fp8_linear.h"

#include <atomic>
#include <cmath>

#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

/// A tile of sums: kRows rows of A by kCols of B. Both are widened, kF8Block of k at a time, to the stack: B once for
/// all groups of kGroup rows, whose sums stay in registers.
constexpr int kRows = 64, kCols = 16, kGroup = 4, kDepth = static_cast<int>(kF8Block);

/// Every number of a type, by its code.
template <class F> constexpr auto every_f8() {
  struct {
    float of[256];
  } t{};
  for (int i = 0; i < 256; ++i) t.of[i] = from_f8(F{static_cast<std::uint8_t>(i)});
  return t;
}
template <class F> constexpr auto kNumbers = every_f8<F>();

float at(const View& v, std::int64_t i) {
  if (v.dtype() == DType::bf16) return static_cast<float>(v.ptr<bf16>()[i]);
  return v.dtype() == DType::f16 ? static_cast<float>(v.ptr<f16>()[i]) : v.ptr<float>()[i];
}
void put(const Tensor& t, std::int64_t i, float x) {
  if (t.dtype() == DType::bf16) t.ptr<bf16>()[i] = bf16(x);
  else if (t.dtype() == DType::f16) t.ptr<f16>()[i] = f16(x);
  else t.ptr<float>()[i] = x;
}
float activated(Activation a, float x) {
  switch (a) {
    case Activation::relu: return x > 0 || x != x ? x : 0.0f;
    case Activation::gelu_tanh: return fuse::GeluTanh::value(simd::Vec<simd::Scalar>(x)).v;
    case Activation::gelu_erf: return fuse::GeluErf::value(simd::Vec<simd::Scalar>(x)).v;
    default: return x;
  }
}

template <class Isa, class A, class B> struct Tile {
  using V = simd::Vec<Isa>;
  static constexpr int kVectors = kCols / V::N;
  const Fp8Product& p;
  std::int64_t row0, col0;
  int rows, cols;
  float sums[kRows][kCols] = {};

  /// Adds the products of k in [k0, k0 + depth), by which the scales of a block are constant.
  void add(std::int64_t k0, int depth) {
    alignas(64) float b[kDepth][kCols], a[kGroup][kDepth];
    for (int j = 0; j < kCols; ++j)
      for (int k = 0; k < depth; ++k)
        b[k][j] = j < cols ? kNumbers<B>.of[p.b.ptr<B>()[(col0 + j) * p.b.row_stride() + k0 + k].bits] : 0.0f;
    const std::int64_t block = k0 / kF8Block;
    for (int i0 = 0; i0 < rows; i0 += kGroup) {
      const int group = rows - i0 < kGroup ? rows - i0 : kGroup;
      for (int i = 0; i < kGroup; ++i)
        for (int k = 0; k < depth; ++k)
          a[i][k] = i < group ? kNumbers<A>.of[p.a.ptr<A>()[(row0 + i0 + i) * p.a.row_stride() + k0 + k].bits] : 0.0f;
      V part[kGroup][kVectors];
      for (auto& row : part)
        for (V& v : row) v = V(0.0f);
      for (int k = 0; k < depth; ++k) {
        V right[kVectors];
        for (int j = 0; j < kVectors; ++j) right[j] = V::load(&b[k][j * V::N]);
        for (int i = 0; i < kGroup; ++i)
          for (int j = 0; j < kVectors; ++j) part[i][j] = fma(V(a[i][k]), right[j], part[i][j]);
      }
      for (int i = 0; i < group; ++i) {
        float scale = 1;
        if (p.blocks())
          scale = p.a_scale.ptr<float>()[(row0 + i0 + i) * p.a_scale[-1] + block] *
                  p.b_scale.ptr<float>()[col0 / kF8Block * p.b_scale[1] + block];
        for (int j = 0; j < kVectors; ++j) {
          float* sum = &sums[i0 + i][j * V::N];
          fma(part[i][j], V(scale), V::load(sum)).store(sum);
        }
      }
    }
  }

  /// Stores the tile. Returns its largest magnitude.
  float write() const {
    const auto scale_of = [&](const View& v, std::int64_t i) {
      return p.blocks() ? 1.0f : v.ptr<float>()[v.size() > 1 ? i : 0];
    };
    float amax = 0;
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < cols; ++j) {
        const std::int64_t row = row0 + i, col = col0 + j;
        float v = sums[i][j] * (scale_of(p.a_scale, row) * scale_of(p.b_scale, col));
        if (p.bias) v += at(p.bias, col);
        v = activated(p.activation, v);
        if (p.residual) v += at(p.residual, row * p.residual.row_stride() + col);
        amax = std::fmax(amax, std::fabs(v));
        put(p.y, row * p.y.row_stride() + col, v);
      }
    return amax;
  }
};

template <class Isa, class A, class B> void product(Pool& pool, const Fp8Product& p) {
  const std::int64_t m = p.m(), n = p.n(), k = p.k(), across = (n + kCols - 1) / kCols,
                     tiles = (m + kRows - 1) / kRows * across;
  float* const amax = p.wants_amax() ? p.amax.ptr<float>() : nullptr;
  if (amax) *amax = 0;
  parallel_for(pool, tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    float most = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t row0 = t / across * kRows, col0 = t % across * kCols;
      Tile<Isa, A, B> tile{p, row0, col0, static_cast<int>(m - row0 < kRows ? m - row0 : kRows),
                           static_cast<int>(n - col0 < kCols ? n - col0 : kCols)};
      for (std::int64_t k0 = 0; k0 < k; k0 += kDepth) tile.add(k0, static_cast<int>(k - k0 < kDepth ? k - k0 : kDepth));
      most = std::fmax(most, tile.write());
    }
    if (!amax) return;
    const std::atomic_ref shared(*amax);
    float seen = shared.load();
    while (seen < most && !shared.compare_exchange_weak(seen, most)) {}
  });
}

}  // namespace

template <class Isa> void fp8_linear(Isa, Pool& pool, const Fp8Product& p) {
  if (p.y.size() == 0) {
    if (p.wants_amax()) *p.amax.ptr<float>() = 0;
    return;
  }
  p.visit([&]<class A, class B>() { product<Isa, A, B>(pool, p); });
}

template void fp8_linear(simd::Isa, Pool&, const Fp8Product&);

}  // namespace hpcdl::cpu
