#pragma once
// Few rows of x (decoding): reading the weights once determines the time. A block iterates over row blocks of kTiles
// tiles of 16 rows of W, for up to 8 kCols rows of x; its warps divide the chunks of 256 inputs. Each warp has a ring
// of chunks in flight that continues from one row block to the next; the sums of the warps are added in order. A single
// row of x is rounded by each block for all its row blocks (kFused); several rows were rounded by a separate kernel and
// come through the ring.

#include "hpcdl/ops/int4_linear/int4_device.cuh"

namespace hpcdl::cuda::quant4 {

template <int kGroup_, int kTiles_, int kCols_, bool kFused_, int kWarps_, int kStages_, int kBlocks_> struct Few {
  static constexpr int kGroup = kGroup_, kTiles = kTiles_, kCols = kCols_, kWarps = kWarps_, kStages = kStages_,
                       kBlocks = kBlocks_;
  static constexpr bool kFused = kFused_;
  static constexpr int kThreads = kWarps * kWarp, kInputs = 8 * kCols, kRows = kTiles * static_cast<int>(kTileRows);
  static constexpr int kGroups = Chunk<kGroup>::kGroups;
  // A row of x in shared memory: 256 bytes and a gap, so that the eight rows of a fragment are in different banks.
  static constexpr int kLine = kChunk + 32;
  static constexpr int kTileBytes = kChunkBytes + 2 * Chunk<kGroup>::kScaleBytes;
  static constexpr int kInputBytes = kFused ? 0 : kInputs * (kLine + kGroups * 8);
  static constexpr int kStageBytes = kTiles * kTileBytes + kInputBytes;
  static constexpr int kOwnBytes = kFused ? kChunk + 8 * 16 : 0;  // rounded inputs, and four words for each 32 of them
  static constexpr int kPart = (kFused ? 1 : kInputs) * kRows;    // sums of one warp
  static constexpr int chunks_of_warp(std::int64_t k) {
    return static_cast<int>(((k + kChunk - 1) / kChunk + kWarps - 1) / kWarps);
  }
  static constexpr int own_bytes(std::int64_t k) { return chunks_of_warp(k) * kOwnBytes; }
  static constexpr int shared_bytes(std::int64_t k) {
    return 2 * kWarps * kPart * 4 + kWarps * (kStages * kStageBytes + own_bytes(k));
  }
};

/// A warp issues the copies of chunk c of the rounded inputs, their steps and their sums.
template <class F>
__device__ void fetch_inputs(std::byte* to, const Product& o, std::int64_t first, int count, std::int64_t c, int lane) {
  const int left = static_cast<int>(o.k - c * kChunk < kChunk ? o.k - c * kChunk : kChunk);
#pragma unroll
  for (int i = 0; i < F::kInputs / 2; ++i) {
    const int row = i * 2 + lane / 16, at = lane % 16 * 16;
    if (row < count) copy16(to + row * F::kLine + at, o.values + (first + row) * o.k + c * kChunk + at, at < left);
  }
  std::byte* steps = to + F::kInputs * F::kLine;
#pragma unroll
  for (int i = 0; i < (F::kGroups * F::kInputs + kWarp - 1) / kWarp; ++i) {
    const int at = i * kWarp + lane, g = at / F::kInputs, row = at % F::kInputs;
    if (g >= F::kGroups || row >= count) continue;
    const std::int64_t from = (c * F::kGroups + g) * o.rows + first + row;
    copy4(steps + at * 4, o.steps + from, g * F::kGroup < left);
    copy4(steps + (F::kGroups * F::kInputs + at) * 4, o.sums + from, g * F::kGroup < left);
  }
}

/// Rounds one chunk of the single row of x into `to`: the values, then for each 32 of them the initial sum, the step,
/// step * sum.
__device__ inline void store_own(std::byte* to, int2 q, float step, int sum, int lane) {
  reinterpret_cast<int2*>(to)[lane] = q;
  if (lane % 4 == 0)
    reinterpret_cast<::int4*>(to + kChunk)[lane / 4] = {kMagicBits - 8 * sum, __float_as_int(step),
                                                        __float_as_int(step * static_cast<float>(sum)), 0};
}

/// sums of (rows 2g, 2g + 1) of each tile += one chunk times the single row of x. Column n of the product stands for
/// the 32 inputs n of the chunk: B is 0 except for them, so that one product serves 8 scales and a lane's B consists of
/// the inputs that it rounded.
template <class F, bool kOffsets>
__device__ void multiply_own(float (&acc)[F::kTiles][2], const std::byte* stage, const std::byte* x, int lane) {
  const int g = lane / 4, t = lane % 4;
  const int2 q = reinterpret_cast<const int2*>(x)[lane];
  const ::int4 left = reinterpret_cast<const ::int4*>(x + kChunk)[2 * t],
               right = reinterpret_cast<const ::int4*>(x + kChunk)[2 * t + 1];
  int c[F::kTiles][4];
#pragma unroll
  for (int tile = 0; tile < F::kTiles; ++tile) c[tile][0] = c[tile][2] = left.x, c[tile][1] = c[tile][3] = right.x;
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const int2 b{g == m ? q.x : 0, g == m ? q.y : 0};
#pragma unroll
    for (int tile = 0; tile < F::kTiles; ++tile) {
      unsigned a[4];
      unpack(a, *reinterpret_cast<const uint2*>(stage + tile * F::kTileBytes +
                                                ((m * 4 + t) * static_cast<int>(kTileRows) + 2 * g) * 4));
      mma(c[tile], a, b);
    }
  }
#pragma unroll
  for (int tile = 0; tile < F::kTiles; ++tile) {
    const auto pair = [&](int n, int skip) {
      return widen_pair(
          *reinterpret_cast<const unsigned*>(stage + tile * F::kTileBytes + kChunkBytes + skip +
                                             (n / (F::kGroup / 32) * static_cast<int>(kTileRows) + 2 * g) * 2));
    };
    const float2 s0 = pair(2 * t, 0), s1 = pair(2 * t + 1, 0);
    const float step0 = __int_as_float(left.y), step1 = __int_as_float(right.y);
    const auto value = [&](int i) { return __int_as_float(c[tile][i]) - kMagic; };
    acc[tile][0] = ::fmaf(value(1), s1.x * step1, ::fmaf(value(0), s0.x * step0, acc[tile][0]));
    acc[tile][1] = ::fmaf(value(3), s1.y * step1, ::fmaf(value(2), s0.y * step0, acc[tile][1]));
    if constexpr (kOffsets) {
      const float2 o0 = pair(2 * t, Chunk<F::kGroup>::kScaleBytes), o1 = pair(2 * t + 1, Chunk<F::kGroup>::kScaleBytes);
      acc[tile][0] = ::fmaf(o1.x, __int_as_float(right.z), ::fmaf(o0.x, __int_as_float(left.z), acc[tile][0]));
      acc[tile][1] = ::fmaf(o1.y, __int_as_float(right.z), ::fmaf(o0.y, __int_as_float(left.z), acc[tile][1]));
    }
  }
}

/// acc += one group of a chunk. `x`: rounded inputs from the ring.
template <class F, bool kOffsets>
__device__ void multiply_group(float (&acc)[F::kTiles][F::kCols][4], const std::byte* stage, const std::byte* x,
                               int group, int lane) {
  const int g = lane / 4, t = lane % 4;
  int c[F::kTiles][F::kCols][4];
  float step[F::kCols][2], total[F::kCols][2];
#pragma unroll
  for (int col = 0; col < F::kCols; ++col) {
    const std::byte* steps = x + F::kInputs * F::kLine + (group * F::kInputs + col * 8 + 2 * t) * 4;
    const float2 s = *reinterpret_cast<const float2*>(steps);
    const int2 sums = *reinterpret_cast<const int2*>(steps + F::kGroups * F::kInputs * 4);
    const int2 from{kMagicBits - 8 * sums.x, kMagicBits - 8 * sums.y};
    step[col][0] = s.x, step[col][1] = s.y;
    total[col][0] = s.x * static_cast<float>(sums.x), total[col][1] = s.y * static_cast<float>(sums.y);
#pragma unroll
    for (int tile = 0; tile < F::kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[tile][col][i] = i % 2 ? from.y : from.x;
  }
#pragma unroll
  for (int m = 0; m < F::kGroup / 32; ++m) {
    const int block = (group * (F::kGroup / 32) + m) * 4 + t;
    int2 b[F::kCols];
#pragma unroll
    for (int col = 0; col < F::kCols; ++col)
      b[col] = *reinterpret_cast<const int2*>(x + (col * 8 + g) * F::kLine + block * 8);
#pragma unroll
    for (int tile = 0; tile < F::kTiles; ++tile) {
      unsigned a[4];
      unpack(a, *reinterpret_cast<const uint2*>(stage + tile * F::kTileBytes +
                                                (block * static_cast<int>(kTileRows) + 2 * g) * 4));
#pragma unroll
      for (int col = 0; col < F::kCols; ++col) mma(c[tile][col], a, b[col]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < F::kTiles; ++tile) {
    const std::byte* at =
        stage + tile * F::kTileBytes + kChunkBytes + (group * static_cast<int>(kTileRows) + 2 * g) * 2;
    const float2 scale = widen_pair(*reinterpret_cast<const unsigned*>(at));
    float2 offset{0, 0};
    if constexpr (kOffsets) offset = widen_pair(*reinterpret_cast<const unsigned*>(at + Chunk<F::kGroup>::kScaleBytes));
#pragma unroll
    for (int col = 0; col < F::kCols; ++col)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& to = acc[tile][col][i];
        to = ::fmaf(__int_as_float(c[tile][col][i]) - kMagic, (i < 2 ? scale.x : scale.y) * step[col][i % 2], to);
        if constexpr (kOffsets) to = ::fmaf(i < 2 ? offset.x : offset.y, total[col][i % 2], to);
      }
  }
}

/// The sums of a lane over the chunks of its warp.
template <class F> struct Sums {
  float acc[F::kTiles][F::kCols][4] = {};

  template <bool kOffsets> __device__ void add(const std::byte* stage, const std::byte* x, int lane) {
#pragma unroll
    for (int group = 0; group < F::kGroups; ++group) multiply_group<F, kOffsets>(acc, stage, x, group, lane);
  }
  /// parts[col][row].
  __device__ void put(float* parts, int lane) const {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < F::kTiles * F::kCols * 4; ++i) {
      const int in_tile = i / (F::kCols * 4), col = i / 4 % F::kCols * 8 + 2 * t + i % 2,
                row = in_tile * static_cast<int>(kTileRows) + 2 * g + i % 4 / 2;
      parts[col * F::kRows + row] = acc[in_tile][i / 4 % F::kCols][i % 4];
    }
  }
};
template <class F>
  requires F::kFused
struct Sums<F> {
  float acc[F::kTiles][2] = {};

  template <bool kOffsets> __device__ void add(const std::byte* stage, const std::byte* x, int lane) {
    multiply_own<F, kOffsets>(acc, stage, x, lane);
  }
  __device__ void put(float* parts, int lane) const {
#pragma unroll
    for (int i = 0; i < F::kTiles * 2; ++i) {
      float v = acc[i / 2][i % 2];
      v += __shfl_xor_sync(~0u, v, 1);
      v += __shfl_xor_sync(~0u, v, 2);
      if (lane % 4 == 0) parts[i / 2 * static_cast<int>(kTileRows) + lane / 4 * 2 + i % 2] = v;
    }
  }
};

/// Adds the sums of the warps and finishes them. `parts` may be reused after the next call.
template <class F>
__device__ void finish(const Sums<F>& sums, const Product& o, float* parts, std::int64_t tile, std::int64_t first,
                       int count, int warp, int lane) {
  sums.put(parts + warp * F::kPart, lane);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * F::kRows; i += F::kThreads) {
    const std::int64_t row = tile + i % F::kRows;
    if (row >= o.n) continue;
    float v = 0;
#pragma unroll
    for (int w = 0; w < F::kWarps; ++w) v += parts[w * F::kPart + i];
    if (o.plain) cuda::put(o.y, o.y_dtype, (first + i / F::kRows) * o.y_stride + row, v);
    else put(o, v, first + i / F::kRows, row);
  }
}

template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) multiply_few(const __grid_constant__ Product o) {
  extern __shared__ __align__(16) std::byte memory[];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = std::int64_t{blockIdx.y} * F::kInputs, chunks = (o.k + kChunk - 1) / kChunk,
                     begin = std::int64_t{blockIdx.x} * F::kRows, stride = std::int64_t{gridDim.x} * F::kRows;
  const int count = static_cast<int>(o.rows - first < F::kInputs ? o.rows - first : F::kInputs);
  std::byte* ring = memory + 2 * F::kWarps * F::kPart * 4 + warp * (F::kStages * F::kStageBytes + F::own_bytes(o.k));
  std::byte* own = ring + F::kStages * F::kStageBytes;
  struct Place {
    std::int64_t tile, chunk;
  };
  const auto after = [&](Place p) -> Place {
    return p.chunk + F::kWarps < chunks ? Place{p.tile, p.chunk + F::kWarps} : Place{p.tile + stride, warp};
  };
  const auto exists = [&](Place p) { return p.chunk < chunks && p.tile < o.n; };
  const auto each_tile = [&](Place p, auto&& f) {
#pragma unroll
    for (int r = 0; r < F::kTiles; ++r)
      if (p.tile + r * kTileRows < o.n) f(r, Chunk<F::kGroup>(o, p.tile + r * kTileRows, p.chunk));
  };
  const auto fetch_weights = [&](Place p, int slot) {
    if (!exists(p)) return;
    std::byte* to = ring + slot * F::kStageBytes;
    each_tile(p, [&](int r, const auto& chunk) { chunk.fetch(to + r * F::kTileBytes, o, lane); });
  };
  const auto fetch_rounded = [&](Place p, int slot) {
    if constexpr (!F::kFused)
      if (exists(p))
        fetch_inputs<F>(ring + slot * F::kStageBytes + F::kTiles * F::kTileBytes, o, first, count, p.chunk, lane);
  };
  Place next{begin, warp};  // the next to load
  let_next_begin();
  if (!o.constant) {
    Place p = next;
    for (int i = 0; i < F::kStages && exists(p); ++i, p = after(p))
      each_tile(p, [&](int, const auto& chunk) { chunk.bring_closer(o, lane); });
    await_previous();
  }
  const auto own_inputs = [&](int j) {
    const std::int64_t at = (warp + std::int64_t{j} * F::kWarps) * kChunk + lane * 8;
    return F::kFused && at < o.k ? inputs(o, first * o.x_stride + at) : Lanes<8>(0.0f);
  };
  Lanes<8> x(0.0f);
  if (!o.constant) x = own_inputs(0);  // issued before the weights
  Place p = next;
#pragma unroll
  for (int i = 0; i < F::kStages; ++i, p = after(p)) {
    fetch_weights(p, i);
    if constexpr (F::kFused) close_copies();
  }
  if (o.constant) await_previous(), x = own_inputs(0);
#pragma unroll
  for (int i = 0; i < F::kStages; ++i, next = after(next)) {
    fetch_rounded(next, i);
    if constexpr (!F::kFused) close_copies();
  }
  if constexpr (F::kFused)
    for (int j = 0; warp + j * F::kWarps < chunks; ++j) {
      float step;
      int sum;
      const int2 q = round_inputs<F::kGroup / 8, 4>(x, step, sum);
      x = own_inputs(j + 1);
      store_own(own + j * F::kOwnBytes, q, step, sum, lane);
    }
  int slot = 0;
  float* parts = reinterpret_cast<float*>(memory);
  for (std::int64_t tile = begin; tile < o.n; tile += stride) {
    Sums<F> sums;
    int j = 0;
    for (std::int64_t c = warp; c < chunks; c += F::kWarps, ++j) {
      await_copies<F::kStages - 1>();
      __syncwarp();
      const std::byte* stage = ring + slot * F::kStageBytes;
      const std::byte* x = F::kFused ? own + j * F::kOwnBytes : stage + F::kTiles * F::kTileBytes;
      if (o.offset) sums.template add<true>(stage, x, lane);
      else sums.template add<false>(stage, x, lane);
      __syncwarp();
      fetch_weights(next, slot), fetch_rounded(next, slot), close_copies();
      next = after(next);
      slot = slot == F::kStages - 1 ? 0 : slot + 1;
    }
    finish<F>(sums, o, parts, tile, first, count, warp, lane);
    parts = parts == reinterpret_cast<float*>(memory) ? parts + F::kWarps * F::kPart : reinterpret_cast<float*>(memory);
  }
}

}  // namespace hpcdl::cuda::quant4
