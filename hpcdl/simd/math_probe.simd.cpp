#include "hpcdl/simd/math_probe.h"

#include "hpcdl/simd/math.h"

namespace hpcdl::simd {
namespace {

template <class V> V apply(MathFn fn, V x) {
  switch (fn) {
    case MathFn::exp: return exp(x);
    case MathFn::log: return log(x);
    case MathFn::exp2: return exp2(x);
    case MathFn::tanh: return tanh(x);
    case MathFn::sigmoid: return sigmoid(x);
    case MathFn::erf: return erf(x);
    case MathFn::bf16_round: {
      bf16 t[V::N];
      x.store(t);
      return V::load(t);
    }
  }
  return x;
}

}  // namespace

template <class Isa> void math_probe(Isa, MathFn fn, float* y, const float* x, int n) {
  using V = Vec<Isa>;
  for (int i = 0; i < n; i += V::N) {
    const int left = n - i < V::N ? n - i : V::N;
    apply(fn, V::load(x + i, left)).store(y + i, left);
  }
}

template void math_probe(Isa, MathFn, float*, const float*, int);

}  // namespace hpcdl::simd
