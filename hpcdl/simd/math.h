#pragma once
// Elementary functions on Vec, the same source for every instruction set. Polynomials are minimax fits; errors are the
// largest seen against libm in double over the stated range (see math.test.cpp).

#include "hpcdl/simd/vec.h"

namespace hpcdl::simd {

/// e^x. Relative error < 3e-7 on [-87, 88]; 0 below -104, +inf above 88.73, NaN for NaN.
/// Range reduction x = n ln2 + r with a two-part ln2, degree-6 polynomial on r.
template <class Isa> inline Vec<Isa> exp(Vec<Isa> x) {
  using V = Vec<Isa>;
  // Operand order matters: min/max return their second operand for NaN.
  const V c = max(V(-104.0f), min(V(89.0f), x));
  const V n = round(c * V(1.44269504088896341f));
  V r = fma(n, V(-0.693145751953125f), c);
  r = fma(n, V(-1.42860682030941723212e-6f), r);
  V p = fma(V(1.3981999507e-3f), r, V(8.3334519073e-3f));
  p = fma(p, r, V(4.1665795894e-2f));
  p = fma(p, r, V(1.6666665459e-1f));
  p = fma(p, r, V(5.0000001201e-1f));
  p = fma(p, r * r, r);
  return scale2(p + V(1.0f), n);
}

/// 2^x. Relative error < 3e-7 on [-126, 127]; 0 below -150, +inf from 128 on, NaN for NaN. Cheaper than exp: the range
/// reduction is exact, and no argument needs a clamp. Degree-5 polynomial on [0, 1) that is 1 at 0: powers of two are
/// exact.
template <class Isa> inline Vec<Isa> exp2(Vec<Isa> x) {
  using V = Vec<Isa>;
  const V r = fraction(x);
  V p = fma(V(1.8671302133e-3f), r, V(9.0170300187e-3f));
  p = fma(p, r, V(5.5799913321e-2f));
  p = fma(p, r, V(2.4016445010e-1f));
  p = fma(p, r, V(6.9315131181e-1f));
  p = fma(p, r, V(1.0f));
  return scale2(p, x);
}

/// Natural logarithm for x > 0. Relative error < 3e-7 away from 1, absolute < 1e-7 near 1. -inf at 0, NaN below.
template <class Isa> inline Vec<Isa> log(Vec<Isa> x) {
  using V = Vec<Isa>;
  const V tiny(1.17549435e-38f);
  const auto subnormal = x < tiny;
  const V s = select(subnormal, x * V(0x1p24f), x);
  const V e = exponent(s) - select(subnormal, V(24.0f), V(0.0f)), f = mantissa(s) - V(1.0f);
  V p = fma(V(7.0376836292e-2f), f, V(-1.1514610310e-1f));
  p = fma(p, f, V(1.1676998740e-1f));
  p = fma(p, f, V(-1.2420140846e-1f));
  p = fma(p, f, V(1.4249322787e-1f));
  p = fma(p, f, V(-1.6668057665e-1f));
  p = fma(p, f, V(2.0000714765e-1f));
  p = fma(p, f, V(-2.4999993993e-1f));
  p = fma(p, f, V(3.3333331174e-1f));
  const V f2 = f * f;
  V y = f * f2 * p;
  y = fma(e, V(-2.12194440e-4f), y);
  y = fma(V(-0.5f), f2, y);
  y = y + f;
  y = fma(e, V(0.693359375f), y);
  const V inf(__builtin_inff());
  y = select(x == inf, inf, y);
  y = select(x == V(0.0f), V(0.0f) - inf, y);
  return select(x < V(0.0f), V(__builtin_nanf("")), select(x == x, y, x));
}

// Keeps powers to which 1 is added from underflowing: on an Intel Xeon such a result takes 180 cycles, which was a
// quarter of a product followed by GELU; and 1 + 2^-60 is 1, too.

/// 1 / (1 + 2^-x): the logistic function of x ln 2. Below x = -125: 2^-125. For arguments that are scaled anyway.
template <class Isa> inline Vec<Isa> logistic2(Vec<Isa> x) {
  using V = Vec<Isa>;
  return reciprocal(V(1.0f) + exp2(max(V(-60.0f), min(V(125.0f), V(0.0f) - x))));
}

/// 1 / (1 + e^-x). Relative error < 5e-7 for x > -86, e^-86 below.
template <class Isa> inline Vec<Isa> sigmoid(Vec<Isa> x) {
  using V = Vec<Isa>;
  return reciprocal(V(1.0f) + exp(max(V(-60.0f), min(V(86.0f), V(0.0f) - x))));
}

/// tanh written from exp: 1 - 2 / (e^2x + 1); an odd polynomial near 0, where that form cancels. Error < 4e-7 relative.
template <class Isa> inline Vec<Isa> tanh(Vec<Isa> x) {
  using V = Vec<Isa>;
  const V wide = V(1.0f) - V(2.0f) / (exp(x + x) + V(1.0f));
  const V z = x * x;
  V p = fma(V(-5.70498872745e-3f), z, V(2.06390887954e-2f));
  p = fma(p, z, V(-5.37397155531e-2f));
  p = fma(p, z, V(1.33314422036e-1f));
  p = fma(p, z, V(-3.33332819422e-1f));
  const V near = fma(p * z, x, x);
  return select(abs(x) < V(0.625f), near, wide);
}

/// erf(x). Abramowitz & Stegun 7.1.26 is too coarse for float, so: odd polynomial below 1, 1 - e^{-x^2} q(1/(1+p|x|))
/// above. Absolute error < 3e-7.
template <class Isa> inline Vec<Isa> erf(Vec<Isa> x) {
  using V = Vec<Isa>;
  const V z = x * x, a = abs(x);
  // Maclaurin series of erf(x)/x in x^2: coefficients 2/sqrt(pi) * (-1)^k / (k! (2k+1)), k = 9 .. 0.
  V p = V(-1.6365844691234924e-7f);
  p = fma(p, z, V(1.6462114365889246e-6f));
  p = fma(p, z, V(-1.4925650358406252e-5f));
  p = fma(p, z, V(1.2055332981789664e-4f));
  p = fma(p, z, V(-8.5483270234508524e-4f));
  p = fma(p, z, V(5.2239776254421878e-3f));
  p = fma(p, z, V(-2.6866170645131252e-2f));
  p = fma(p, z, V(1.1283791670955126e-1f));
  p = fma(p, z, V(-3.7612638903183752e-1f));
  p = fma(p, z, V(1.1283791670955126f));
  const V small = p * x;
  // Numerical Recipes' erfc fit (Chebyshev in t = 1/(1+|x|/2)), fractional error 1.2e-7.
  const V t = V(1.0f) / fma(V(0.5f), a, V(1.0f));
  V q = fma(V(0.17087277f), t, V(-0.82215223f));
  q = fma(q, t, V(1.48851587f));
  q = fma(q, t, V(-1.13520398f));
  q = fma(q, t, V(0.27886807f));
  q = fma(q, t, V(-0.18628806f));
  q = fma(q, t, V(0.09678418f));
  q = fma(q, t, V(0.37409196f));
  q = fma(q, t, V(1.00002368f));
  q = fma(q, t, V(-1.26551223f));
  const V tail = V(1.0f) - t * exp(q - z);
  const V large = select(x < V(0.0f), V(0.0f) - tail, tail);
  return select(a < V(1.0f), small, large);
}

}  // namespace hpcdl::simd
