#pragma once
// Rounds x to 8-bit floats twice, as it is and transposed: for a training step, whose products sum over the columns of x
// in one pass and over its rows in the other.
//
// x (..., K) of M rows, f32, bf16 or f16. q is like x; qt is (K, M), or (0) unless `both` are wanted. An element is
// to_f8(x * (1 / scale)), as fp8_quantize rounds it. `scales`, f32, are
//
//   tensor   (1), of both. With a `history` (ops/fp8_amax) it is the scale of the largest magnitude of the last steps:
//            x is then read once, and larger elements become the largest finite number. If no magnitude is known, or
//            without a history, x is measured first
//   row      (M + K): of the rows of q, then of those of qt; (M) without qt
//
// `amax`, f32: the largest magnitudes of x, NaN ignored, of the tiles of 128 x 128 from left to right and top to bottom
// (by tensor), or those that belong to the scales (by row). The same bits on every device. No gradient.

#include "hpcdl/op.h"
#include "hpcdl/ops/fp8_amax/history.h"
#include "hpcdl/ops/fp8_quantize/fp8_quantize.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Fp8Cast {
  static constexpr std::string_view name = "fp8_cast";
  static constexpr std::int64_t kTile = Fp8Quantize::kBlock;
  struct Args {
    DType to = DType::f8_e4m3;
    Fp8Scaling scaling = Fp8Scaling::tensor;
    bool both = true;
    std::int32_t column = 0;  // of the history
  };
  /// q, qt, scales, amax.
  static std::array<Spec, 4> infer(const Spec& x, const Spec& history, const Args& a) {
    require_float(name, x, "x");
    require(is_f8_dtype(a.to), name, "can round to F8_E4M3 or F8_E5M2, got {}", dtype_name(a.to));
    require(x.shape.rank() >= 1, name, "x must be (..., K), got {}", to_string(x));
    require(a.scaling == Fp8Scaling::tensor || a.scaling == Fp8Scaling::row, name,
            "scales can be of the tensor or of its rows");
    if (history)
      require(a.scaling == Fp8Scaling::tensor && is_amax_history(history, a.column), name,
              "expected a history ({}, T) with a column {}, for the scale of a tensor, got {}", 1 + kAmaxSteps,
              a.column, to_string(history));
    const std::int64_t k = x[-1], m = k > 0 ? x.size() / k : 0;
    const auto tiles = [](std::int64_t n) { return (n + kTile - 1) / kTile; };
    const bool rows = a.scaling == Fp8Scaling::row;
    const Spec scales{{!rows ? 1 : a.both ? m + k : m}, DType::f32};
    return {Spec{x.shape, a.to}, Spec{a.both ? Shape{k, m} : Shape{0}, a.to}, scales,
            rows ? scales : Spec{{tiles(m) * tiles(k)}, DType::f32}};
  }
  static Cost cost(const Spec& x, const Spec& history, const Args&) {
    return {.operations = 2 * static_cast<double>(x.size()),
            .unit = Unit::f32,
            .reads = history ? 0 : static_cast<double>(x.bytes())};
  }
  static void forward(Stream& s, Tensor q, Tensor qt, Tensor scales, Tensor amax, View x, View history, const Args& a);
};

/// The operands of a cast, as kernels receive them.
struct Fp8CastCall {
  Tensor q, qt, scales, amax;
  View x, history;
  Fp8Cast::Args args;

  bool by_rows() const { return args.scaling == Fp8Scaling::row; }
};

namespace cpu {
template <class Isa> void fp8_cast(Isa, Pool&, const Fp8CastCall& c);
}  // namespace cpu
namespace cuda {
void fp8_cast(Stream&, const Fp8CastCall& c);
}  // namespace cuda

inline void Fp8Cast::forward(Stream& s, Tensor q, Tensor qt, Tensor scales, Tensor amax, View x, View history,
                             const Args& a) {
  const Fp8CastCall c{q, qt, scales, amax, x, history, a};
  on(s, [&](auto isa, Pool& pool) { cpu::fp8_cast(isa, pool, c); }, [&](auto& g) { cuda::fp8_cast(g, c); });
}

/// q, qt, scales, amax. The history may be default (absent).
template <Symbolic V> std::array<V, 4> fp8_cast(const V& x, Fp8Cast::Args a = {}, const V& history = {}) {
  return record<Fp8Cast>(a, x, history);
}

}  // namespace hpcdl
