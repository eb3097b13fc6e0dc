#pragma once
// y = x W^T + bias + residual with a quantised W, whose values are exact: activations are not rounded.
//
// x (..., K), f32, bf16 or f16; W (N, K), of a format of quant_format.h; bias (N) and residual (..., N) may be absent; y
// (..., N) has the dtype of x unless `out` says otherwise. Up to kFewRows rows are multiplied with values that are
// decoded in registers, and for more, panels of W are decoded to the type in which products of x are computed. GPUs have more
// ways (quant_ways.h). The gradient of x is dy W, and W has none.

#include <bit>

#include "hpcdl/op.h"
#include "hpcdl/ops/quant_linear/quant_format.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct QuantLinear {
  static constexpr std::string_view name = "quant_linear";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b1000001;  // x and residual
  static constexpr int kPasses = 6;              // dresidual = dy
  struct Args {
    QuantFormat format = QuantFormat::nf4;
    DType out = DType::none;
    /// No kernel writes W while the program runs: a GPU may read it before x is there.
    bool constant_weights = false;
  };
  static constexpr std::int64_t kFewRows = 8;

  static Spec infer(const Spec& x, const Spec& codes, const Spec& scale, const Spec& outer, const Spec& table,
                    const Spec& bias, const Spec& residual, const Args& a) {
    require_float(name, x, "x");
    const auto k = require_quantized(name, a.format, {codes, scale, outer, table});
    require(x[-1] == k, name, "input {} has {} columns, the weights need {}", to_string(x), x[-1], k);
    Spec y{x.shape, a.out == DType::none ? x.dtype : a.out};
    require_float(name, y, "output");
    y.shape[-1] = codes[0];
    if (bias) require_shape(name, "bias", require_float(name, bias, "bias"), {codes[0]});
    if (residual) require_spec(name, "residual", residual, y);
    return y;
  }
  static Cost cost(const Spec& x, const Spec& codes, const Spec&, const Spec&, const Spec&, const Spec&, const Spec&,
                   const Args&) {
    return {.operations = 2 * static_cast<double>(x.size()) * static_cast<double>(codes[0])};
  }
  /// As many as forward, in its unit: W has no gradient. x, which tells the unit, is no operand.
  static Cost backward_cost(const Spec& x, const Spec& codes, const Spec& scale, const Spec& outer, const Spec& table,
                            const Spec& bias, const Spec& residual, const Args& a) {
    Cost c = cost(x, codes, scale, outer, table, bias, residual, a);
    if (x.dtype != DType::f32) c.unit = unit_of(x.dtype);
    return c;
  }

  /// The rows of W that are decoded at a time, and the columns for the gradient: a panel that stays in a cache.
  static constexpr std::int64_t panel_rows(std::int64_t n, std::int64_t k) {
    return std::clamp(kPanelElements / std::max<std::int64_t>(k, 1) / 64 * 64, std::int64_t{64},
                      std::max(n, std::int64_t{64}));
  }
  static constexpr std::int64_t panel_columns(std::int64_t n, std::int64_t k) {
    return std::clamp(kPanelElements / std::max<std::int64_t>(n, 1) / 256 * 256, std::int64_t{256},
                      std::max(k, std::int64_t{256}));
  }
  /// A panel of W, and few rows of x in f32, in a number that is a power of two.
  static std::array<Spec, 2> scratch(const Spec& x, const Spec& codes, const Spec&, const Spec&, const Spec&,
                                     const Spec&, const Spec&, const Args&) {
    const std::int64_t n = codes[0], k = x[-1], rows = k > 0 ? x.size() / k : 0;
    const auto few = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::min(rows, kFewRows))));
    return {Spec{{panel_rows(n, k), k}, DType::f32}, Spec{{few, k}, DType::f32}};
  }
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec& codes, const Spec&, const Spec&, const Spec&,
                                              const Spec&, const Spec&, const Args&) {
    return {Spec{{codes[0], panel_columns(codes[0], x[-1])}, DType::f32}};
  }
  static void forward(Stream& s, Tensor y, View x, View codes, View scale, View outer, View table, View bias,
                      View residual, Tensor panel, Tensor rows, const Args& a);
  static void backward(Stream& s, Grad dx, Grad dbias, Grad dresidual, View codes, View scale, View outer, View table,
                       View dy, Tensor panel, const Args& a);
  using Backward = Operands<dIn<0>, dIn<5>, dIn<6>, In<1>, In<2>, In<3>, In<4>, dOut<0>, Scratch<0>>;

 private:
  static constexpr std::int64_t kPanelElements = 1 << 20;
};

namespace cpu {
template <class Isa>
void quant_linear(Isa, Pool&, Tensor y, View x, const QuantMatrix& w, View bias, View residual, Tensor panel,
                  Tensor rows, const Numerics& numerics);
template <class Isa>
void quant_linear_backward(Isa, Pool&, Grad dx, Grad dbias, Grad dresidual, const QuantMatrix& w, View dy, Tensor panel,
                           const Numerics& numerics);
}  // namespace cpu
namespace cuda {
void quant_linear(Stream&, Tensor y, View x, const QuantMatrix& w, View bias, View residual, bool constant_weights);
void quant_linear_backward(Stream&, Grad dx, Grad dbias, Grad dresidual, const QuantMatrix& w, View dy);
}  // namespace cuda

inline void QuantLinear::forward(Stream& s, Tensor y, View x, View codes, View scale, View outer, View table, View bias,
                                 View residual, Tensor panel, Tensor rows, const Args& a) {
  const QuantMatrix w{a.format, {codes, scale, outer, table}};
  on(
      s,
      [&](auto isa, Pool& pool) { cpu::quant_linear(isa, pool, y, x, w, bias, residual, panel, rows, s.numerics()); },
      [&](auto& q) { cuda::quant_linear(q, y, x, w, bias, residual, a.constant_weights); });
}
inline void QuantLinear::backward(Stream& s, Grad dx, Grad dbias, Grad dresidual, View codes, View scale, View outer,
                                  View table, View dy, Tensor panel, const Args& a) {
  const QuantMatrix w{a.format, {codes, scale, outer, table}};
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::quant_linear_backward(isa, pool, dx, dbias, dresidual, w, dy, panel, s.numerics());
      },
      [&](auto& q) { cuda::quant_linear_backward(q, dx, dbias, dresidual, w, dy); });
}

/// What the format does not have, bias and residual may be absent (default Vars).
template <Symbolic V>
V quant_linear(const V& x, const QuantParts<V>& w, const V& bias, const V& residual, QuantLinear::Args a) {
  return record<QuantLinear>(a, x, w.codes, w.scale, w.outer, w.table, bias, residual);
}

}  // namespace hpcdl
