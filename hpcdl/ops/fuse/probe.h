#pragma once
// Some chains as array functions, so that tests reach every instruction set.

#include "hpcdl/pool.h"
#include "hpcdl/tensor.h"

namespace hpcdl::fuse {

enum class Probe { scale_bias_gelu_residual, softmax, rms_norm, layer_norm };

/// x, y: (R, C); w, b: (C). `scale_bias_gelu_residual`: gelu(2 x + b) + x; softmax of 0.5 x; norms with eps 1e-5.
template <class Isa> void probe(Isa, Pool&, Probe which, const Grad& y, View x, View w, View b);

}  // namespace hpcdl::fuse
