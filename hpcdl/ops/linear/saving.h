#pragma once
// The f32 product of a linear layer that keeps z, the argument of its activation, for backward.

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/gemm.h"

namespace hpcdl::cpu {

/// y = act(z) + residual with z = A x B + bias; bias and residual may be null. All of them are f32.
template <class Isa>
void linear_saving(Isa, Pool&, const gemm::Problem&, Tensor y, Tensor z, View bias, View residual, Activation);

}  // namespace hpcdl::cpu
