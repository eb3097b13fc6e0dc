#pragma once
// The weight of a linear layer in the order in which the CPU's products read it, for weights that do not change.
// Otherwise linear() packs the weight in every call: for 1024 rows in bf16 that is a tenth of its time on tile
// registers.

#include "hpcdl/buffer.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/gemm.h"

namespace hpcdl {

class PackedWeight {
 public:
  PackedWeight() = default;
  /// A copy of w, (N, K) or with `conv1d` (K, N), for activations of type x, in which products are computed. The layout
  /// is that of the active instruction set.
  PackedWeight(Pool& pool, const View& w, DType x, bool conv1d = false);

  /// (N, K), in the type of the activations.
  const Spec& spec() const { return spec_; }
  /// Its size in bytes: N rounded up to whole vectors, K to whole words; or rows of f32 (gemm::KernelSet::keeps_rows).
  std::int64_t bytes() const { return memory_.bytes(); }

 private:
  friend void linear(Stream&, Tensor, View, const PackedWeight&, View, View, Activation);
  Spec spec_;
  const gemm::KernelSet* set_ = nullptr;  // determines the layout
  Buffer memory_;
};

/// Checks operands; returns the spec of y, which has the type of x.
Spec linear_spec(const Spec& x, const PackedWeight& w, const Spec& bias, const Spec& residual);

/// y = act(x W^T + bias) + residual, on the CPU. The bits equal those of Linear and ActivatedLinear if x has more than
/// gemm::KernelSet::kSmallRows rows; fewer rows multiply an unpacked weight with another order of sums.
void linear(Stream& s, Tensor y, View x, const PackedWeight& w, View bias = {}, View residual = {},
            Activation activation = Activation::none);

}  // namespace hpcdl
