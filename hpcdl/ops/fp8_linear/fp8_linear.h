#pragma once
// y = act((A B^T) * scales + bias) + residual with A and B in 8-bit floats, and the largest magnitude of y. Neither has
// a gradient: fp8_layer records the products of a training step.
//
// A (..., K) and B (N, K), E4M3; either of them may be E5M2 (for gradients). K is a multiple of 16. y (..., N): bf16, f16
// or f32. bias (N), f32, bf16 or f16, and residual, like y, may be absent; residual may be y itself. Sums are f32; Hopper's tensor cores, which keep about 14
// bits of theirs, give them to f32 registers every 128 of k.
//
// Scales are f32, what A and B are multiplied by. In the three layouts, with M the rows of A:
//   of a tensor     A (1)                      B (1)
//   of rows         A (M)                      B (N)                                each of A and B may be of a tensor
//   of 128-blocks   A (M, ceil(K / 128))       B (ceil(N / 128), ceil(K / 128))     1 x 128 of A, 128 x 128 of B
// They are data, which a GPU cannot refuse: zeros, negative numbers and NaN are multiplied like any other number.
//
// GPUs need compute capability 8.9. `amax`: y's largest magnitude, before it is rounded, NaN ignored.

#include "hpcdl/core/f8.h"
#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

/// The side of a block that has its own scale.
inline constexpr std::int64_t kF8Block = 128;

/// The operands of a product, as kernels receive them.
struct Fp8Product {
  Tensor y, amax;  // amax: absent or empty if it is not wanted
  View a, b, a_scale, b_scale, bias, residual;
  Activation activation = Activation::none;

  std::int64_t m() const { return a.rows(); }
  std::int64_t n() const { return b[0]; }
  std::int64_t k() const { return b[1]; }
  bool blocks() const { return b_scale.rank() == 2; }
  /// f.template operator()<A, B>() with the types of its operands.
  template <class Fn> void visit(Fn&& f) const {
    if (a.dtype() == DType::f8_e5m2) f.template operator()<f8_e5m2, f8_e4m3>();
    else if (b.dtype() == DType::f8_e5m2) f.template operator()<f8_e4m3, f8_e5m2>();
    else f.template operator()<f8_e4m3, f8_e4m3>();
  }
  bool wants_amax() const { return amax && amax.size() > 0; }
};

struct Fp8Linear {
  static constexpr std::string_view name = "fp8_linear";
  struct Args {
    Activation activation = Activation::none;
    DType out = DType::bf16;
    bool amax = false;  // else that output is empty
  };
  /// y (..., N) and amax (1) or (0).
  static std::array<Spec, 2> infer(const Spec& a, const Spec& b, const Spec& a_scale, const Spec& b_scale,
                                   const Spec& bias, const Spec& residual, const Args& args) {
    require(is_f8_dtype(a.dtype) && a.shape.rank() >= 1, name, "a must be F8_E4M3 or F8_E5M2 (..., K), got {}",
            to_string(a));
    require(is_f8_dtype(b.dtype) && b.shape.rank() == 2 && b[1] == a[-1], name,
            "b must be F8_E4M3 or F8_E5M2 (N, {}) for a {}, got {}", a[-1], to_string(a), to_string(b));
    require(a.dtype == DType::f8_e4m3 || b.dtype == DType::f8_e4m3, name,
            "one of a and b must be F8_E4M3, got {} and {}", dtype_name(a.dtype), dtype_name(b.dtype));
    require(b[1] > 0 && b[1] % 16 == 0, name,
            "K must be a positive multiple of 16, got {}: pad both operands with zeros", b[1]);
    const std::int64_t m = a.size() / a[-1], n = b[0], k_blocks = (b[1] + kF8Block - 1) / kF8Block;
    const Shape one{1}, a_blocks{m, k_blocks}, b_blocks{(n + kF8Block - 1) / kF8Block, k_blocks};
    const bool blocks = a_scale.shape == a_blocks && b_scale.shape == b_blocks;
    require(a_scale.dtype == DType::f32 && b_scale.dtype == DType::f32 &&
                (blocks || ((a_scale.shape == one || a_scale.shape == Shape{m}) &&
                            (b_scale.shape == one || b_scale.shape == Shape{n}))),
            name, "scales must be F32, of a: (1) or ({}), of b: (1) or ({}), or of blocks: {} and {}; got {} and {}", m,
            n, to_string(a_blocks), to_string(b_blocks), to_string(a_scale), to_string(b_scale));
    Spec y{a.shape, args.out};
    require_float(name, y, "output");
    y.shape[-1] = n;
    if (bias) require_shape(name, "bias", require_float(name, bias, "bias"), {n});
    if (residual) require_spec(name, "residual", residual, y);
    return {y, Spec{{args.amax ? 1 : 0}, DType::f32}};
  }
  /// Tensor cores multiply 8-bit floats as fast as 8-bit integers.
  static Cost cost(const Spec& a, const Spec& b, const Spec&, const Spec&, const Spec&, const Spec&, const Args&) {
    return {.operations = 2 * static_cast<double>(a.size()) * static_cast<double>(b[0]), .unit = Unit::i8};
  }
  static void forward(Stream& s, Tensor y, Tensor amax, View a, View b, View a_scale, View b_scale, View bias,
                      View residual, const Args& args);
};

namespace cpu {
template <class Isa> void fp8_linear(Isa, Pool&, const Fp8Product& p);
}  // namespace cpu
namespace cuda {
void fp8_linear(Stream&, const Fp8Product& p);
}  // namespace cuda

inline void Fp8Linear::forward(Stream& s, Tensor y, Tensor amax, View a, View b, View a_scale, View b_scale, View bias,
                               View residual, const Args& args) {
  const Fp8Product p{y, amax, a, b, a_scale, b_scale, bias, residual, args.activation};
  on(s, [&](auto isa, Pool& pool) { cpu::fp8_linear(isa, pool, p); }, [&](auto& q) { cuda::fp8_linear(q, p); });
}

/// y and amax. bias and residual may be default (absent).
template <Symbolic V>
std::array<V, 2> fp8_linear(const V& a, const V& b, const V& a_scale, const V& b_scale, Fp8Linear::Args args = {},
                            const V& bias = {}, const V& residual = {}) {
  return record<Fp8Linear>(args, a, b, a_scale, b_scale, bias, residual);
}

}  // namespace hpcdl
