#pragma once
// Rotary position embedding, rotate-half form (as Hugging Face's Llama): within each head of D elements, the pair
// (x[i], x[i + D/2]) is rotated by the angle p * theta^(-2i/D), with p the position of the token.
//
// x, y: (B, T, H*D) or (B, T, H, D), f32 or bf16; rows may be strided (a slice of a packed qkv). table: (P, R) f32, R
// even and at most D, row p = cos of the R/2 angles, then sin; computed once by rope_table(). If R < D, the first R
// elements of each head are rotated as a head of R, and the others are copied. positions: i32 (B*T) or absent, which means
// that token t of a sequence is at position t; with it there is no gradient. A position outside the table is an error on a
// CPU and gives NaN on a GPU. Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.

#include "hpcdl/op.h"
#include "hpcdl/ops/places.h"
#include "hpcdl/ops/rope/scaling.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

struct Rope {
  static constexpr std::string_view name = "rope";
  static constexpr bool kInPlace = true;
  struct Args {
    std::int64_t head_dim = 0;  // D; 0: the last dim of x
  };
  static std::int64_t head_dim(const Spec& x, const Args& a) { return a.head_dim > 0 ? a.head_dim : x[-1]; }
  static Spec infer(const Spec& x, const Spec& table, const Spec& positions, const Args& a);
  /// Reads the rows of T positions of the table.
  static Cost cost(const Spec& x, const Spec& table, const Spec&, const Args&) {
    return {.operations = 3.0 * static_cast<double>(x.size()),
            .reads = static_cast<double>((x[1] - table[0]) * table[1] * dtype_bytes(table.dtype))};
  }
  static Cost backward_cost(const Spec& x, const Spec& table, const Spec& positions, const Args& a) {
    return cost(x, table, positions, a);
  }
  static void forward(Stream& s, Tensor y, View x, View table, View positions, const Args& a);
  /// The inverse rotation.
  static void backward(Stream& s, Grad dx, View table, View dy, const Args& a);
  using Backward = Operands<dIn<0>, In<1>, dOut<0>>;
};

/// Throws if one of the positions is not in the table.
void require_positions(const View& table, const View& positions);

/// Fills a contiguous (P, R) f32 tensor in host memory. Angles are computed in double.
void rope_table(const Tensor& table, double theta, const RopeScaling& scaling = {});
/// Rows [begin, end) of that table.
void rope_rows(const Tensor& table, std::int64_t begin, std::int64_t end, double theta, const RopeScaling& scaling,
               bool long_texts = false);

namespace cpu {
/// `sign` -1 rotates backwards.
template <class Isa> void rope(Isa, Pool&, Grad y, View x, View table, View positions, float sign, const Rope::Args& a);
}  // namespace cpu
namespace cuda {
void rope(Stream&, Grad y, View x, View table, View positions, float sign, const Rope::Args& a);
}  // namespace cuda

inline void Rope::forward(Stream& s, Tensor y, View x, View table, View positions, const Args& a) {
  on(
      s,
      [&](auto isa, Pool& pool) {
        if (positions) require_positions(table, positions);
        cpu::rope(isa, pool, Grad(y, Write::overwrite), x, table, positions, 1, a);
      },
      [&](auto& q) { cuda::rope(q, Grad(y, Write::overwrite), x, table, positions, 1, a); });
}
inline void Rope::backward(Stream& s, Grad dx, View table, View dy, const Args& a) {
  on(
      s, [&](auto isa, Pool& pool) { cpu::rope(isa, pool, dx, dy, table, {}, -1, a); },
      [&](auto& q) { cuda::rope(q, dx, dy, table, {}, -1, a); });
}

template <Symbolic V> V rope(const V& x, const V& table, Rope::Args a = {}) { return record<Rope>(a, x, table, V()); }
template <Symbolic V> V rope(const V& x, const V& table, const V& positions, Rope::Args a = {}) {
  if (positions) require_no_gradient(Rope::name, x);
  return record<Rope>(a, x, table, positions);
}

}  // namespace hpcdl
