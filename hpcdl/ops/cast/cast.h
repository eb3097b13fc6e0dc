#pragma once
// y = x in another float type (f32, bf16, f16), rounded to nearest even. Differentiable: the gradient is cast back.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Cast {
  static constexpr std::string_view name = "cast";
  struct Args {
    DType to = DType::f32;
  };
  static Spec infer(const Spec& x, const Args& a) {
    require_float(name, x);
    require(a.to == DType::f32 || a.to == DType::bf16 || a.to == DType::f16, name,
            "can cast to F32, BF16 or F16, got {}", dtype_name(a.to));
    return {x.shape, a.to};
  }
  static void forward(Stream& s, Tensor y, View x, const Args&);
  static void backward(Stream& s, Grad dx, View dy, const Args&);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

namespace cpu {
template <class Isa> void cast(Isa, Pool&, Grad y, View x);
}  // namespace cpu
namespace cuda {
void cast(Stream&, Grad y, View x);
}  // namespace cuda

inline void Cast::forward(Stream& s, Tensor y, View x, const Args& a) { backward(s, Grad(y, Write::overwrite), x, a); }
inline void Cast::backward(Stream& s, Grad dx, View dy, const Args&) {
  on(s, [&](auto isa, Pool& pool) { cpu::cast(isa, pool, dx, dy); }, [&](auto& q) { cuda::cast(q, dx, dy); });
}

/// Records nothing if x already has that type.
template <Symbolic V> V cast(const V& x, DType to) { return x.dtype() == to ? x : record<Cast>({to}, x); }

}  // namespace hpcdl
