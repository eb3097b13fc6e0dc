#pragma once
// The weight of a linear layer in the order in which the CPU's products read it, for weights that stay as they are.
// linear() puts them into that order in every call: of 1024 rows in bf16 that is a tenth of its time on tile registers.

#include "hpcdl/core/buffer.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/gemm.h"

namespace hpcdl {

class PackedWeight {
 public:
  PackedWeight() = default;
  /// A copy of w, (N, K) or with `conv1d` (K, N), for activations of the type x: products are formed in it. It is laid
  /// out for the instruction set that is active.
  PackedWeight(Pool& pool, const View& w, DType x, bool conv1d = false);

  /// (N, K), of the type of the activations.
  const Spec& spec() const { return spec_; }
  /// What it takes: N up to whole vectors, K up to whole words; or rows of f32 (gemm::KernelSet::keeps_rows).
  std::int64_t bytes() const { return memory_.bytes(); }

 private:
  friend void linear(Stream&, Tensor, View, const PackedWeight&, View, View, Activation);
  Spec spec_;
  const gemm::KernelSet* set_ = nullptr;  // whose order it is
  Buffer memory_;
};

/// Checks operands; returns the spec of y, which has the type of x.
Spec linear_spec(const Spec& x, const PackedWeight& w, const Spec& bias, const Spec& residual);

/// y = act(x W^T + bias) + residual, on the CPU. The bits are those of Linear and ActivatedLinear where x has more than
/// gemm::KernelSet::kSmallRows rows; fewer meet an unpacked weight in another order of sums.
void linear(Stream& s, Tensor y, View x, const PackedWeight& w, View bias = {}, View residual = {},
            Activation activation = Activation::none);

}  // namespace hpcdl
