#pragma once
// y = softmax(scale * x) over the last dim, optionally causal.
//
// x, y: (..., C), f32 or bf16. With `causal`, row r (counted within the last two dims, (..., R, C)) sees columns 0 .. r
// + C - R; the others are 0. The row maximum is subtracted, so no finite input overflows; a row of -inf gives NaN, as
// in every framework. One read of x and one write of y; columns that a causal row does not see are read neither forward
// nor backward, and their gradient is 0. Source: Milakov & Gimelshein, "Online normalizer calculation for softmax",
// 2018.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Softmax {
  static constexpr std::string_view name = "softmax";
  static constexpr OpClass kClass = OpClass::softmax;
  static constexpr unsigned kCasts = 0b1;
  static constexpr bool kInPlace = true;
  struct Args {
    float scale = 1;
    bool causal = false;
  };
  static Spec infer(const Spec& x, const Args& a) {
    require_float(name, x);
    require(!a.causal || (x.shape.rank() >= 2 && x[-1] >= x[-2]), name, "causal needs (..., R, C) with R <= C, got {}",
            to_string(x));
    return x;
  }
  /// The number of elements that their rows see: the others are neither read nor computed.
  static double seen(const Spec& x, const Args& a) {
    const auto all = static_cast<double>(x.size());
    if (!a.causal || x.size() == 0) return all;
    const auto rows = static_cast<double>(x[-2]), cols = static_cast<double>(x[-1]);
    return all / cols * (cols - (rows - 1) / 2);
  }
  static Cost cost(const Spec& x, const Args& a) {
    return {.operations = 5.0 * seen(x, a),
            .reads = (seen(x, a) - static_cast<double>(x.size())) * dtype_bytes(x.dtype)};
  }
  static Cost backward_cost(const Spec& x, const Args& a) {
    const Cost once = cost(x, a);
    return {.operations = 2 * once.operations, .reads = 2 * once.reads};
  }
  static void forward(Stream& s, Tensor y, View x, const Args& a);
  /// dx = scale * y * (dy - sum(y * dy)).
  static void backward(Stream& s, Grad dx, View y, View dy, const Args& a);
  using Backward = Operands<dIn<0>, Out<0>, dOut<0>>;
};

namespace cpu {
template <class Isa> void softmax(Isa, Pool&, Tensor y, View x, const Softmax::Args& a);
template <class Isa> void softmax_backward(Isa, Pool&, Grad dx, View y, View dy, const Softmax::Args& a);
}  // namespace cpu
namespace cuda {
void softmax(Stream&, Tensor y, View x, const Softmax::Args& a);
void softmax_backward(Stream&, Grad dx, View y, View dy, const Softmax::Args& a);
}  // namespace cuda

inline void Softmax::forward(Stream& s, Tensor y, View x, const Args& a) {
  on(s, [&](auto isa, Pool& pool) { cpu::softmax(isa, pool, y, x, a); }, [&](auto& q) { cuda::softmax(q, y, x, a); });
}
inline void Softmax::backward(Stream& s, Grad dx, View y, View dy, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::softmax_backward(isa, pool, dx, y, dy, a); },
      [&](auto& q) { cuda::softmax_backward(q, dx, y, dy, a); });
}

template <Symbolic V> V softmax(const V& x, Softmax::Args a = {}) { return record<Softmax>(a, x); }

}  // namespace hpcdl
