#pragma once
// lm_head_loss.h for training in one pass: forward computes the loss and, while a block of logits is available, the
// gradients from it. This takes 6 multiply-adds per logit and channel where recomputing takes 8, and no more logits in
// memory than one block of rows; in exchange the gradients of h and W are kept as auxiliary outputs until backward
// multiplies them by the upstream gradient.
//
// A GPU uses blocks of rows and logits rounded to h's type (f16: gradients times kUnit16, since probabilities are far
// below its range). A CPU iterates over blocks of columns like lm_head_loss, with that op's bits if the upstream
// gradient is 1.

#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"

namespace hpcdl {

struct LmHeadGradient {
  static constexpr std::string_view name = "lm_head_gradient";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b1;
  static constexpr int kAux = 2;
  static constexpr float kUnit16 = 1024;
  struct Args {
    bool frozen = false;  // W is not trained, and has no gradient
  };
  /// The factor by which the auxiliary outputs are scaled.
  static float unit(DType d) { return d == DType::f16 ? kUnit16 : 1.0f; }
  /// Rows per block: about half a GiB of 16-bit logits, in tiles of 128 rows that fill a GPU.
  static std::int64_t block(std::int64_t rows, std::int64_t vocab) {
    const std::int64_t want = (std::int64_t{5632} * 50304 / vocab + 127) / 128 * 128, least = want < 128 ? 128 : want;
    return least < rows ? least : rows;
  }
  /// Logits between rows of a block on a GPU: rows begin at multiples of 128 bytes, which its products read at full speed.
  static std::int64_t pitch(std::int64_t vocab) { return (vocab + 63) / 64 * 64; }
  /// loss, count, d loss / dh, d loss / dW (empty if W is frozen).
  static std::array<Spec, 4> infer(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
    const auto outs = LmHeadLoss::infer(h, w, targets, {});
    return {outs[0], outs[1], h, Spec{a.frozen ? Shape{0, w[1]} : w.shape, DType::f32}};
  }
  static Cost cost(const Spec& h, const Spec& w, const Spec& targets, const Args& a) {
    const Cost once = LmHeadLoss::cost(h, w, targets, {});
    return {.operations = (a.frozen ? 2 : 3) * once.operations, .unit = once.unit};
  }
  static Cost backward_cost(const Spec& h, const Spec& w, const Spec&, const Args& a) {
    return {.operations = static_cast<double>(h.size() + (a.frozen ? 0 : w.size())), .unit = Unit::f32};
  }
  /// Logits in the device's layout, followed by dh in f32 on a CPU; per row: lse and its rounding error, or loss, and
  /// what lm_head_loss keeps.
  static std::array<Spec, 2> scratch(const Spec& h, const Spec& w, const Spec& targets, const Args&) {
    const auto rows = targets.shape.size();
    const auto gpu = block(rows, w[0]) * pitch(w[0]) * dtype_bytes(h.dtype),
               cpu = 4 * (rows * LmHeadLoss::chunk(rows, w[0]) + h.size());
    return {Spec{{gpu > cpu ? gpu : cpu}, DType::u8}, Spec{{6, rows}, DType::f32}};
  }
  static void forward(Stream& s, Tensor loss, Tensor count, Tensor dh, Tensor dw, View h, View w, View targets,
                      Tensor logits, Tensor stats, const Args&);
  static void backward(Stream& s, Grad dh, Grad dw, View unit_dh, View unit_dw, View dloss, const Args&);
  using Backward = Operands<dIn<0>, dIn<1>, Out<2>, Out<3>, dOut<0>>;
};

namespace cpu {
/// to (+)= from * factor
template <class Isa> void scale_gradient(Isa, Pool&, Grad to, View from, float factor);
}  // namespace cpu
namespace cuda {
void lm_head_gradient(Stream&, Tensor loss, Tensor count, Tensor dh, Tensor dw, View h, View w, View targets,
                      Tensor logits, Tensor row_loss);
/// to (+)= from * dloss / unit
void scale_gradient(Stream&, Grad to, View from, View dloss, float unit);
}  // namespace cuda

/// {loss, count}.
template <Symbolic V> auto lm_head_gradient(const V& h, const V& w, const V& targets, LmHeadGradient::Args a = {}) {
  return record<LmHeadGradient>(a, h, w, targets);
}

}  // namespace hpcdl
