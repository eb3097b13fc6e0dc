#pragma once
// The last layer of a language model and its loss in one op: loss = sum over valid rows of cross-entropy(h W^T,
// target), count = number of valid rows; see cross_entropy.h for both.
//
// h: (..., C), W: (V, C), f32, bf16 or f16 each; targets: (...) i32. Products are computed in h's type, sums in f32.
// The logits are computed in chunks of columns that stay in cache: each chunk of W is read once per pass, each chunk of
// dW written once. Backward needs the logits again:
//   keep_logits = false   recomputed: (rows, V) is never stored; 8 multiply-adds per logit and channel, not 6
//   keep_logits = true    kept in h's type: as fast as separate layers, without a gradient of logits in memory
// The loss is that of unrounded logits either way, and both give the same bits in f32.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct LmHeadLoss {
  static constexpr std::string_view name = "lm_head_loss";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b1;
  static constexpr int kAux = 2;
  struct Args {
    bool keep_logits = false;
  };
  /// Columns per chunk: about 2 Mi logits, but enough columns for an efficient product.
  static std::int64_t chunk(std::int64_t rows, std::int64_t vocab) {
    const std::int64_t want = (std::int64_t{2} << 20) / (rows > 0 ? rows : 1) / 64 * 64,
                       least = want < 1024 ? 1024 : want;
    return least < vocab ? least : vocab;
  }
  /// Columns of one chunk on a CPU. Where rows must not depend on their number, the fewest that chunk() gives.
  static std::int64_t chunk(std::int64_t rows, std::int64_t vocab, const Numerics& numerics) {
    return numerics.row_invariant ? chunk(std::int64_t{1} << 40, vocab) : chunk(rows, vocab);
  }
  /// loss, count, lse (2, rows) with its rounding error (far_lse.h), logits (empty unless they are kept).
  static std::array<Spec, 4> infer(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
    require_float(name, h, "hidden states");
    require_float(name, w, "weights");
    require(w.shape.rank() == 2 && w[1] == h[-1] && w.size() > 0, name, "weights must be (V, {}), got {}", h[-1],
            to_string(w));
    Shape rows;
    for (int i = 0; i + 1 < h.shape.rank(); ++i) rows.push_back(h[i]);
    if (rows.rank() == 0) rows.push_back(1);
    require_spec(name, "targets", targets, {rows, DType::i32});
    const Spec one{{1}, DType::f32};
    return {one, one, Spec{{2, rows.size()}, DType::f32}, Spec{{rows.size(), a.keep_logits ? w[0] : 0}, h.dtype}};
  }
  static Cost cost(const Spec& h, const Spec& w, const Spec& targets, const Args&) {
    return {.operations = 2.0 * static_cast<double>(targets.size()) * static_cast<double>(w.size()),
            .unit = unit_of(h.dtype)};
  }
  static Cost backward_cost(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
    const Cost once = cost(h, w, targets, a);
    return {.operations = (a.keep_logits ? 2 : 3) * once.operations, .unit = once.unit};
  }
  /// A chunk of logits, and per row: maximum, sum, logit of the target, loss.
  static std::array<Spec, 2> scratch(const Spec& h, const Spec& w, const Spec& targets, const Args&) {
    return {chunk_spec(h, w), Spec{{4, targets.size()}, DType::f32}};
  }
  /// A chunk of the logits' gradient, and dh in f32.
  static std::array<Spec, 2> backward_scratch(const Spec& h, const Spec& w, const Spec&, const Args&) {
    return {chunk_spec(h, w), Spec{h.shape, DType::f32}};
  }
  static void forward(Stream& s, Tensor loss, Tensor count, Tensor lse, Tensor logits, View h, View w, View targets,
                      Tensor chunk, Tensor stats, const Args&);
  static void backward(Stream& s, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits, View dloss,
                       Tensor chunk, Tensor sum, const Args&);
  using Backward = Operands<dIn<0>, dIn<1>, In<0>, In<1>, In<2>, Out<2>, Out<3>, dOut<0>, Scratch<0>, Scratch<1>>;

 private:
  static Spec chunk_spec(const Spec& h, const Spec& w) {
    const auto rows = h.size() / h[-1];
    return {{rows, chunk(rows, w[0])}, DType::f32};
  }
};

namespace cpu {
/// loss, count and, if requested, lse (2, rows) and logits. For backward a lse of (rows) is sufficient.
template <class Isa>
void lm_head_loss(Isa, Pool&, Tensor loss, Tensor count, Tensor lse, Tensor logits, View h, View w, View targets,
                  Tensor chunk, Tensor stats, const Numerics& numerics);
template <class Isa>
void lm_head_loss_backward(Isa, Pool&, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits,
                           float dloss, Tensor chunk, Tensor sum, const Numerics& numerics);
}  // namespace cpu
namespace cuda {
void lm_head_loss(Stream&, Tensor loss, Tensor count, Tensor lse, Tensor logits, View h, View w, View targets,
                  Tensor chunk, Tensor stats);
void lm_head_loss_backward(Stream&, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits, View dloss,
                           Tensor chunk, Tensor sum);
}  // namespace cuda

inline void LmHeadLoss::forward(Stream& s, Tensor loss, Tensor count, Tensor lse, Tensor logits, View h, View w,
                                View targets, Tensor chunk, Tensor stats, const Args&) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::lm_head_loss(isa, pool, loss, count, lse, logits, h, w, targets, chunk, stats, s.numerics());
      },
      [&](auto& q) { cuda::lm_head_loss(q, loss, count, lse, logits, h, w, targets, chunk, stats); });
}
inline void LmHeadLoss::backward(Stream& s, Grad dh, Grad dw, View h, View w, View targets, View lse, View logits,
                                 View dloss, Tensor chunk, Tensor sum, const Args&) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        cpu::lm_head_loss_backward(isa, pool, dh, dw, h, w, targets, lse, logits, dloss ? *dloss.ptr<float>() : 0.0f,
                                   chunk, sum, s.numerics());
      },
      [&](auto& q) { cuda::lm_head_loss_backward(q, dh, dw, h, w, targets, lse, logits, dloss, chunk, sum); });
}

/// {loss, count}.
template <Symbolic V> auto lm_head_loss(const V& h, const V& w, const V& targets, LmHeadLoss::Args a = {}) {
  return record<LmHeadLoss>(a, h, w, targets);
}

}  // namespace hpcdl
