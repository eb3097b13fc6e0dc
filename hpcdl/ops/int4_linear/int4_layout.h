#pragma once
// The memory layout of a matrix of 4-bit weights: the same bytes in a file and for the kernels, so a mapped file is
// used in place. Nothing is padded and no alignment is required.
//
// W is (N, K): N output features, K input features, K = groups * G with G in {32, 64, 128}. One weight is
//
//     w = scale * (q - 8) + offset        q in 0 .. 15; scale and offset per row and group; offset 0 when symmetric
//
// Three tensors, whose shapes determine N, K, G and the symmetry:
//
//     packed  U8   (N, K/2)
//     scale   BF16 (N, K/G)      may be negative (symmetric: the sign puts the largest magnitude on q = 0)
//     offset  BF16 (N, K/G)      absent when symmetric
//
// Bits per weight: 4 + 16/G symmetric (4.5, 4.25, 4.125), 4 + 32/G asymmetric (5, 4.5, 4.25). bfloat16 because a scale
// needs the range of the weights, not their precision: q is chosen for the rounded scale, so rounding it costs at most
// 0.4 % of a step, where float16 would overflow or lose groups of tiny weights. An offset instead of a 4-bit zero point
// costs 12/G bits more and also suits groups that do not straddle zero; it is the centre of a group, not its minimum,
// so it is small and is rounded finely.
//
// Within a tensor the rows are stored in consecutive tiles of 16 (the last tile has N mod 16 rows if that is not 0);
// with R rows in a tile:
//
//     packed  tile = K/8 blocks of R dwords. Dword r of block b holds row r, k = 8b .. 8b+7:
//             byte j = q[8b + j] | q[8b + 4 + j] << 4         (so the low and the high nibbles of a block are each R
//             rows x 4 consecutive k: the operand of vpdpbusd)
//     scale, offset  tile = K/G runs of R values.

#include <cstdint>

#include "hpcdl/tensor.h"

namespace hpcdl::int4 {

inline constexpr std::int64_t kTileRows = 16;

constexpr bool is_group(std::int64_t g) { return g == 32 || g == 64 || g == 128; }

/// Where the tile that starts at row `row` (a multiple of 16) begins, in bytes of `packed` / elements of `scale`.
constexpr std::int64_t packed_at(std::int64_t row, std::int64_t k) { return row * (k / 2); }
constexpr std::int64_t scale_at(std::int64_t row, std::int64_t groups) { return row * groups; }

/// Rows of that tile.
constexpr std::int64_t tile_rows(std::int64_t row, std::int64_t n) { return n - row < kTileRows ? n - row : kTileRows; }
constexpr std::int64_t tiles(std::int64_t n) { return (n + kTileRows - 1) / kTileRows; }

/// Byte within a tile of `rows` rows that holds weight (r, k), and whether it is the high nibble.
constexpr std::int64_t byte_of(std::int64_t rows, std::int64_t r, std::int64_t k) {
  return (k / 8) * rows * 4 + r * 4 + k % 4;
}
constexpr bool is_high(std::int64_t k) { return k % 8 >= 4; }

constexpr Spec packed_spec(std::int64_t n, std::int64_t k) { return {{n, k / 2}, DType::u8}; }
constexpr Spec scale_spec(std::int64_t n, std::int64_t k, std::int64_t group) { return {{n, k / group}, DType::bf16}; }

constexpr double bits_per_weight(std::int64_t group, bool symmetric) {
  return 4 + (symmetric ? 16.0 : 32.0) / static_cast<double>(group);
}

}  // namespace hpcdl::int4
