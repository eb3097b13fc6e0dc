#pragma once
// y = x in another float type, rounded to nearest even. Between f32, bf16 and f16 it is differentiable: the gradient is
// cast back. To and from 8-bit floats it is not, and what exceeds their range becomes their largest finite number
// (core/f8.h); one of the two types is f32, bf16 or f16.

#include "hpcdl/core/f8.h"
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
    const auto wide = [](DType d) { return d == DType::f32 || d == DType::bf16 || d == DType::f16; };
    if (!is_f8_dtype(x.dtype)) require_float(name, x);
    require(wide(a.to) || (is_f8_dtype(a.to) && wide(x.dtype)), name,
            "can cast {} to F32, BF16 or F16, and from these to F8_E4M3 or F8_E5M2, got {}", dtype_name(x.dtype),
            dtype_name(a.to));
    return {x.shape, a.to};
  }
  static void forward(Stream& s, Tensor y, View x, const Args&);
  static void backward(Stream& s, Grad dx, View dy, const Args&);
  using Backward = Operands<dIn<0>, dOut<0>>;
};

namespace cpu {
template <class Isa> void cast(Isa, Pool&, Grad y, View x);
/// From or to 8 bits.
template <class Isa> void cast_f8(Isa, Pool&, Grad y, View x);
}  // namespace cpu
namespace cuda {
void cast(Stream&, Grad y, View x);
}  // namespace cuda

inline void Cast::forward(Stream& s, Tensor y, View x, const Args&) {
  const Grad to(y, Write::overwrite);
  on(
      s,
      [&](auto isa, Pool& pool) {
        if (is_f8_dtype(y.dtype()) || is_f8_dtype(x.dtype())) cpu::cast_f8(isa, pool, to, x);
        else cpu::cast(isa, pool, to, x);
      },
      [&](auto& q) { cuda::cast(q, to, x); });
}
inline void Cast::backward(Stream& s, Grad dx, View dy, const Args&) {
  require(!is_f8_dtype(dx.dtype()) && !is_f8_dtype(dy.dtype()), name, "a cast from or to 8 bits has no gradient");
  on(s, [&](auto isa, Pool& pool) { cpu::cast(isa, pool, dx, dy); }, [&](auto& q) { cuda::cast(q, dx, dy); });
}

/// Records nothing if x already has that type.
template <Symbolic V> V cast(const V& x, DType to) { return x.dtype() == to ? x : record<Cast>({to}, x); }

}  // namespace hpcdl
