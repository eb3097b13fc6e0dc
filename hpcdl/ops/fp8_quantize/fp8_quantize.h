#pragma once
// Rounds x to 8-bit floats q with scales, so that x is about q * scale: what fp8_linear multiplies.
//
// x (..., K), f32, bf16 or f16. q is like x, or (K, M) if it is `transposed`, with M the rows of x: backward's products
// sum over the rows of dy, x and W, which must then be contiguous. A scale is f8_scale() of the largest magnitude of
// what it belongs to, NaN ignored (core/f8.h): 1 where that is 0. With R x C the shape of q:
//   tensor      scale (1). With `amax` (1), f32, that is taken for the largest magnitude, in one pass instead of two;
//               larger elements become the largest finite number
//   row         scale (R)
//   row_blocks  scale (R, ceil(C / 128)): 1 x 128
//   blocks      scale (ceil(R / 128), ceil(C / 128)): 128 x 128
// q = to_f8(x * (1 / scale)), in f32; NaN stays NaN, infinities become the largest finite number. The same bits on every
// device. No gradient.

#include "hpcdl/core/f8.h"
#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

enum class Fp8Scaling : std::uint8_t { tensor, row, row_blocks, blocks };

struct Fp8Quantize {
  static constexpr std::string_view name = "fp8_quantize";
  static constexpr std::int64_t kBlock = 128;
  struct Args {
    DType to = DType::f8_e4m3;
    Fp8Scaling scaling = Fp8Scaling::tensor;
    bool transposed = false;
  };
  /// q and scale.
  static std::array<Spec, 2> infer(const Spec& x, const Spec& amax, const Args& a) {
    require_float(name, x, "x");
    require(is_f8_dtype(a.to), name, "can round to F8_E4M3 or F8_E5M2, got {}", dtype_name(a.to));
    if (amax) {
      require(a.scaling == Fp8Scaling::tensor, name, "only the scale of a whole tensor can follow from a given amax");
      require_spec(name, "amax", amax, {{1}, DType::f32});
    }
    const std::int64_t cols = x[-1], rows = cols > 0 ? x.size() / cols : 0;
    const std::int64_t r = a.transposed ? cols : rows, c = a.transposed ? rows : cols;
    const auto blocks = [](std::int64_t n) { return (n + kBlock - 1) / kBlock; };
    Spec q{a.transposed ? Shape{r, c} : x.shape, a.to}, scale{{1}, DType::f32};
    if (a.scaling == Fp8Scaling::row) scale.shape = {r};
    if (a.scaling == Fp8Scaling::row_blocks) scale.shape = {r, blocks(c)};
    if (a.scaling == Fp8Scaling::blocks) scale.shape = {blocks(r), blocks(c)};
    return {q, scale};
  }
  /// A maximum and a product per element. What is measured before it is rounded is read twice.
  static Cost cost(const Spec& x, const Spec& amax, const Args& a) {
    const bool twice = !amax && (a.scaling == Fp8Scaling::tensor || (a.scaling == Fp8Scaling::row && a.transposed));
    return {.operations = 2 * static_cast<double>(x.size()),
            .unit = Unit::f32,
            .reads = twice ? static_cast<double>(x.bytes()) : 0};
  }
  /// The largest magnitude of the tensor or of each row of q, where another pass measures it.
  static std::array<Spec, 1> scratch(const Spec& x, const Spec& amax, const Args& a) {
    const Spec scale = infer(x, amax, a)[1];
    const bool measured = !amax && (a.scaling == Fp8Scaling::tensor || a.scaling == Fp8Scaling::row);
    return {measured ? scale : Spec{{0}, DType::f32}};
  }
  static void forward(Stream& s, Tensor q, Tensor scale, View x, View amax, Tensor measured, const Args& a);
};

namespace cpu {
template <class Isa>
void fp8_quantize(Isa, Pool&, Tensor q, Tensor scale, View x, View amax, Tensor measured, const Fp8Quantize::Args& a);
}  // namespace cpu
namespace cuda {
void fp8_quantize(Stream&, Tensor q, Tensor scale, View x, View amax, Tensor measured, const Fp8Quantize::Args& a);
}  // namespace cuda

inline void Fp8Quantize::forward(Stream& s, Tensor q, Tensor scale, View x, View amax, Tensor measured, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::fp8_quantize(isa, pool, q, scale, x, amax, measured, a); },
      [&](auto& g) { cuda::fp8_quantize(g, q, scale, x, amax, measured, a); });
}

/// q and scale. amax may be default (absent).
template <Symbolic V> std::array<V, 2> fp8_quantize(const V& x, Fp8Quantize::Args a = {}, const V& amax = {}) {
  return record<Fp8Quantize>(a, x, amax);
}

}  // namespace hpcdl
