#pragma once
// The product of a linear layer, however its weight lies.

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/gemm.h"

namespace hpcdl::cpu {

/// z = A x B + bias; y = act(z) + residual. bias, residual and z may be absent.
template <class Isa>
void linear_product(Isa, Pool&, const gemm::Problem&, Tensor y, Tensor z, View bias, View residual, Activation);

}  // namespace hpcdl::cpu
