#pragma once
// The product of a linear layer, for any layout of the weight.

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/gemm.h"

namespace hpcdl::cpu {

/// z = A x B + bias; y = act(z) + residual. bias, residual and z may be absent.
template <class Isa>
void linear_product(Isa, Pool&, const gemm::Problem&, Tensor y, Tensor z, View bias, View residual, Activation);

}  // namespace hpcdl::cpu
