#pragma once
// The tiles in which a convolution's products are computed: what a thread loads into shared memory, its position there,
// and which part of it a thread multiplies. Shared by the kernels and by the test that runs them on a host.
//
// A tile of an operand has the layout of its memory: rows of kDepth elements where neighbours are along k, else kDepth
// lines of rows. Lines are an odd number of 16-byte units apart, so that the eight lines of a matrix load map to
// different banks; for f32 along rows twice an odd number, so that four lines of eight elements do.

#include <cstdint>

#include "hpcdl/core/device_macros.h"

#if defined(__CUDA_ARCH__)
#define HPCDL_CALLS_EITHER _Pragma("nv_exec_check_disable")
#define HPCDL_UNROLL _Pragma("unroll")
#else
#define HPCDL_CALLS_EITHER
#define HPCDL_UNROLL
#endif

namespace hpcdl::cuda {

inline constexpr int kConvThreads = 256, kConvStages = 4;

/// Elements of k in a tile, and of one 16-byte copy.
template <class E> inline constexpr int kConvDepth = 64 / static_cast<int>(sizeof(E));
template <class E> inline constexpr int kConvChunk = 16 / static_cast<int>(sizeof(E));

/// kRows (64 or 128) rows of an operand and kConvDepth of k.
template <class E, int kRows, bool kAlongK> struct ConvTile {
  static constexpr int kDepth = kConvDepth<E>, kChunk = kConvChunk<E>;
  static constexpr int kLine = kAlongK ? kDepth : kRows, kLines = kAlongK ? kRows : kDepth,
                       kApart = sizeof(E) == 4 && !kAlongK ? 2 : 1, kStride = kLine + kApart * kChunk;
  static constexpr int kElements = kLines * kStride, kChunks = kRows * kDepth / kChunk / kConvThreads;
  static_assert(kChunks * kConvThreads * kChunk == kRows * kDepth && kStride * sizeof(E) % 16 == 0 &&
                (kStride * sizeof(E) / 16 - kApart) % 2 == 0);

  struct Place {
    int row, depth;
  };
  /// The first element of chunk c of a thread. All chunks of one thread have the same depth (kAlongK) or the same row.
  HPCDL_HOST_DEVICE static constexpr Place place(int thread, int c) {
    constexpr int kPerLine = kLine / kChunk;
    const int i = thread + c * kConvThreads, line = i / kPerLine, in = i % kPerLine * kChunk;
    return kAlongK ? Place{line, in} : Place{in, line};
  }
  HPCDL_HOST_DEVICE static constexpr int at(int row, int depth) {
    return kAlongK ? row * kStride + depth : depth * kStride + row;
  }
};

/// What a thread loads of an operand (of device_gather.h): its positions stay the same while k advances. kWhole: the
/// elements of a chunk are contiguous and aligned to 16 bytes.
template <class E, class Side, int kRows, bool kWhole> class ConvBrings {
 public:
  using Tile = ConvTile<E, kRows, Side::kAlongK>;

  HPCDL_HOST_DEVICE ConvBrings(const Side& side, int row0, int thread) : side_(side), row0_(row0), thread_(thread) {
    HPCDL_UNROLL
    for (int c = 0; c < kFixed; ++c) row_[c] = side.row(row0 + Tile::place(thread, c).row);
  }
  /// Loads the tile at k0: memory.chunk(to, offset) copies a chunk, memory.elements(to, offsets) gathers its elements;
  /// offset -1 means zeros.
  HPCDL_CALLS_EITHER
  template <class Memory> HPCDL_HOST_DEVICE void issue(int k0, E* tile, const Memory& memory) const {
    if constexpr (kWhole) {
      auto depth = side_.depth(k0 + Tile::place(thread_, 0).depth);
      HPCDL_UNROLL
      for (int c = 0; c < Tile::kChunks; ++c) {
        const auto p = Tile::place(thread_, c);
        if (!Side::kAlongK && c > 0) depth = side_.depth(k0 + p.depth);
        memory.chunk(tile + Tile::at(p.row, p.depth), side_.offset(row_[Side::kAlongK ? c : 0], depth));
      }
    } else {
      HPCDL_UNROLL
      for (int c = 0; c < Tile::kChunks; ++c) {
        const auto p = Tile::place(thread_, c);
        std::int64_t from[Tile::kChunk];
        HPCDL_UNROLL
        for (int e = 0; e < Tile::kChunk; ++e)
          from[e] = Side::kAlongK ? side_.offset(row_[c % kFixed], side_.depth(k0 + p.depth + e))
                                  : side_.offset(side_.row(row0_ + p.row + e), side_.depth(k0 + p.depth));
        memory.elements(tile + Tile::at(p.row, p.depth), from);
      }
    }
  }

 private:
  static constexpr int kFixed = Side::kAlongK ? Tile::kChunks : 1;
  const Side& side_;
  int row0_, thread_;
  typename Side::Row row_[kFixed];
};

/// Warps arranged as kWarpsM x kWarpsN, each a grid of 16 x 8 results: 16-bit operands by mma.m16n8k16, f32 by
/// mma.m16n8k8.
template <int kM, int kN, int kWarpsM, int kWarpsN> struct MmaGrid {
  static_assert(kWarpsM * kWarpsN * 32 == kConvThreads);
  static constexpr int kTilesM = kM / kWarpsM / 16, kTilesN = kN / kWarpsN / 8;
  static_assert(kTilesN % 2 == 0);

  struct Place {
    int row, depth;
  };
  /// The eight elements whose address a lane supplies for a matrix load: four 8 x 8 matrices of A, from row i * 16 of
  /// the warp and depth 0 ...
  template <bool kAlongK> HPCDL_HOST_DEVICE static constexpr Place a(int warp, int lane, int i) {
    const int first = warp / kWarpsN * kTilesM * 16 + i * 16;
    return kAlongK ? Place{first + lane % 16, lane / 16 * 8}
                   : Place{first + lane / 8 % 2 * 8, lane / 16 * 8 + lane % 8};
  }
  /// ... and four of B, from column j * 16 of the warp: enough for two products.
  template <bool kAlongK> HPCDL_HOST_DEVICE static constexpr Place b(int warp, int lane, int j) {
    const int first = warp % kWarpsN * kTilesN * 8 + j * 16;
    return kAlongK ? Place{first + lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8}
                   : Place{first + lane / 16 * 8, lane % 16};
  }
  /// Element q of the four of A and the two of B that a lane holds for an f32 product.
  HPCDL_HOST_DEVICE static constexpr Place a_f32(int warp, int lane, int i, int q) {
    return {warp / kWarpsN * kTilesM * 16 + i * 16 + lane / 4 + q % 2 * 8, lane % 4 + q / 2 * 4};
  }
  HPCDL_HOST_DEVICE static constexpr Place b_f32(int warp, int lane, int j, int q) {
    return {warp % kWarpsN * kTilesN * 8 + j * 8 + lane / 4, lane % 4 + q * 4};
  }
  /// The row of results 2 half and 2 half + 1 of a product, and the column of the first.
  HPCDL_HOST_DEVICE static constexpr int row(int warp, int lane, int i, int half) {
    return warp / kWarpsN * kTilesM * 16 + i * 16 + lane / 4 + half * 8;
  }
  HPCDL_HOST_DEVICE static constexpr int col(int warp, int lane, int j) {
    return warp % kWarpsN * kTilesN * 8 + j * 8 + lane % 4 * 2;
  }
};

/// Divides the depth of a product into shares of whole tiles, none empty.
struct ConvShares {
  int count = 1;
  int depth = 0;  // depth of each share except the last
};
/// For `tiles` of results with `steps` of kDepth each, on `slots` concurrent blocks; at most `most` shares. Times in
/// steps: the start and end of a block cost kEnds; writing a share of the results costs kShare more per wave.
inline ConvShares conv_shares(int tiles, int steps, int kDepth, int slots, int most) {
  constexpr double kEnds = 8, kShare = 4;
  const auto waves = [&](int n) { return (static_cast<double>(tiles) * n + slots - 1) / slots; };
  int best = 1;
  double least = 1e30;
  for (int n = 1; n <= most && n <= steps; ++n) {
    const int each = (steps + n - 1) / n;
    if ((steps + each - 1) / each != n) continue;  // a share would be empty
    const double whole = static_cast<double>(static_cast<int>(waves(n)));
    const double t = whole * (each + kEnds) + (n > 1 ? kShare * waves(n) : 0);
    if (t < least) best = n, least = t;
  }
  const int each = (steps + best - 1) / best;
  return {best, (each > 0 ? each : 1) * kDepth};
}

}  // namespace hpcdl::cuda

#undef HPCDL_CALLS_EITHER
#undef HPCDL_UNROLL
