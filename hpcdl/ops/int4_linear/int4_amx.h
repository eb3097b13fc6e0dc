#pragma once
// Many rows of 8-bit inputs on tile registers (simd/tiles.h). Kernel files only.
//
// One product of registers gives the exact sums of a group for 16 rows of x and 16 of W. The vector unit then scales
// them by the operations of the vector kernels in the same order, so a row has the bits that those give it, and the
// number of rows can decide which of them multiply.
//
// The weights of a tile are widened to bytes once for all rows of a pass, a part of K at a time, so that they stay in
// L1. A pass is as many rows of x as stay in L2 while all weights of a thread go by.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "hpcdl/ops/int4_linear/int4_rows.h"
#include "hpcdl/ops/int4_linear/int4_vec.h"
#include "hpcdl/simd/tiles.h"

#if defined(HPCDL_SIMD_AVX512)
namespace hpcdl::cpu {
namespace {

using TileV = simd::Vec<simd::Avx512>;

inline constexpr std::int64_t kBlockRows = 16;
/// Whether the products of tile registers outweigh widening the weights and storing the sums of each group (measured on
/// Sapphire Rapids, groups of 32 and 128).
constexpr bool gains_from_tiles(std::int64_t rows, std::int64_t group) { return rows * group >= 1024; }
inline constexpr std::int64_t kPassBytes = std::int64_t{1} << 20, kPartOfK = 1024;

/// A part of K of a tile of weights: q - 8 as [k / 4][16][4], scale and offset as [group][16].
struct WidePart {
  std::byte* values;
  float *scale, *offset;

  static constexpr std::int64_t bytes(std::int64_t group) {
    return kPartOfK * int4::kTileRows + 2 * (kPartOfK / group) * int4::kTileRows * 4;
  }
  WidePart(std::byte* memory, std::int64_t group)
      : values(memory),
        scale(reinterpret_cast<float*>(memory + kPartOfK * int4::kTileRows)),
        offset(scale + kPartOfK / group * int4::kTileRows) {}

  /// Makes it groups first, first + 1, ... of a tile.
  void widen(const Tile& t, std::int64_t first, std::int64_t groups, std::int64_t group) const {
    using I = Int4Vec<simd::Avx512>;
    constexpr std::int64_t kAhead = 4096;
    const __m512i eight = _mm512_set1_epi8(8);
    const std::uint8_t* q = t.packed + first * group / 8 * t.rows * 4;
    std::byte* to = values;
    for (std::int64_t b = 0; b < groups * group / 8; ++b, q += t.rows * 4, to += 128) {
      __builtin_prefetch(q + kAhead, 0, 2);
      const __m512i w = I::load(q, t.rows);
      _mm512_storeu_si512(to, _mm512_sub_epi8(I::low(w), eight));
      _mm512_storeu_si512(to + 64, _mm512_sub_epi8(I::high(w), eight));
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t from = (first + g) * t.rows, at = g * int4::kTileRows;
      TileV::load(t.scale + from, t.rows).store(scale + at);
      if (t.offset) TileV::load(t.offset + from, t.rows).store(offset + at);
    }
  }
};

/// Registers 0 and 1 are sums of whole blocks, 2 and 3 of a block of `rest` rows; 4 and 5 the rows themselves; 6 and 7
/// weights. A group of 128 takes two products of 64.
inline simd::TileShapes shapes_of(std::int64_t rest, std::int64_t group) {
  const auto depth = static_cast<std::uint8_t>(std::min<std::int64_t>(group, 64));
  const auto fewer = static_cast<std::uint8_t>(std::max<std::int64_t>(rest, 1));
  simd::TileShapes s;
  for (int t = 0; t < 8; ++t) s.row_bytes[t] = 64, s.rows[t] = kBlockRows;
  s.rows[2] = s.rows[3] = s.rows[5] = fewer;
  s.row_bytes[4] = s.row_bytes[5] = depth;
  s.rows[6] = s.rows[7] = depth / 4;
  return s;
}

/// f(0), ... f(kRows - 1), unrolled so that arrays indexed by it can stay in registers; f up to `rows` if kRows is 0.
template <int kRows, class F> [[gnu::always_inline]] inline void each_row(int rows, const F& f) {
  if constexpr (kRows > 0)
    [&]<int... i>(std::integer_sequence<int, i...>) { (f(i), ...); }(std::make_integer_sequence<int, kRows>{});
  else
    for (int i = 0; i < rows; ++i) f(i);
}

/// The sums of a group: [row of x][row of W].
using GroupSums = std::int32_t[kBlockRows][int4::kTileRows];

/// kRows: 16, or 0 for a block of fewer, `rows`. kTurn: which of two registers for sums and for weights.
template <int kGroup, int kRows, int kTurn>
[[gnu::always_inline]] inline void multiply_group(GroupSums& to, const Block& x, const WidePart& w, std::int64_t g,
                                                  int rows) {
  constexpr int kDepth = kGroup < 64 ? kGroup : 64;
  constexpr int kSums = (kRows ? 0 : 2) + kTurn, kInputs = kRows ? 4 : 5, kWeights = 6 + kTurn;
  simd::tile_zero<kSums>();
  for (int k = 0; k < kGroup; k += kDepth) {
    simd::tile_load<kWeights>(w.values + (g * kGroup + k) * int4::kTileRows, 64);
    simd::tile_load<kInputs>(x.values + g * kGroup * rows + k, kGroup);
    simd::tile_dot_s8s8<kSums, kInputs, kWeights>();
  }
  simd::tile_store<kSums>(reinterpret_cast<std::byte*>(to), 64);
}

template <int kRows>
[[gnu::always_inline]] inline void scale_group(TileV (&y)[kBlockRows], const GroupSums& sums, const Block& x,
                                               const WidePart& w, std::int64_t g, bool offsets, int rows) {
  const TileV scale = TileV::load(w.scale + g * int4::kTileRows);
  const float* steps = x.steps + g * rows;
  each_row<kRows>(rows, [&](int i) {
    y[i] = fma(TileV(_mm512_cvtepi32_ps(_mm512_load_si512(sums[i]))), scale * TileV(steps[i]), y[i]);
  });
  if (!offsets) return;
  const TileV offset = TileV::load(w.offset + g * int4::kTileRows);
  const std::int32_t* totals = x.sums + g * rows;
  __asm__("" : "+r"(steps));  // else all of them stay in registers, and y does not
  each_row<kRows>(
      rows, [&](int i) { y[i] = fma(offset, TileV(steps[i] * (static_cast<float>(totals[i]) * -0.125f)), y[i]); });
}

/// sums[row] += row of the block . part, scaled. The registers multiply a group while the vector unit scales the one
/// before.
template <int kGroup, int kRows>
[[gnu::noinline]] void add_part(float (*sums)[int4::kTileRows], const Block& x, const WidePart& w, std::int64_t groups,
                                bool offsets, int rest) {
  const int rows = kRows ? kRows : rest;
  alignas(64) GroupSums even, odd;
  TileV y[kBlockRows];
  each_row<kRows>(rows, [&](int i) { y[i] = TileV::load(sums[i]); });
  multiply_group<kGroup, kRows, 0>(even, x, w, 0, rows);
  for (std::int64_t g = 0; g < groups; g += 2) {
    if (g + 1 < groups) multiply_group<kGroup, kRows, 1>(odd, x, w, g + 1, rows);
    scale_group<kRows>(y, even, x, w, g, offsets, rows);
    if (g + 1 == groups) break;
    if (g + 2 < groups) multiply_group<kGroup, kRows, 0>(even, x, w, g + 2, rows);
    scale_group<kRows>(y, odd, x, w, g + 1, offsets, rows);
  }
  each_row<kRows>(rows, [&](int i) { y[i].store(sums[i]); });
}

template <int kGroup>
void add_part(float (*sums)[int4::kTileRows], const Block& x, const WidePart& w, std::int64_t groups, bool offsets,
              int rows) {
  if (rows == kBlockRows) add_part<kGroup, kBlockRows>(sums, x, w, groups, offsets, rows);
  else add_part<kGroup, 0>(sums, x, w, groups, offsets, rows);
}

/// A product on tile registers, from rows in blocks of kBlockRows and runs of a group. Calls finish(sums, first row,
/// rows, first column, columns) for each tile of weights and pass of rows.
template <class Finish>
void on_tile_registers(Pool& pool, std::int64_t rows, const int4::Weight& w, const int4::Scratch& s,
                       const Finish& finish) {
  const std::int64_t k = w.k(), group = w.group(), groups = w.groups(), of_part = kPartOfK / group;
  const std::int64_t pass =
      std::min((rows + kBlockRows - 1) / kBlockRows, std::max<std::int64_t>(kPassBytes / (k * kBlockRows), 1)) *
      kBlockRows;
  const auto add = group == 32 ? &add_part<32> : group == 64 ? &add_part<64> : &add_part<128>;
  pool.reserve_scratch(WidePart::bytes(group) + pass * int4::kTileRows * 4);
  for_rows_on_threads(
      pool, int4::tiles(w.n()), int4::kTileRows * k, [&](int thread, std::int64_t begin, std::int64_t end) {
        const WidePart part(pool.scratch(thread), group);
        auto* sums = reinterpret_cast<float (*)[int4::kTileRows]>(pool.scratch(thread) + WidePart::bytes(group));
        simd::load_shapes(shapes_of(rows % kBlockRows, group));
        for (std::int64_t top = 0; top < rows; top += pass)
          for (auto i = begin; i < end; ++i) {
            const Tile t = tile_of(w, i);
            const std::int64_t bottom = std::min(rows, top + pass);
            std::fill_n(sums[0], (bottom - top) * int4::kTileRows, 0.0f);
            for (std::int64_t g = 0; g < groups; g += of_part) {
              const std::int64_t n = std::min(of_part, groups - g);
              part.widen(t, g, n, group);
              for (std::int64_t first = top; first < bottom; first += kBlockRows) {
                const std::int64_t c = std::min(kBlockRows, bottom - first);
                Block x = block_of(s, first, k, groups, 1);
                x.values += g * group * c, x.steps += g * c, x.sums += g * c;
                add(sums + (first - top), x, part, n, t.offset != nullptr, static_cast<int>(c));
              }
            }
            finish(sums, top, static_cast<int>(bottom - top), i * int4::kTileRows, t.rows);
          }
        simd::release_tiles();
      });
}

}  // namespace
}  // namespace hpcdl::cpu
#endif
