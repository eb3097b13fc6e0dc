#pragma once
// y = x W^T + bias + residual for a block-diagonal W, with the outputs of the blocks interleaved.
//
// x (..., B P) holds the inputs of B blocks one after another; W (B, Q, P); y (..., B Q). The Q outputs of a block are G
// `groups` of S = Q / G. Output (g, t) of block b is y[(g B + b) S + t], so a group of y holds what all blocks give to it:
//
//   y[.., (g B + b) S + t] = sum_c W[b, g S + t, c] x[.., b P + c] + bias[(g B + b) S + t] + residual[..]
//
// With one group the outputs of a block follow each other. With G = B' groups, y has the inputs of B' further blocks, and
// two such layers are a Monarch matrix: P L P^T R with block-diagonal L and R (Dao et al., "Monarch: expressive structured
// matrices for efficient and accurate training", 2022). bias (B Q) and residual may be absent. f32, bf16 or f16 each;
// products are computed in the dtype of x, sums are f32. Gradients: those of the affine layer, block by block.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct BlockLinear {
  static constexpr std::string_view name = "block_linear";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b1001;  // as Linear
  static constexpr int kPasses = 3, kSplits = 1;
  struct Args {
    std::int64_t groups = 1;
  };
  static Spec infer(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual, const Args& a) {
    require_float(name, x, "x"), require_float(name, w, "weight");
    require(w.shape.rank() == 3 && x[-1] == w[0] * w[2], name,
            "weight must be (B, Q, P) with B P = {} for x {}, got {}", x[-1], to_string(x), to_string(w));
    require(a.groups >= 1 && w[1] % a.groups == 0, name,
            "groups must divide the {} outputs of a block of weight {}, got {}", w[1], to_string(w), a.groups);
    Spec y = x;
    y.shape[-1] = w[0] * w[1];
    if (bias) require_shape(name, "bias", require_float(name, bias, "bias"), {y[-1]});
    if (residual) require_spec(name, "residual", residual, y);
    return y;
  }
  static Cost cost(const Spec& x, const Spec& w, const Spec&, const Spec&, const Args&) {
    const auto rows = static_cast<double>(x.size()) / static_cast<double>(x[-1] > 0 ? x[-1] : 1);
    return {.operations = 2 * rows * static_cast<double>(w.size())};
  }
  static void forward(Stream& s, Tensor y, View x, View w, View bias, View residual, const Args& a);
  /// dy with the outputs of a block next to each other; nothing if they are so in dy.
  static std::array<Spec, 1> backward_scratch(const Spec& x, const Spec& w, const Spec& bias, const Spec& residual,
                                              const Args& a) {
    return {a.groups > 1 && w[0] > 1 ? infer(x, w, bias, residual, a) : Spec{{0}, x.dtype}};
  }
  static void backward(Stream& s, Grad dx, Grad dw, Grad dbias, Grad dresidual, View x, View w, View dy, Tensor blocks,
                       const Args& a);
  using Backward = Operands<dIn<0>, dIn<1>, dIn<2>, dIn<3>, In<0>, In<1>, dOut<0>, Scratch<0>>;
};

/// The operands of a backward pass; `blocks` is its scratch.
struct BlockLinearGradients {
  Grad dx, dw, dbias, dresidual;
  View x, w, dy;
  Tensor blocks;
};

namespace cpu {
template <class Isa>
void block_linear(Isa, Pool&, Tensor y, View x, View w, View bias, View residual, const BlockLinear::Args& a,
                  const Numerics& numerics);
template <class Isa>
void block_linear_backward(Isa, Pool&, const BlockLinearGradients& g, const BlockLinear::Args& a,
                           const Numerics& numerics);
}  // namespace cpu

inline void BlockLinear::forward(Stream& s, Tensor y, View x, View w, View bias, View residual, const Args& a) {
  on(s, [&](auto isa, Pool& pool) { cpu::block_linear(isa, pool, y, x, w, bias, residual, a, s.numerics()); });
}
inline void BlockLinear::backward(Stream& s, Grad dx, Grad dw, Grad dbias, Grad dresidual, View x, View w, View dy,
                                  Tensor blocks, const Args& a) {
  const BlockLinearGradients g{
      .dx = dx, .dw = dw, .dbias = dbias, .dresidual = dresidual, .x = x, .w = w, .dy = dy, .blocks = blocks};
  on(s, [&](auto isa, Pool& pool) { cpu::block_linear_backward(isa, pool, g, a, s.numerics()); });
}

/// bias and residual may be default (absent).
template <Symbolic V>
V block_linear(const V& x, const V& w, BlockLinear::Args a = {}, const V& bias = {}, const V& residual = {}) {
  return record<BlockLinear>(a, x, w, bias, residual);
}

}  // namespace hpcdl
