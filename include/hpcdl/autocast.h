#pragma once
// Mixed precision as a policy: the type in which each class of ops computes, applied while a program is recorded.
//
//   Graph::Autocast scope(g, AutocastPolicy{.product = DType::f16});
//   const Var loss = model.loss(g, ...);       // written without types
//
// If an input has another type than that of its class, a Cast is recorded before the op, with its gradient;
// a value is cast once per program and type. Element-wise ops and classes of type `none` follow their inputs, at the
// widest of their types: f32 with bf16 gives f32. Parameters of layers, convolutions and norms keep their types:
// kernels round f32 weights while reading them for a product, or read the rounded copies that a model keeps
// (nn::Param::copy), and the gradients of the weights are f32. Optimizers are not affected: weights and moments are
// f32 for any policy.
//
// Kernels of norms, softmax and losses read and write the type of their input, but statistics, sums and all arithmetic
// are f32 in any case: `none` already gives what others call "norms in fp32", without a copy of the
// activations. strict() has them read and write f32 too, so that the result of a norm or a softmax is not rounded
// before it is multiplied.

#include <string>

#include "hpcdl/dtype.h"
#include "hpcdl/op.h"

namespace hpcdl {

struct AutocastPolicy {
  DType product = DType::bf16;  // matmul, linear, attention, convolution, the head of a language model; sums are f32
  DType norm = DType::none, softmax = DType::none, loss = DType::none;

  static AutocastPolicy strict(DType product) { return {product, DType::f32, DType::f32, DType::f32}; }

  DType of(OpClass c) const {
    const DType types[kOpClasses] = {DType::none, product, norm, softmax, loss, DType::none};
    return types[static_cast<int>(c)];
  }
  bool operator==(const AutocastPolicy&) const = default;
};

/// "products bf16, norms f32 on the type of their input, ...".
std::string to_string(const AutocastPolicy& p);

}  // namespace hpcdl
