#pragma once
// The register tiles of a convolution: as in ops/matmul/tile.h, for operands that are read in place from pixels. The
// loops over m and v must be unrolled completely, or the accumulators are kept in memory: check a change with objdump.

#include "hpcdl/ops/matmul/dot.h"

namespace hpcdl::conv {

/// Words that every pixel of a tile reads, `offset` bytes after its first.
struct Run {
  std::int64_t offset, words;
};

/// C (rows x lanes * nv) = [cin +] sum over runs, each row from its own pixel.
struct PixelTile {
  const std::byte* base;
  const std::int64_t* pixels;  // bytes from base, one per row
  const Run* runs;
  std::int64_t n_runs;
  const std::byte* b;  // packed panel
  const float* cin;    // null: start from 0
  float* cout;         // rows of lanes * nv
};

/// C (rows x lanes * nv) = [cin +] sum over pixels of a (rows neighbouring outputs) x b (lanes * nv neighbouring
/// channels of each pixel).
struct WeightTile {
  const std::byte* a;
  std::int64_t a_step;  // bytes between pixels
  const std::byte* b;
  const std::int64_t* lines;     // offset of each line of pixels, in bytes from b
  std::int64_t n_lines, pixels;  // pixels per line
  std::int64_t step;             // bytes between pixels
  const float* cin;
  float* cout;
};

template <class D, int MR, int NV>
[[gnu::always_inline]] inline void start(typename D::Acc (&acc)[MR][NV], const float* cin) {
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[m][v] = cin ? D::load_acc(cin + (m * NV + v) * D::kLanes) : D::zero();
}

template <class D, int MR, int NV>
[[gnu::always_inline]] inline void finish(typename D::Acc (&acc)[MR][NV], float* cout) {
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) D::store_acc(cout + (m * NV + v) * D::kLanes, acc[m][v]);
}

template <class D, int MR, int NV> void pixel_tile(const PixelTile& t) {
  constexpr int kVector = D::kLanes * 4, kPanel = NV * kVector;
  typename D::Acc acc[MR][NV];
  start<D>(acc, t.cin);
  const std::byte* b = t.b;
  for (std::int64_t r = 0; r < t.n_runs; ++r) {
    const std::byte* a[MR];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) a[m] = t.base + t.pixels[m] + t.runs[r].offset;
    const auto step = [&](std::int64_t at) __attribute__((always_inline)) {
      typename D::Word bv[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) bv[v] = D::load(b + v * kVector);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        const auto w = D::broadcast(a[m] + at);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[m][v] = D::mad(acc[m][v], w, bv[v]);
      }
      b += kPanel;
      __asm__("" : "+r"(b));  // keeps the next step's loads after this one: hoisted, they would spill
    };
    const std::int64_t end = t.runs[r].words * 4, whole = end / 16 * 16;
    std::int64_t at = 0;
    for (; at < whole; at += 16) step(at), step(at + 4), step(at + 8), step(at + 12);
    for (; at < end; at += 4) step(at);
  }
  finish<D>(acc, t.cout);
}

template <class D, int MR, int NV> void weight_tile(const WeightTile& t) {
  constexpr int kVector = D::kLanes * 4;
  typename D::Acc acc[MR][NV];
  start<D>(acc, t.cin);
  const std::byte* a = t.a;
  for (std::int64_t line = 0; line < t.n_lines; ++line) {
    const std::byte* b = t.b + t.lines[line];
#pragma GCC unroll 4
    for (std::int64_t left = t.pixels; left > 0; --left) {
      typename D::Word bv[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) bv[v] = D::load(b + v * kVector);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) {
        const auto w = D::broadcast(a + m * 4);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[m][v] = D::mad(acc[m][v], w, bv[v]);
      }
      a += t.a_step;
      b += t.step;
      __asm__("" : "+r"(b));
    }
  }
  finish<D>(acc, t.cout);
}

/// All tiles of up to rows x vectors, by size: 24 accumulators with 32 registers, 12 with 16, or 8.
template <class D> struct Tiles {
  static constexpr int kRows = D::kLanes == 16 ? 8 : D::kLanes == 8 ? 6 : 4, kVectors = D::kLanes == 16 ? 3 : 2;
  void (*pixel[kRows][kVectors])(const PixelTile&);
  void (*weight[kRows][kVectors])(const WeightTile&);

  constexpr Tiles() : pixel(), weight() {
    [&]<int... i>(std::integer_sequence<int, i...>) {
      ((pixel[i / kVectors][i % kVectors] = &pixel_tile<D, i / kVectors + 1, i % kVectors + 1>), ...);
      ((weight[i / kVectors][i % kVectors] = &weight_tile<D, i / kVectors + 1, i % kVectors + 1>), ...);
    }(std::make_integer_sequence<int, kRows * kVectors>{});
  }
};
template <class D> inline constexpr Tiles<D> kTiles{};

}  // namespace hpcdl::conv
