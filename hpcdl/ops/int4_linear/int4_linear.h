#pragma once
// y = activation(x W^T + bias) + residual with W in 4 bits. Inference only.
//
// x (..., K); y and residual (..., N), of the dtype of x unless `out` says otherwise: f32 or bf16. W (N, K): packed u8
// (N, K/2), scale bf16 (N, K/G), offset bf16 (N, K/G) or absent (int4_layout.h). bias (N), f32 or bf16, optional;
// residual optional.
//
// Activations are rounded to 8 bits per row and group of G inputs (symmetric, step = largest magnitude / 127), so that
// the products are integer: the result differs from the exact one by at most sum over groups of step/2 * sum |w|. With
// `exact` they are not rounded and the weights are widened in registers: on two Zen 5 cores 1.6 times slower if the
// weights come from memory, 3 times if they are cached, 2 times for batches. On Hopper GPUs more than 32 rows of bf16 are
// not rounded, either; there each weight is rounded to bf16.

#include "hpcdl/op.h"
#include "hpcdl/ops/int4_linear/int4_layout.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

enum class Int4Activation : std::uint8_t { none, relu, gelu, gelu_erf, silu };  // gelu: tanh form

namespace int4 {
/// Rows of x that share one pass over a tile of weights.
inline constexpr std::int64_t kBatch = 8;

/// Checks the operands of one quantised matrix; returns its group size.
inline std::int64_t require_weight(std::string_view op, const Spec& packed, const Spec& scale, const Spec& offset) {
  require(packed.dtype == DType::u8 && packed.shape.rank() == 2, op, "packed weights must be U8 (N, K/2), got {}",
          to_string(packed));
  const auto n = packed[0], k = 2 * packed[1];
  require(scale.dtype == DType::bf16 && scale.shape.rank() == 2 && scale[0] == n && scale[1] > 0 && k % scale[1] == 0 &&
              is_group(k / scale[1]),
          op, "scales of {} packed weights (N {}, K {}) must be BF16 (N, K/G) with G 32, 64 or 128, got {}",
          to_string(packed), n, k, to_string(scale));
  if (offset) require_spec(op, "offset", offset, scale);
  return k / scale[1];
}
}  // namespace int4

struct Int4Linear {
  static constexpr std::string_view name = "int4_linear";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0;
  struct Args {
    bool exact = false;
    Int4Activation activation = Int4Activation::none;
    DType out = DType::none;
    /// The weights are not written while the program runs: a GPU may read them before the preceding kernel has ended,
    /// which hides the time of a launch. (A preceding copy to the GPU is not a kernel, and is waited for.)
    bool constant_weights = false;
  };
  static Spec infer(const Spec& x, const Spec& packed, const Spec& scale, const Spec& offset, const Spec& bias,
                    const Spec& residual, const Args& a) {
    require_float(name, x);
    int4::require_weight(name, packed, scale, offset);
    require(x[-1] == 2 * packed[1], name, "input {} has {} columns, the weights need {}", to_string(x), x[-1],
            2 * packed[1]);
    Spec y{x.shape, a.out == DType::none ? x.dtype : a.out};
    require_float(name, y, "output");
    y.shape[-1] = packed[0];
    if (bias) {
      require_float(name, bias, "bias");
      require_shape(name, "bias", bias, {packed[0]});
    }
    if (residual) require_spec(name, "residual", residual, y);
    return y;
  }
  static Cost cost(const Spec& x, const Spec& packed, const Spec&, const Spec&, const Spec&, const Spec&,
                   const Args& a) {
    const auto rows = static_cast<double>(x.size()) / static_cast<double>(x[-1] > 0 ? x[-1] : 1);
    return {.operations = 4 * rows * static_cast<double>(packed.size()), .unit = a.exact ? unit_of(x.dtype) : Unit::i8};
  }
  /// What the kernels read instead of x, in blocks of rows (on a CPU see int4_rows.h): its values (8 bits, or f32 if
  /// exact), the step of each group, the sum of each group.
  static std::array<Spec, 3> scratch(const Spec& x, const Spec&, const Spec& scale, const Spec&, const Spec&,
                                     const Spec&, const Args& a) {
    const auto rows = x[-1] > 0 ? x.size() / x[-1] : 0;
    return {Spec{{rows, x[-1]}, a.exact ? DType::f32 : DType::i8}, Spec{{rows, scale[1]}, DType::f32},
            Spec{{rows, scale[1]}, DType::i32}};
  }
  static void forward(Stream& s, Tensor y, View x, View packed, View scale, View offset, View bias, View residual,
                      Tensor values, Tensor steps, Tensor sums, const Args& a);
};

namespace int4 {
/// The operands of one matrix, as kernels receive them.
struct Weight {
  View packed, scale, offset;
  std::int64_t n() const { return packed[0]; }
  std::int64_t k() const { return 2 * packed[1]; }
  std::int64_t groups() const { return scale[1]; }
  std::int64_t group() const { return k() / groups(); }
};
struct Scratch {
  Tensor values, steps, sums;
};
}  // namespace int4

namespace cpu {
template <class Isa>
void int4_linear(Isa, Pool&, Tensor y, View x, const int4::Weight& w, View bias, View residual,
                 const int4::Scratch& scratch, const Int4Linear::Args& a);
}  // namespace cpu
namespace cuda {
void int4_linear(Stream&, Tensor y, View x, const int4::Weight& w, View bias, View residual,
                 const int4::Scratch& scratch, const Int4Linear::Args& a);
}  // namespace cuda

inline void Int4Linear::forward(Stream& s, Tensor y, View x, View packed, View scale, View offset, View bias,
                                View residual, Tensor values, Tensor steps, Tensor sums, const Args& a) {
  const int4::Weight w{packed, scale, offset};
  const int4::Scratch scratch{values, steps, sums};
  on(
      s, [&](auto isa, Pool& pool) { cpu::int4_linear(isa, pool, y, x, w, bias, residual, scratch, a); },
      [&](auto& q) { cuda::int4_linear(q, y, x, w, bias, residual, scratch, a); });
}

/// offset, bias and residual may be absent (default Vars).
template <Symbolic V>
V int4_linear(const V& x, const V& packed, const V& scale, const V& offset, const V& bias = {}, const V& residual = {},
              Int4Linear::Args a = {}) {
  return record<Int4Linear>(a, x, packed, scale, offset, bias, residual);
}

}  // namespace hpcdl
