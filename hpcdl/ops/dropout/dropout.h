#pragma once
// y = keep ? x / (1 - p) : 0, each element dropped with probability p. x, y: any shape, f32 or bf16.
//
// The mask is a pure function of (seed, rng_stream, step, element index), recomputed by backward and never stored: it
// does not depend on threads, and a resumed run draws the same mask as an uninterrupted one. If ranks share a batch,
// each holds one part of the elements: those of part p are numbered from p * size on, so the mask does not depend on
// the number of ranks either. Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from
// overfitting", 2014.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"
#include "hpcdl/rng.h"

namespace hpcdl {

struct Dropout {
  static constexpr std::string_view name = "dropout";
  static constexpr bool kInPlace = true;
  struct Args {
    float p = 0;
    std::uint64_t rng_stream = 0;  // Graph::next_rng_stream(): identifies this dropout in the model
    std::int64_t part = 0;         // index of this part, if ranks share the elements in equal parts
  };
  /// Random numbers of one step: element i is kept if uniform(i) >= p.
  static Rng draws(const StepParams& s, const Args& a) {
    return {s.seed, a.rng_stream ^ (static_cast<std::uint64_t>(s.step) << 32)};
  }
  static Spec infer(const Spec& x, const Args& a) {
    require_float(name, x);
    require(a.p >= 0 && a.p < 1, name, "p must lie in [0, 1), got {}", a.p);
    require(a.part >= 0, name, "part {}: expected a number from 0 on", a.part);
    return x;
  }
  static Cost cost(const Spec& x, const Args&) { return {.operations = 2.0 * static_cast<double>(x.size())}; }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

namespace cpu {
template <class Isa> void dropout(Isa, Pool&, Grad y, View x, const Rng& draws, const Dropout::Args& a);
}  // namespace cpu
namespace cuda {
void dropout(Stream&, Grad y, View x, const Dropout::Args& a);
}  // namespace cuda

inline void Dropout::forward(Stream& s, Tensor y, View x, const Args& a) {
  backward(s, Grad(y, Write::overwrite), x, a);
}
inline void Dropout::backward(Stream& s, Grad dx, View dy, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::dropout(isa, pool, dx, dy, draws(s.params(), a), a); },
      [&](auto& q) { cuda::dropout(q, dx, dy, a); });
}

/// Records nothing when p is 0.
template <Symbolic V> V dropout(const V& x, float p, std::int64_t part = 0) {
  if (p == 0) return x;
  return record<Dropout>({p, x.graph().next_rng_stream(), part}, x);
}

}  // namespace hpcdl
