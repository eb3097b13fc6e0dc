#pragma once
// The register tile: MR rows x NV vectors of C stay in registers over all of k; per word of k, NV loads of B and MR
// broadcasts of A feed MR * NV multiply-adds. Included only by the .simd.cpp files of this folder.
//
// The loops over m and v must be unrolled completely, or the accumulators are kept in memory (5x slower): check a
// change with objdump.

#include "hpcdl/ops/matmul/dot.h"

namespace hpcdl::gemm {

/// One word of k. `a`: row m at a + m * stride.
template <class D, int MR, int NV>
[[gnu::always_inline]] inline void multiply(typename D::Acc (&acc)[MR][NV], const std::byte* a, std::int64_t stride,
                                            const std::byte* b) {
  typename D::Word bv[NV];
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) bv[v] = D::load(b + v * D::kLanes * 4);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    const auto w = D::broadcast(a + m * stride);
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[m][v] = D::mad(acc[m][v], w, bv[v]);
  }
}

/// Moves a row of a finished tile. On return `from` points to the next row.
template <class D> [[gnu::always_inline]] inline void move_row(const std::byte*& from, std::byte* to, int vectors) {
  constexpr int kVector = D::kLanes * 4;
  for (int v = 0; v < vectors; ++v, from += kVector) D::stream_acc(to + v * kVector, D::load_acc(from));
}
template <class D> void move_rows(const std::byte* from, std::byte* to, std::int64_t ld, int rows, int vectors) {
  for (int r = 0; r < rows; ++r) move_row<D>(from, to + r * ld, vectors);
}

template <class D, int MR, int NV, bool InPlace> void tile(const TileArgs& t) {
  constexpr int kVector = D::kLanes * 4, kPanel = NV * kVector, kStepA = InPlace ? 4 : MR * 4;
  typename D::Acc acc[MR][NV];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v)
      acc[m][v] =
          t.cin ? D::load_acc(static_cast<const std::byte*>(t.cin) + m * t.cin_ld * 4 + v * kVector) : D::zero();

  const std::byte *a = t.a, *b = t.b, *ahead = t.ahead;
  const std::int64_t stride = InPlace ? t.lda : 4;
  // Evenly spread: L1's outstanding requests to memory must leave room for lines of B from L2.
  const std::int64_t slots = t.k / kPrefetchEvery;
  std::int64_t due = 0;
  const std::byte* own = t.own;
  int own_rows = t.own_lines > 0 ? MR : 0, own_line = 0;
  const std::byte* moved = t.moved;
  std::byte* moved_to = t.moved_to;
  std::int64_t moved_due = 0;
  int moved_rows = t.moved_rows;
  for (std::int64_t left = slots; left > 0; --left) {
    if ((due += t.ahead_count) >= slots) {
      due -= slots;
      __builtin_prefetch(ahead, 0, 2);
      ahead += t.ahead_step;
      if (ahead >= t.ahead_end) ahead -= t.ahead_wrap;
    }
    if (own_rows > 0) {
      __builtin_prefetch(own + own_line * 64, 1, 3);
      if (++own_line == t.own_lines) own_line = 0, own += t.own_ld, --own_rows;
    }
    if (moved_rows > 0 && (moved_due += t.moved_rows + 1) >= slots) {
      moved_due -= slots;
      move_row<D>(moved, moved_to, t.moved_vectors);
      moved_to += t.moved_ld, --moved_rows;
    }
#pragma GCC unroll 4
    for (int i = 0; i < kPrefetchEvery; ++i) {
      if constexpr (MR <= 2)  // as fast as B arrives from memory: the next panel follows this one
        for (int v = 0; v < NV; ++v) __builtin_prefetch(b + v * kVector + 4096, 0, 3);
      multiply<D, MR, NV>(acc, a, stride, b);
      a += kStepA;
      b += kPanel;
      // Keeps the next step's loads after this one: the compiler would hoist them, run out of registers and spill.
      __asm__("" : "+r"(b));
    }
  }
  for (std::int64_t left = t.k % kPrefetchEvery; left > 0; --left, a += kStepA, b += kPanel)
    multiply<D, MR, NV>(acc, a, stride, b);

  if (moved_rows > 0) move_rows<D>(moved, moved_to, t.moved_ld, moved_rows, t.moved_vectors);

#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v)
      D::store_acc(static_cast<std::byte*>(t.cout) + m * t.cout_ld * 4 + v * kVector, acc[m][v]);
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
  s.move_rows = &move_rows<D>;
  s.rows = MR;
  s.vectors = NV;
  s.lanes = D::kLanes;
  s.group = D::kGroup;
}

}  // namespace hpcdl::gemm
