#pragma once
// Shared code of kernels for tile registers (simd/tiles.h). Registers 0 to 3 are sums of up to 32 x 32, 4 and 5 A, 6
// and 7 B. Included only by .simd.cpp files of this folder.

#include "hpcdl/ops/matmul/kernel_set.h"
#include "hpcdl/simd/tiles.h"

#if defined(HPCDL_SIMD_AVX512)
namespace hpcdl::gemm {

inline constexpr int kSide = 16;  // rows and words of a tile register
inline constexpr std::int64_t kRowBytes = kSide * 4;

/// Configures the registers of A and of sums for `rows` rows.
template <class Isa> void prepare(int rows) {
  if (rows == 0) return simd::release_tiles();
  simd::TileShapes s;
  for (int t = 0; t < 8; ++t) s.row_bytes[t] = kRowBytes, s.rows[t] = kSide;
  const auto upper = static_cast<std::uint8_t>(rows < kSide ? rows : kSide),
             lower = static_cast<std::uint8_t>(rows > kSide ? rows - kSide : 1);
  s.rows[0] = s.rows[1] = s.rows[4] = upper;
  s.rows[2] = s.rows[3] = s.rows[5] = lower;
  simd::load_shapes(s);
}

/// Lines to be prefetched during a step (see TileArgs). Those of `own` are not: they delayed tiles from L1, which has
/// few slots for outstanding lines (an s32 result of 12 MB: 1.7 ms with them, 1.2 without).
[[gnu::always_inline]] inline void fetch(const TileArgs& t, const std::byte*& ahead, std::int64_t& fetches) {
#pragma GCC unroll 4
  for (int i = 0; i < kSide / kPrefetchEvery; ++i) {
    if (fetches <= 0) break;
    --fetches;
    __builtin_prefetch(ahead, 0, 2);
    ahead += t.ahead_step;
    if (ahead >= t.ahead_end) ahead -= t.ahead_wrap;
  }
}

/// MT x NT registers of sums, as stored in memory.
template <int MT, int NT> [[gnu::always_inline]] inline void begin_sums(const TileArgs& t) {
  if (!t.cin) return simd::tile_zero<0>(), simd::tile_zero<1>(), simd::tile_zero<2>(), simd::tile_zero<3>();
  const auto* p = static_cast<const std::byte*>(t.cin);
  const std::int64_t ld = t.cin_ld * 4;
  simd::tile_load<0>(p, ld);
  if constexpr (NT == 2) simd::tile_load<1>(p + kRowBytes, ld);
  if constexpr (MT == 2) simd::tile_load<2>(p + kSide * ld, ld);
  if constexpr (MT == 2 && NT == 2) simd::tile_load<3>(p + kSide * ld + kRowBytes, ld);
}
/// To rows with a stride of `ld` bytes.
template <int MT, int NT> [[gnu::always_inline]] inline void store_sums(std::byte* p, std::int64_t ld) {
  simd::tile_store<0>(p, ld);
  if constexpr (NT == 2) simd::tile_store<1>(p + kRowBytes, ld);
  if constexpr (MT == 2) simd::tile_store<2>(p + kSide * ld, ld);
  if constexpr (MT == 2 && NT == 2) simd::tile_store<3>(p + kSide * ld + kRowBytes, ld);
}
template <int MT, int NT> [[gnu::always_inline]] inline void end_sums(const TileArgs& t) {
  store_sums<MT, NT>(static_cast<std::byte*>(t.cout), t.cout_ld * 4);
}

}  // namespace hpcdl::gemm
#endif
