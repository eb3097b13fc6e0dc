#pragma once
// The register tile: MR rows x NV vectors of C stay in registers over all of k; per word of k, NV loads of B and MR
// broadcasts of A feed MR * NV multiply-adds. Included by the .simd.cpp files of this folder only.

#include "hpcdl/ops/matmul/dot.h"

namespace hpcdl::gemm {

template <class D, int MR, int NV, bool InPlace> void tile(const TileArgs& t) {
  typename D::Acc acc[MR][NV];
  constexpr int kVector = D::kLanes * 4;
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v)
      acc[m][v] = t.cin ? D::load_acc(static_cast<const std::byte*>(t.cin) + m * t.cin_ld * 4 + v * kVector) : D::zero();

  const std::byte* b = t.b;
  const std::byte* a = t.a;
  const std::byte* row[MR];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) row[m] = InPlace ? t.a + m * t.lda : nullptr;
  const auto step = [&](std::int64_t k) {
    typename D::Word bv[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) bv[v] = D::load(b + v * kVector);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      const auto w = D::broadcast(InPlace ? row[m] + k * 4 : a + m * 4);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[m][v] = D::mad(acc[m][v], w, bv[v]);
    }
    b += NV * kVector;
    a += MR * 4;
  };
  for (std::int64_t k = 0; k < t.k; ++k) step(k);

#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) D::store_acc(static_cast<std::byte*>(t.cout) + m * t.cout_ld * 4 + v * kVector, acc[m][v]);
}

/// Fills the table with all tiles of up to MR x NV.
template <class D, int MR, int NV> void fill_tiles(KernelSet& s) {
  const auto rows = [&]<int... m>(std::integer_sequence<int, m...>) {
    const auto row = [&]<int r, int... v>(std::integral_constant<int, r>, std::integer_sequence<int, v...>) {
      ((s.tile_in_place[r][v + 1] = &tile<D, r, v + 1, true>), ...);
      ((s.tile_packed[r][v + 1] = &tile<D, r, v + 1, false>), ...);
    };
    (row(std::integral_constant<int, m + 1>{}, std::make_integer_sequence<int, NV>{}), ...);
  };
  rows(std::make_integer_sequence<int, MR>{});
  s.rows = MR;
  s.vectors = NV;
  s.lanes = D::kLanes;
  s.group = D::kGroup;
}

}  // namespace hpcdl::gemm
