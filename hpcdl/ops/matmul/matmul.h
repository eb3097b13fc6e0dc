#pragma once
// y = scale * op(a) op(b), where op transposes the last two dims if requested.
//
// a (..., M, K), b (..., K, N) with the same leading dims, or b (K, N) for all of them; y (..., M, N). With
// `transpose_a` a is (..., K, M), with `transpose_b` b is (..., N, K). f32 or bf16, both the same; sums are f32.
// Gradients: da = scale dy op(b)^T, db = scale op(a)^T dy, transposed back if a or b was; a shared b receives the sum.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Matmul {
  static constexpr std::string_view name = "matmul";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0b11;
  struct Args {
    bool transpose_a = false, transpose_b = false;
    float scale = 1;
  };
  static Spec infer(const Spec& a, const Spec& b, const Args& t);
  static Cost cost(const Spec& a, const Spec& b, const Args& t) {
    return {.operations =
                2.0 * static_cast<double>(infer(a, b, t).size()) * static_cast<double>(a[t.transpose_a ? -2 : -1])};
  }
  static void forward(Stream& s, Tensor y, View a, View b, const Args& t);
  static void backward(Stream& s, Grad da, Grad db, View a, View b, View dy, const Args& t);
  using Backward = Operands<dIn<0>, dIn<1>, In<0>, In<1>, dOut<0>>;
};

namespace cpu {
template <class Isa> void matmul(Isa, Pool&, Tensor y, View a, View b, const Matmul::Args& t, const Numerics& numerics);
template <class Isa>
void matmul_backward(Isa, Pool&, Grad da, Grad db, View a, View b, View dy, const Matmul::Args& t,
                     const Numerics& numerics);
}  // namespace cpu
namespace cuda {
void matmul(Stream&, Tensor y, View a, View b, const Matmul::Args& t);
void matmul_backward(Stream&, Grad da, Grad db, View a, View b, View dy, const Matmul::Args& t);
}  // namespace cuda

inline Spec Matmul::infer(const Spec& a, const Spec& b, const Args& t) {
  require_float(name, a, "a"), require_float(name, b, "b");
  require(a.dtype == b.dtype && a.shape.rank() >= 2 && b.shape.rank() >= 2, name,
          "a and b must be matrices of one dtype, got {} and {}", to_string(a), to_string(b));
  const int batch = a.shape.rank() - 2;
  bool same = b.shape.rank() == 2 || b.shape.rank() == a.shape.rank();
  for (int i = 0; same && i < batch && b.shape.rank() > 2; ++i) same = a[i] == b[i];
  require(same, name, "b must be one matrix or have the leading dims of a, got {} and {}", to_string(a), to_string(b));
  require(!(t.transpose_a && batch > 0 && b.shape.rank() == 2), name,
          "a batch of transposed matrices needs a batch of b, got {} and {}", to_string(a), to_string(b));
  require(a[t.transpose_a ? -2 : -1] == b[t.transpose_b ? -1 : -2], name, "inner dims differ: {}{} and {}{}",
          to_string(a), t.transpose_a ? " transposed" : "", to_string(b), t.transpose_b ? " transposed" : "");
  Spec y = a;
  y.shape[-2] = a[t.transpose_a ? -1 : -2];
  y.shape[-1] = b[t.transpose_b ? -2 : -1];
  return y;
}

inline void Matmul::forward(Stream& s, Tensor y, View a, View b, const Args& t) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::matmul(isa, pool, y, a, b, t, s.numerics()); },
      [&](auto& q) { cuda::matmul(q, y, a, b, t); });
}
inline void Matmul::backward(Stream& s, Grad da, Grad db, View a, View b, View dy, const Args& t) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::matmul_backward(isa, pool, da, db, a, b, dy, t, s.numerics()); },
      [&](auto& q) { cuda::matmul_backward(q, da, db, a, b, dy, t); });
}

template <Symbolic V> V matmul(const V& a, const V& b, Matmul::Args t = {}) { return record<Matmul>(t, a, b); }

}  // namespace hpcdl
