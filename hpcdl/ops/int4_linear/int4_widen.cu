#include "hpcdl/ops/int4_linear/int4_widen.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/int4_linear/int4_layout.h"

namespace hpcdl::cuda {
namespace {

constexpr int kBlocks = 8, kRowsAtOnce = kWarp / kBlocks, kTile = static_cast<int>(int4::kTileRows), kWarps = 4;

struct Widening {
  const std::uint8_t* packed;
  const bf16 *scale, *offset;
  std::int64_t row, n, k, groups;
  int blocks_of_group;  // blocks of eight inputs
};

/// Eight weights at p, which may have any alignment.
__device__ unsigned word_at(const std::uint8_t* p) {
  if (one_access<4>(p)) return *reinterpret_cast<const unsigned*>(p);
  return p[0] | p[1] << 8 | p[2] << 16 | static_cast<unsigned>(p[3]) << 24;
}

/// A warp processes the rows of a tile and kBlocks blocks of each, so that it writes whole lines; all of its weights
/// are loaded before the first is used. H200, us (a row per block | this way), to bf16: 4096x4096 42 | 14, 128256x4096
/// 1187 | 342.
template <class T, bool kTwoParts>
__global__ void __launch_bounds__(kWarps* kWarp) widen_tile(T* out, const Widening o) {
  constexpr int kSteps = kTile / kRowsAtOnce;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t block = (std::int64_t{blockIdx.x} * kWarps + warp) * kBlocks + lane % kBlocks,
                     tile = o.row + std::int64_t{blockIdx.y} * kTile;
  const int rows = static_cast<int>(int4::tile_rows(tile, o.n)), first = lane / kBlocks;
  if (block * 8 >= o.k) return;
  const std::uint8_t* packed = o.packed + int4::packed_at(tile, o.k) + block * rows * 4;
  const std::int64_t place = int4::scale_at(tile, o.groups) + block / o.blocks_of_group * rows;
  unsigned words[kSteps];
  float scale[kSteps], offset[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int r = first + i * kRowsAtOnce;
    words[i] = 0, scale[i] = 0, offset[i] = 0;
    if (r >= rows) continue;
    words[i] = word_at(packed + r * 4), scale[i] = widen(o.scale[place + r]);
    if (o.offset) offset[i] = widen(o.offset[place + r]);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int r = first + i * kRowsAtOnce;
    if (r >= rows) continue;
    T* to = out + (tile - o.row + r) * o.k * (kTwoParts ? 2 : 1) + block * 8;
    const auto half = [&](int shift) {
      return map<4>([&](int j) {
        return ::fmaf(static_cast<float>(static_cast<int>(words[i] >> (8 * j + shift) & 15) - 8), scale[i], offset[i]);
      });
    };
    const Lanes<4> low = half(0), high = half(4);
    const auto weights = map<8>([&](int j) { return j < 4 ? low.v[j % 4] : high.v[j % 4]; });
    store(to, weights);
    if constexpr (kTwoParts)
      store(to + o.k, map<8>([&](int j) { return weights.v[j] - widen(narrow<T>(weights.v[j])); }));
  }
}

}  // namespace

void int4_widen(Stream& s, void* out, DType dtype, const int4::Weight& w, std::int64_t row, std::int64_t rows,
                bool two_parts) {
  if (rows == 0 || w.k() == 0) return;
  const Widening o{w.packed.ptr<std::uint8_t>(),
                   w.scale.ptr<bf16>(),
                   w.offset ? w.offset.ptr<bf16>() : nullptr,
                   row,
                   w.n(),
                   w.k(),
                   w.groups(),
                   static_cast<int>(w.group() / 8)};
  constexpr std::int64_t kMostTiles = 65535;
  const auto all = [&]<class T, bool kTwoParts>() {
    for (std::int64_t done = 0; done < rows; done += kMostTiles * kTile) {
      Widening part = o;
      part.row = row + done;
      const std::int64_t left = rows - done, here = left < kMostTiles * kTile ? left : kMostTiles * kTile;
      widen_tile<T, kTwoParts>
          <<<dim3(blocks_for(w.k(), kWarps * kBlocks * 8), blocks_for(here, kTile)), kWarps * kWarp, 0, queue(s)>>>(
              static_cast<T*>(out) + done * w.k() * (kTwoParts ? 2 : 1), part);
      launched("int4_dequantize");
    }
  };
  if (two_parts) all.template operator()<bf16, true>();
  else visit_dtype(dtype, [&]<class T>() { all.template operator()<T, false>(); });
}

}  // namespace hpcdl::cuda
