#pragma once
// A fused chain that no op of the library has: y = gelu(x + bias). Shows what fuse/ costs to use: one body, one loop.

#include "hpcdl/core/pool.h"
#include "hpcdl/core/tensor.h"

namespace hpcdl::cpu {

/// x, y: (rows, C), bias: (C), all f32 or all bf16.
template <class Isa> void bias_gelu(Isa, Pool&, Tensor y, View x, View bias);

}  // namespace hpcdl::cpu
