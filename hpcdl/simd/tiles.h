#pragma once
// The tile registers of AMX: eight registers of up to 16 rows of 64 bytes, and an instruction that multiplies two of
// them into a third. To be used if has_tiles() is true, in a .simd.cpp as part of the code for Avx512.
//
// They are written as instructions, not as the compiler's intrinsics, because the number of a register is part of the
// instruction: here it is a template argument, and no file needs special flags. Compilers do not allocate these
// registers. Their contents are lost when shapes are loaded; a thread that is done with them releases them, so that
// context switches need not save them.

#include <cstddef>
#include <cstdint>

namespace hpcdl::simd {

/// Rows and bytes per row of every register, in the format of ldtilecfg.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

#if defined(HPCDL_SIMD_AVX512)
/// Takes some 50 ns: too long for every product of two tiles.
inline void load_shapes(const TileShapes& s) { __asm__ volatile("ldtilecfg %0" : : "m"(s)); }
inline void release_tiles() { __asm__ volatile("tilerelease"); }

template <int T> inline void tile_zero() { __asm__ volatile("tilezero %%tmm%c0" : : "i"(T)); }
/// Row i lies at p + i * stride (bytes).
template <int T> inline void tile_load(const std::byte* p, std::int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T> inline void tile_store(std::byte* p, std::int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
/// C (f32) += A B. Rows of A: pairs of bf16 along k. Rows of B: for each pair of k, that pair of every column.
/// Subnormal operands and results count as zero.
template <int C, int A, int B> inline void tile_dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
/// C (s32) += A B, A of u8 and B of s8, in runs of four along k. Sums are exact and wrap around.
template <int C, int A, int B> inline void tile_dot_u8s8() {
  __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
/// The same with A of s8.
template <int C, int A, int B> inline void tile_dot_s8s8() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}
#endif

}  // namespace hpcdl::simd
