#pragma once
// Adapters of which every row has its own, or none: y[r] = base[r] + scale_i B_i (A_i x[r]) + shift_i for i = chosen[r];
// where that is -1, the row is that of base. Source of the idea: Chen et al., "Punica: multi-tenant LoRA serving", 2023.
//
// base, y: (..., N); x: (..., K) of the same type; chosen: i32, one for each row. Of n adapters, whose ranks differ and
// may be 0: a (R, K), the matrices A_i one after another; ends: i32 (n), the rows of `a` before the end of each; b (R N),
// the matrices B_i (N, rank) one after another; scales: f32 (n); shifts (n, N), or absent.
//
// A CPU multiplies the rows of each adapter together by the kernels of linear(): a row has the bits that it has with this
// adapter alone wherever theirs do not depend on other rows. A GPU does not check `chosen` and `ends`: a row whose number
// is no adapter's has none.

#include "hpcdl/op.h"
#include "hpcdl/ops/require.h"

namespace hpcdl {

struct AdapterRows {
  static constexpr std::string_view name = "adapter_rows";
  static constexpr OpClass kClass = OpClass::product;
  static constexpr unsigned kCasts = 0;
  static constexpr bool kInPlace = true;
  struct Args {};
  static Spec infer(const Spec& base, const Spec& x, const Spec& chosen, const Spec& a, const Spec& b, const Spec& ends,
                    const Spec& scales, const Spec& shifts, const Args&);
  /// As if the rows were divided evenly among the adapters.
  static Cost cost(const Spec& base, const Spec& x, const Spec& chosen, const Spec& a, const Spec& b, const Spec& ends,
                   const Spec& scales, const Spec& shifts, const Args&);
  /// Of the rows of one adapter: their numbers, x, A x, and B A x. A GPU uses the third alone.
  static std::array<Spec, 4> scratch(const Spec& base, const Spec& x, const Spec& chosen, const Spec& a, const Spec& b,
                                     const Spec& ends, const Spec& scales, const Spec& shifts, const Args&);
  /// Throws Error on a CPU if `ends` or `chosen` hold what is no adapter.
  static void forward(Stream& s, Tensor y, View base, View x, View chosen, View a, View b, View ends, View scales,
                      View shifts, Tensor rows, Tensor inputs, Tensor low, Tensor sums, const Args&);
};

namespace cuda {
void adapter_rows(Stream&, Tensor y, View base, View x, View chosen, View a, View b, View ends, View scales,
                  View shifts, Tensor low);
}  // namespace cuda

/// Of an adapter for each row there is no gradient. `shifts` may be absent.
template <Symbolic V>
V adapter_rows(const V& base, const V& x, const V& chosen, const V& a, const V& b, const V& ends, const V& scales,
               const V& shifts = {}) {
  return record<AdapterRows>({}, base, x, chosen, a, b, ends, scales, shifts);
}

}  // namespace hpcdl
