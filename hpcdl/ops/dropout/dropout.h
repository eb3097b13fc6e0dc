#pragma once
// y = keep ? x / (1 - p) : 0, each element dropped with probability p. x, y: any shape, f32 or bf16.
//
// The mask is a pure function of (seed, rng_stream, step, element index), recomputed by backward and never stored: it
// does not depend on threads, and a resumed run draws the same mask as an uninterrupted one. If ranks share a batch,
// each holds one part of the elements: those of part p are numbered from p * size on, so the mask does not depend on
// the number of ranks either. A rank that has two chunks of every row of its part (Chunks) draws what they have in it.
// Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from
// overfitting", 2014.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"
#include "hpcdl/rng.h"

namespace hpcdl {

struct Dropout {
  static constexpr std::string_view name = "dropout";
  static constexpr bool kInPlace = true;
  /// x (2 rows, ...) holds chunk `first` of all rows of a part, then chunk `second` of all; a row has `all` chunks.
  struct Chunks {
    int rows = 0;  // 0: x is the whole part
    int all = 1, first = 0, second = 0;
    bool valid() const { return rows == 0 || (rows > 0 && all >= 2 && inside(first) && inside(second)); }
    bool inside(int i) const { return i >= 0 && i < all; }
  };
  struct Args {
    float p = 0;
    std::uint64_t rng_stream = 0;  // Graph::next_rng_stream(): identifies this dropout in the model
    std::int64_t part = 0;         // index of this part, if ranks share the elements in equal parts
    Chunks chunks = {};
  };
  /// Random numbers of one step: element i is kept if uniform(i) >= p.
  static Rng draws(const StepParams& s, const Args& a) {
    return {s.seed, a.rng_stream ^ (static_cast<std::uint64_t>(s.step) << 32)};
  }
  static Spec infer(const Spec& x, const Args& a) {
    require_float(name, x);
    require(a.p >= 0 && a.p < 1, name, "p must lie in [0, 1), got {}", a.p);
    require(a.part >= 0, name, "part {}: expected a number from 0 on", a.part);
    require(a.chunks.rows == 0 || (a.chunks.valid() && x.shape.rank() >= 2 && x[0] == 2 * a.chunks.rows), name,
            "expected two of {} chunks of {} rows, got {}", a.chunks.all, a.chunks.rows, to_string(x));
    return x;
  }
  static Cost cost(const Spec& x, const Args&) { return {.operations = 2.0 * static_cast<double>(x.size())}; }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  static void backward(Stream& s, Grad dx, View dy, const Args& a);
  using Backward = Operands<dIn<0>, dOut<0>>;

 private:
  /// f(y, x, args) for every chunk of every row, with the chunk as a part of its own.
  template <class F> static void each_chunk(const Grad& y, const View& x, const Args& a, F&& f) {
    Spec one = x.spec();
    one.shape[0] = 1;
    const auto block = [&](const auto& t, std::int64_t i) {
      auto* const at =
          const_cast<std::byte*>(t.template ptr<std::byte>()) + i * t.strides()[0] * dtype_bytes(t.dtype());
      return Tensor(at, one, t.strides(), t.device());
    };
    const auto rows = std::int64_t{a.chunks.rows};
    for (std::int64_t i = 0; i < x[0]; ++i) {
      const auto row = a.part * rows + i % rows;
      const int chunk = i < rows ? a.chunks.first : a.chunks.second;
      f(Grad(block(y, i), y.write()), View(block(x, i)), Args{a.p, a.rng_stream, row * a.chunks.all + chunk, {}});
    }
  }
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
  if (a.chunks.rows > 0)
    return each_chunk(dx, dy, a,
                      [&](const Grad& to, const View& from, const Args& part) { backward(s, to, from, part); });
  on(
      s, [&](auto isa, Pool& pool) { cpu::dropout(isa, pool, dx, dy, draws(s.params(), a), a); },
      [&](auto& q) { cuda::dropout(q, dx, dy, a); });
}

/// Records nothing when p is 0.
template <Symbolic V> V dropout(const V& x, float p, std::int64_t part = 0, Dropout::Chunks chunks = {}) {
  if (p == 0) return x;
  return record<Dropout>({p, x.graph().next_rng_stream(), part, chunks}, x);
}

}  // namespace hpcdl
