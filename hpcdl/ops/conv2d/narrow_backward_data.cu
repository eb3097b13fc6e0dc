// dx of images with few channels on Hopper, in 16-bit types or f32 in three bf16 parts (f32_parts.h): groups of stride
// x stride pixels are the rows of a product, their channels its 8 or 16 columns. Every group reads the same taps of dy,
// so that it is a convolution of stride 1 for any stride; where a pixel of the group has no such tap the weight is 0.
//
// The copy engine loads boxes of dy, 16 channels at a time, together with the weights of these channels, which were
// written beforehand in the products' register layout. A warp has 8 x 16 groups and multiplies each row of dy, once it
// is in registers, by all rows of the kernel that apply to it.

#include <optional>
#include <utility>

#include "hpcdl/cuda/mma.cuh"
#include "hpcdl/cuda/tensor_map.h"
#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/few_rows.cuh"
#include "hpcdl/ops/conv2d/pixel_boxes.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kRows = 8, kCols = 16, kChannels = 16;  // groups per warp; channels per stage
constexpr int kAligned = 1024;

template <class T> inline constexpr int kStagesOf = sizeof(T) == 2 ? 3 : 2;

struct FewData {
  int height, width, inputs, stride, kh, kw;  // of dx, of the kernel
  int columns;                                // channels per group
  GroupTaps taps_h, taps_w;
  int across = 0, box_w = 0, box_h = 0, slices;  // warps side by side; a box in pixels; stages per tile
  int tiles_w = 0, tiles_h = 0, tiles = 0, tile_w = 0, tile_h = 0;  // groups per tile
  int dy_bytes = 0, w_bytes = 0, stage_bytes = 0;
  unsigned char* w;  // w_bytes per slice
  const void* from_w;
  DType w_dtype;
  void* dx;
  bool accumulate, pairs = false;  // two neighbours can be stored at once

  /// Bytes of shared memory.
  template <class T> int shared() const { return kStagesOf<T> * (stage_bytes + 8); }
};

/// Words of all taps of a slice, in parts, tap rows inside tap columns: for each lane two words for each of kTiles
/// products of eight columns.
template <class T, int kTapsH, int kTiles>
__global__ void __launch_bounds__(kThreads) write_weights(const __grid_constant__ FewData p, int words) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= words) return;
  constexpr int kOperandParts = Way<T>::kOperandParts, kLaneWords = 2 * kTiles;
  const int half = i % 2, tile = i / 2 % kTiles, lane = i / kLaneWords % kWarp,
            part = i / (kLaneWords * kWarp) % kOperandParts, tap = i / (kLaneWords * kWarp * kOperandParts);
  const int a = tap % kTapsH, b = tap / kTapsH % p.taps_w.count, slice = tap / kTapsH / p.taps_w.count;
  const int n = tile * 8 + lane / 4, of_row = p.stride * p.inputs, phase_h = n / of_row,
            phase_w = n % of_row / p.inputs, input = n % p.inputs;
  const int row = p.taps_h.kernel_row(phase_h, a), col = p.taps_w.kernel_row(phase_w, b);
  const bool there = n < p.columns && row >= 0 && row < p.kh && col >= 0 && col < p.kw;
  unsigned word = 0;
  for (int k = 0; k < 2; ++k) {
    const int filter = slice * kChannels + half * 8 + lane % 4 * 2 + k;
    const float w =
        there ? fetch(p.from_w, p.w_dtype, ((std::int64_t{filter} * p.kh + row) * p.kw + col) * p.inputs + input)
              : 0.0f;
    word |= Way<T>::bits(w, part) << (16 * k);
  }
  reinterpret_cast<unsigned*>(p.w)[i] = word;
}

#if HPCDL_SM90A

struct Tile {
  int image, row, col;  // the first group
  __device__ static Tile of(const FewData& p, int t) {
    const int per_image = p.tiles_w * p.tiles_h, image = t / per_image, rest = t - image * per_image,
              row = rest / p.tiles_w;
    return {image, row * p.tile_h, (rest - row * p.tiles_w) * p.tile_w};
  }
};

/// Loads 16 pixels x 16 channels of a box in the products' register layout. Pixels have the swizzle of their 32 or 64
/// bytes, and a line of the box is a multiple of eight pixels, so that a pixel's position in its line determines the
/// swizzle.
template <class T> struct Pixels {
  static constexpr int kBytes = kChannels * static_cast<int>(sizeof(T));
  unsigned v[Way<T>::kOperandParts][4];

  /// The offset of what this lane reads for pixel `first` of a line, relative to the line's address.
  __device__ static unsigned at(int first, int lane) {
    if constexpr (sizeof(T) == 2) {
      const int pixel = first + lane % 16;
      return static_cast<unsigned>(pixel * kBytes + (lane / 16 ^ (pixel / 4 & 1)) * 16);
    } else {
      const int pixel = first + lane / 4;
      return static_cast<unsigned>(pixel * kBytes + (lane % 4 / 2 ^ (pixel / 2 & 3)) * 16 + lane % 2 * 8);
    }
  }
  __device__ void load(const unsigned char* stage, unsigned from) {
    if constexpr (sizeof(T) == 2) {
      load_matrices(v[0], shared_address(stage) + from);
    } else {
#pragma unroll
      for (int k = 0; k < 4;
           ++k) {  // the pixel 8 further has the same swizzle, the channels 8 further are two pieces away
        const float2 two = *reinterpret_cast<const float2*>(stage + ((from ^ (k / 2 * 32u)) + k % 2 * 8u * kBytes));
        unsigned word[kParts];
        pair_in_parts(two.x, two.y, word);
#pragma unroll
        for (int part = 0; part < kParts; ++part) v[part][k] = word[part];
      }
    }
  }
};

template <class T, int kTiles>
__device__ void store(const FewData& p, const Tile& tile, int row, int col, const float (&acc)[kRows][kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, of_row = p.stride * p.inputs;
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int n = j * 8 + lane % 4 * 2 + k, phase_h = n / of_row, in_row = n - phase_h * of_row,
                phase_w = in_row / p.inputs;
      if (n >= p.columns || (p.pairs && k == 1)) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int x = (tile.col + col + lane / 4 + half * 8) * p.stride;
        if (x + phase_w >= p.width) continue;
        int y = (tile.row + row) * p.stride + phase_h;
        T* to = static_cast<T*>(p.dx) + ((std::int64_t{tile.image} * p.height + y) * p.width + x) * p.inputs + in_row;
        const std::int64_t step = std::int64_t{p.stride} * p.width * p.inputs;
#pragma unroll
        for (int i = 0; i < kRows; ++i, y += p.stride, to += step) {
          if (y >= p.height) break;
          if (p.pairs) {
            Lanes<2> v = map<2>([&](int e) { return acc[i][j][half * 2 + e]; });
            if (p.accumulate) v = v + widen(read_aligned<2>(to));
            write_aligned(to, pack<T>(v));
          } else {
            const float v = acc[i][j][half * 2 + k];
            *to = narrow<T>(p.accumulate ? v + widen(*to) : v);
          }
        }
      }
    }
}

#endif

template <class T, int kTapsH, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    narrow_backward_data_kernel(const __grid_constant__ TensorMap dy, const __grid_constant__ FewData p) {
#if HPCDL_SM90A
  constexpr int kStages = kStagesOf<T>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Arrivals<kStages> full{reinterpret_cast<Barrier*>(memory + kStages * p.stage_bytes)};
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = warp_index();
  const int row = warp / p.across * kRows, col = warp % p.across * kCols;
  start_block([&] { full.init(); }, dy);
  const int first = static_cast<int>(blockIdx.x), every = static_cast<int>(gridDim.x),
            steps = (p.tiles - first + every - 1) / every * p.slices;
  const auto bring = [&](int step) {
    if (step >= steps || thread != 0) return;
    const int of_tile = step / p.slices, slice = step - of_tile * p.slices, stage = step % kStages;
    const Tile tile = Tile::of(p, first + of_tile * every);
    unsigned char* const to = memory + stage * p.stage_bytes;
    Barrier* const b = full.expect(Slot{stage, 0}, static_cast<unsigned>(p.dy_bytes + p.w_bytes));
    tma_load(to, dy, b, slice * kChannels, tile.col + p.taps_w.low, tile.row + p.taps_h.low, tile.image);
    bulk_load(to + p.stage_bytes - p.w_bytes, p.w + slice * p.w_bytes, static_cast<unsigned>(p.w_bytes), b);
  };
  for (int step = 0; step < kStages; ++step) bring(step);
  using E = typename Way<T>::Element;
  constexpr int kOperandParts = Way<T>::kOperandParts, kProducts = Way<T>::kProducts;
  const auto line = static_cast<unsigned>(p.box_w * Pixels<T>::kBytes);
  Ring<kStages> at;
  for (int step = 0; step < steps;) {
    float acc[kRows][kTiles][4] = {},
          others[kProducts == 1 ? 1 : kRows][kTiles][4] = {};  // sums of the product of first parts, and of the others
    for (int slice = 0; slice < p.slices; ++slice, ++step, at.next()) {
      full.get(at);
      unsigned char* const stage = memory + at.stage * p.stage_bytes;
      const unsigned* weights =
          reinterpret_cast<const unsigned*>(stage + p.stage_bytes - p.w_bytes) + lane * (2 * kTiles);
      for (int b = 0; b < p.taps_w.count; ++b) {
        unsigned w[kTapsH][kOperandParts][kTiles][2];
#pragma unroll
        for (int a = 0; a < kTapsH; ++a)
#pragma unroll
          for (int part = 0; part < kOperandParts; ++part, weights += kWarp * 2 * kTiles) {
            const auto v = read_aligned<2 * kTiles>(reinterpret_cast<const float*>(weights));
#pragma unroll
            for (int k = 0; k < 2 * kTiles; ++k) w[a][part][k / 2][k % 2] = v.w[k];
          }
        unsigned from = static_cast<unsigned>(row) * line + Pixels<T>::at(col + b, lane);
#pragma unroll
        for (int r = 0; r < kRows + kTapsH - 1; ++r, from += line) {
          Pixels<T> pixels;
          pixels.load(stage, from);
#pragma unroll
          for (int k = 0; k < kProducts; ++k)
#pragma unroll
            for (int a = 0; a < kTapsH; ++a)
              if (r - a >= 0 && r - a < kRows)
#pragma unroll
                for (int j = 0; j < kTiles; ++j) {
                  auto& sums = k + 1 < kProducts ? others[kProducts == 1 ? 0 : r - a][j] : acc[r - a][j];
                  mma_16x8x16<E>(sums, pixels.v[Way<T>::of_a(k)], w[a][Way<T>::of_b(k)][j][0],
                                 w[a][Way<T>::of_b(k)][j][1]);
                }
        }
      }
      __syncthreads();  // all threads are done with this stage
      bring(step + kStages);
    }
    if constexpr (kProducts > 1)
#pragma unroll
      for (int i = 0; i < kRows * kTiles * 4; ++i) (&acc[0][0][0])[i] += (&others[0][0][0])[i];
    store<T, kTiles>(p, Tile::of(p, first + (step / p.slices - 1) * every), row, col, acc);
  }
#endif
}

constexpr int kMostShared = 227 << 10;

/// Sets `across` so that the fewest groups in tiles are wasted, and among such numbers boxes are smallest; then what
/// follows from it. False if no number fits into shared memory.
template <class T, int kTapsH> bool arrange(FewData& p, int rows, int cols) {
  std::pair<std::int64_t, std::int64_t> least;
  std::optional<FewData> best;
  for (p.across = 1; p.across <= kWarps; p.across *= 2) {
    p.tile_w = p.across * kCols, p.tile_h = kWarps / p.across * kRows;
    p.box_w = narrow_int(whole_units(p.tile_w + p.taps_w.count - 1, 8)), p.box_h = p.tile_h + kTapsH - 1;
    p.tiles_w = tiles_of(cols, p.tile_w), p.tiles_h = tiles_of(rows, p.tile_h);
    p.dy_bytes = p.box_w * p.box_h * kChannels * static_cast<int>(sizeof(T));
    p.stage_bytes = narrow_int(whole_units(p.dy_bytes + p.w_bytes, kAligned));
    if (p.shared<T>() > kMostShared || p.box_w > 256 || p.box_h > 256) continue;
    const std::pair now(std::int64_t{p.tiles_w} * p.tile_w * p.tiles_h * p.tile_h, std::int64_t{p.box_w} * p.box_h);
    if (!best || now < least) best = p, least = now;
  }
  if (best) p = *best;
  return best.has_value();
}

template <class T, int kTapsH, int kTiles> bool data(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const GroupTaps h(g, g.kh), w(g, g.kw);
  const int rows = tiles_of(g.h, narrow_int(g.stride)), cols = tiles_of(g.w, narrow_int(g.stride));
  FewData p{.height = narrow_int(g.h),
            .width = narrow_int(g.w),
            .inputs = narrow_int(g.i),
            .stride = narrow_int(g.stride),
            .kh = narrow_int(g.kh),
            .kw = narrow_int(g.kw),
            .columns = narrow_int(g.stride * g.stride * g.i),
            .taps_h = h,
            .taps_w = w,
            .slices = narrow_int(g.o / kChannels),
            .w = static_cast<unsigned char*>(workspace(s)) + kConvWeightBytes,
            .from_w = c.w.data,
            .w_dtype = c.w.dtype,
            .dx = c.out,
            .accumulate = c.accumulate};
  const int words = p.slices * w.count * kTapsH * Way<T>::kOperandParts * kWarp * 2 * kTiles;
  p.w_bytes = words / p.slices * 4;
  p.pairs = g.w % g.stride == 0 && g.w * g.i % 2 == 0 && g.stride * g.i % 2 == 0 &&
            reinterpret_cast<std::uintptr_t>(c.out) % (2 * sizeof(T)) == 0;
  if (h.count > kTapsH || static_cast<std::size_t>(words) * 4 > kConvNarrowWeightBytes ||
      !arrange<T, kTapsH>(p, rows, cols))
    return false;
  p.tiles = narrow_int(g.n) * p.tiles_h * p.tiles_w;
  write_weights<T, kTapsH, kTiles><<<blocks_for(words, kThreads), kThreads, 0, queue(s)>>>(p, words);
  launched("weights of a convolution");
  const TensorMap dy =
      tensor_map(c.dy.data, c.compute, {g.o, g.ow, g.oh, g.n}, {g.o, g.ow * g.o, g.oh * g.ow * g.o},
                 {kChannels, p.box_w, p.box_h, 1}, sizeof(T) == 2 ? Swizzle::bytes32 : Swizzle::bytes64);
  const auto kernel = narrow_backward_data_kernel<T, kTapsH, kTiles>;
  const int shared = p.shared<T>();
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "conv2d_backward");
  kernel<<<static_cast<unsigned>(std::min(p.tiles, multiprocessors(s))), kThreads, static_cast<std::size_t>(shared),
           queue(s)>>>(dy, p);
  launched("conv2d_backward");
  return true;
}

template <class T> bool data(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const auto columns = g.stride * g.stride * g.i;
  const int taps = GroupTaps(g, g.kh).count;
  if (columns <= 8 && taps <= 3) return data<T, 3, 1>(s, c);
  if (columns <= 16 && taps <= 4) return data<T, 4, 2>(s, c);
  if (columns <= 8 && taps <= 5) return data<T, 5, 1>(s, c);
  return columns <= 8 && taps <= 7 && data<T, 7, 1>(s, c);
}

}  // namespace

bool narrow_backward_data(Stream& s, const Conv& c) {
  const bool fits = c.pass == ConvPass::data && of_few_channels(c) && c.out_dtype == c.compute &&
                    c.shape.o % kChannels == 0 && in_chunks(c.dy, c.compute, c.shape.o);
  if (!fits || !has_sm90a(s)) return false;
  bool done = false;
  visit_dtype(c.compute, [&]<class T>() { done = data<T>(s, c); });
  return done;
}

}  // namespace hpcdl::cuda
