#pragma once
// The product of tile.h on the tile registers of AMX (simd/tiles.h). Included only by tile.h.
//
// All registers have 16 rows of 16 words; the operands' extents are rounded up to whole registers. Sums therefore
// include the zeros that pad both operands, and rows or columns of C after the last are written with values that are
// never read.

#include <cstddef>
#include <cstdint>

#include "hpcdl/simd/tiles.h"

namespace hpcdl::attn {

/// Rows and words of a tile register.
inline constexpr std::int64_t kTile = 16;
constexpr std::int64_t whole_tiles(std::int64_t n) { return (n + kTile - 1) / kTile * kTile; }

#if defined(HPCDL_SIMD_AVX512)
/// Configures the thread's tile registers for the lifetime of this object.
struct TilesInUse {
  TilesInUse() {
    simd::TileShapes s;
    for (int t = 0; t < 8; ++t) s.row_bytes[t] = kTile * 4, s.rows[t] = kTile;
    simd::load_shapes(s);
  }
  ~TilesInUse() { simd::release_tiles(); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

namespace {

/// An operand: its address and row stride in bytes.
struct TileRows {
  std::byte* base;
  std::int64_t stride;
  std::byte* at(std::int64_t row, std::int64_t word) const { return base + row * stride + word * 4; }
};

/// MT x NT registers of C: 0 to 3; those of A are 4 and 5, those of B 6 and 7.
template <int MT, int NT> void tile_block(TileRows c, TileRows a, TileRows b, std::int64_t k, bool add) {
  if (add) {
    simd::tile_load<0>(c.at(0, 0), c.stride);
    if constexpr (NT == 2) simd::tile_load<1>(c.at(0, kTile), c.stride);
    if constexpr (MT == 2) simd::tile_load<2>(c.at(kTile, 0), c.stride);
    if constexpr (MT == 2 && NT == 2) simd::tile_load<3>(c.at(kTile, kTile), c.stride);
  } else {
    simd::tile_zero<0>(), simd::tile_zero<1>(), simd::tile_zero<2>(), simd::tile_zero<3>();
  }
  for (std::int64_t i = 0; i < k; i += kTile) {
    simd::tile_load<6>(b.at(i, 0), b.stride);
    simd::tile_load<4>(a.at(0, i), a.stride);
    simd::tile_dot_bf16<0, 4, 6>();
    if constexpr (NT == 2) {
      simd::tile_load<7>(b.at(i, kTile), b.stride);
      simd::tile_dot_bf16<1, 4, 7>();
    }
    if constexpr (MT == 2) {
      simd::tile_load<5>(a.at(kTile, i), a.stride);
      simd::tile_dot_bf16<2, 5, 6>();
    }
    if constexpr (MT == 2 && NT == 2) simd::tile_dot_bf16<3, 5, 7>();
  }
  simd::tile_store<0>(c.at(0, 0), c.stride);
  if constexpr (NT == 2) simd::tile_store<1>(c.at(0, kTile), c.stride);
  if constexpr (MT == 2) simd::tile_store<2>(c.at(kTile, 0), c.stride);
  if constexpr (MT == 2 && NT == 2) simd::tile_store<3>(c.at(kTile, kTile), c.stride);
}

}  // namespace

/// C (m, n) = A (m, k) B (k, n), or += ; k in words, leading dimensions in words of dense rows.
inline void multiply_tiles(float* c, std::int64_t ldc, const void* a, std::int64_t lda, const void* b, std::int64_t ldb,
                           std::int64_t m, std::int64_t n, std::int64_t k, bool add) {
  const auto rows = [](const void* p, std::int64_t ld) {
    return TileRows{static_cast<std::byte*>(const_cast<void*>(p)), ld * 4};
  };
  const TileRows to = rows(c, ldc), from = rows(a, lda), with = rows(b, ldb);
  for (std::int64_t j = 0; j < n; j += 2 * kTile)
    for (std::int64_t i = 0; i < m; i += 2 * kTile) {
      const bool tall = m - i > kTile, wide = n - j > kTile;
      const auto f = tall   ? (wide ? &tile_block<2, 2> : &tile_block<2, 1>)
                     : wide ? &tile_block<1, 2>
                            : &tile_block<1, 1>;
      f({to.at(i, j), to.stride}, {from.at(i, 0), from.stride}, {with.at(0, j), with.stride}, k, add);
    }
}
#endif

}  // namespace hpcdl::attn
