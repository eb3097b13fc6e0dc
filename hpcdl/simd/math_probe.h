#pragma once
// The elementary functions as array calls, so that tests reach every instruction set.

#include "hpcdl/simd/isa.h"

namespace hpcdl::simd {

enum class MathFn { exp, exp2, log, tanh, sigmoid, erf, bf16_round };

/// y[i] = fn(x[i]) for i in [0, n).
template <class Isa> void math_probe(Isa, MathFn fn, float* y, const float* x, int n);

}  // namespace hpcdl::simd
