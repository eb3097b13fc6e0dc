#pragma once
// One row of x on Hopper, for matrices whose weights are not written while the program runs (Product::constant) and
// that int4_direct.h does not support. A block issues copies of all of its weights at once, before the preceding kernel
// has ended, and loads them into registers as they arrive, so that only rounding x and the products themselves remain
// after that kernel. N is a multiple of 16.

#include "hpcdl/cuda/arch.cuh"
#include "hpcdl/cuda/tile/channel.cuh"
#include "hpcdl/ops/int4_linear/int4_device.cuh"

namespace hpcdl::cuda::quant4 {

/// A warp multiplies consecutive chunks of all of a block's tiles. A block occupies a whole multiprocessor: smaller
/// ones, two per multiprocessor, were slower.
template <int kGroup_, int kTiles_, int kWarps_> struct Strip {
  static constexpr int kGroup = kGroup_, kTiles = kTiles_, kWarps = kWarps_, kThreads = kWarps * kWarp,
                       kTile = static_cast<int>(kTileRows), kRows = kTiles * kTile,
                       kScaleBytes = Chunk<kGroup>::kScaleBytes;

  __host__ __device__ static constexpr int chunks_of_warp(std::int64_t k) {
    return static_cast<int>((k + kChunk * kWarps - 1) / (kChunk * kWarps));
  }
  static constexpr int shared_bytes(std::int64_t k, bool offsets = true) {
    const int chunk = kChunkBytes + kScaleBytes * (offsets ? 2 : 1);
    return kWarps * (kTiles * chunks_of_warp(k) * chunk + kRows * 4 + 8);
  }
};

#if HPCDL_SM90A

/// The operands of a warp in shared memory: its chunks of each tile, then their scales, then their offsets.
template <class F> struct StripOfWarp {
  const Product& o;
  std::int64_t row;
  int begin, end, tiles;  // chunks; number of tiles
  int weight_stride, scale_stride;
  std::byte *weights, *scales;
  Arrivals<1> arrived;

  __device__ StripOfWarp(const Product& o_, int warp, std::byte* memory, Barrier* barriers)
      : o(o_), row(std::int64_t{blockIdx.x} * F::kRows), arrived{barriers + warp} {
    const int chunks = static_cast<int>((o.k + kChunk - 1) / kChunk), each = F::chunks_of_warp(o.k),
              left = static_cast<int>((o.n - row) / kTileRows);
    begin = warp * each, end = begin + each < chunks ? begin + each : chunks;
    tiles = left < F::kTiles ? left : F::kTiles;
    weight_stride = each * kChunkBytes, scale_stride = each * F::kScaleBytes;
    weights = memory + warp * F::kTiles * (weight_stride + scale_stride * (o.offset ? 2 : 1));
    scales = weights + F::kTiles * weight_stride;
  }
  /// f(to, from, bytes) for everything that the warp multiplies.
  template <class Copy> __device__ void each(unsigned weight_bytes, unsigned scale_bytes, Copy&& copy) const {
    for (int i = 0; i < tiles; ++i) {
      const std::int64_t tile = row + i * F::kTile,
                         scale = scale_at(tile, o.groups) + begin * kChunk / F::kGroup * F::kTile;
      copy(weights + i * weight_stride, o.packed + packed_at(tile, o.k) + begin * kChunk * F::kTile / 2, weight_bytes);
      copy(scales + i * scale_stride, o.scale + scale, scale_bytes);
      if (o.offset) copy(scales + (F::kTiles + i) * scale_stride, o.offset + scale, scale_bytes);
    }
  }
  /// Returns when everything has arrived. kAligned: aligned to 16 bytes, which tensors of a mapped file may not be.
  template <bool kAligned> __device__ void fetch(int lane) const {
    const int first = begin * kChunk, last = end * kChunk < o.k ? end * kChunk : static_cast<int>(o.k);
    const auto weight_bytes = static_cast<unsigned>((last - first) * F::kTile / 2),
               scale_bytes = static_cast<unsigned>((last - first) / F::kGroup * F::kTile * 2);
    if constexpr (kAligned) {
      if (lane == 0) {
        arrived.init();
        Mbarriers::publish();
        Barrier* const b = arrived.expect(
            Slot{0, 0}, static_cast<unsigned>(tiles) * (weight_bytes + scale_bytes * (o.offset ? 2 : 1)));
        each(weight_bytes, scale_bytes,
             [&](std::byte* to, const void* from, unsigned bytes) { bulk_load(to, from, bytes, b); });
      }
      __syncwarp();
      arrived.get(Slot{0, 0});
    } else {
      each(weight_bytes, scale_bytes, [&](std::byte* to, const void* from, unsigned bytes) {
        for (auto i = static_cast<unsigned>(lane); i < bytes; i += kWarp)
          to[i] = static_cast<const std::byte*>(from)[i];
      });
      __syncwarp();
    }
  }
};

/// The weights of one chunk of a warp's tiles in registers: lane (g, t) holds rows 2g and 2g + 1, blocks t, t + 4, ...
template <class F> struct StripChunk {
  uint2 weights[F::kTiles][8];

  __device__ StripChunk(const StripOfWarp<F>& s, int chunk, int lane) {
#pragma unroll
    for (int tile = 0; tile < F::kTiles; ++tile)
#pragma unroll
      for (int m = 0; m < 8; ++m)
        weights[tile][m] =
            *reinterpret_cast<const uint2*>(s.weights + tile * s.weight_stride + (chunk - s.begin) * kChunkBytes +
                                            m * 4 * F::kTile * 4 + lane % 4 * F::kTile * 4 + lane / 4 * 8);
  }
};

/// acc of (rows 2g, 2g + 1) of each tile += a chunk times the lanes' rounded inputs. Column n of the product stands for
/// the 32 inputs n: B is 0 except for them, so that one product serves 8 scales and a lane's B consists of the inputs
/// that it rounded.
template <class F>
__device__ void multiply(float (&acc)[F::kTiles][2], const StripOfWarp<F>& s, const StripChunk<F>& w, int chunk, int2 q,
                         float step, int sum, int lane) {
  const int g = lane / 4, t = lane % 4;
  const auto step_of = [&](int n) { return __shfl_sync(~0u, step, n * 4); };
  const auto sum_of = [&](int n) { return __shfl_sync(~0u, sum, n * 4); };
  const float step0 = step_of(2 * t), step1 = step_of(2 * t + 1);
  const int sum0 = sum_of(2 * t), sum1 = sum_of(2 * t + 1);
  int c[F::kTiles][4];
#pragma unroll
  for (int tile = 0; tile < F::kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[tile][i] = kMagicBits - 8 * (i % 2 ? sum1 : sum0);
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const int2 b{g == m ? q.x : 0, g == m ? q.y : 0};
#pragma unroll
    for (int tile = 0; tile < F::kTiles; ++tile) {
      unsigned a[4];
      unpack(a, w.weights[tile][m]);
      mma(c[tile], a, b);
    }
  }
  const auto pair = [&](const std::byte* of, int tile, int n) {  // of the inputs n; none exist beyond K
    const int group = n / (F::kGroup / 32);
    const std::byte* from = of + tile * s.scale_stride + (chunk - s.begin) * F::kScaleBytes;
    return widen_pair(chunk * Chunk<F::kGroup>::kGroups + group < s.o.groups
                          ? *reinterpret_cast<const unsigned*>(from + (group * F::kTile + 2 * g) * 2)
                          : 0u);
  };
#pragma unroll
  for (int tile = 0; tile < F::kTiles; ++tile) {
    const float2 s0 = pair(s.scales, tile, 2 * t), s1 = pair(s.scales, tile, 2 * t + 1);
    const auto value = [&](int i) { return __int_as_float(c[tile][i]) - kMagic; };
    acc[tile][0] = ::fmaf(value(1), s1.x * step1, ::fmaf(value(0), s0.x * step0, acc[tile][0]));
    acc[tile][1] = ::fmaf(value(3), s1.y * step1, ::fmaf(value(2), s0.y * step0, acc[tile][1]));
    if (!s.o.offset) continue;
    const std::byte* offsets = s.scales + F::kTiles * s.scale_stride;
    const float2 o0 = pair(offsets, tile, 2 * t), o1 = pair(offsets, tile, 2 * t + 1);
    const float total0 = step0 * static_cast<float>(sum0), total1 = step1 * static_cast<float>(sum1);
    acc[tile][0] = ::fmaf(o1.x, total1, ::fmaf(o0.x, total0, acc[tile][0]));
    acc[tile][1] = ::fmaf(o1.y, total1, ::fmaf(o0.y, total0, acc[tile][1]));
  }
}

#endif

template <class F, bool kAligned>
__global__ void __launch_bounds__(F::kThreads) multiply_strip(const __grid_constant__ Product o) {
#if HPCDL_SM90A
  extern __shared__ __align__(128) std::byte memory[];
  const int warp = warp_index(), lane = static_cast<int>(threadIdx.x) % kWarp;
  float* parts = reinterpret_cast<float*>(memory);  // sums of the warps
  Barrier* barriers = reinterpret_cast<Barrier*>(parts + F::kWarps * F::kRows);
  const StripOfWarp<F> strip(o, warp, reinterpret_cast<std::byte*>(barriers + F::kWarps), barriers);
  let_next_begin();
  if (!o.constant) await_previous();
  float acc[F::kTiles][2] = {};
  if (strip.begin < strip.end) {
    strip.template fetch<kAligned>(lane);
    StripChunk<F> w(strip, strip.begin, lane);
    await_previous();
    for (int chunk = strip.begin;;) {
      const std::int64_t at = std::int64_t{chunk} * kChunk + lane * 8;
      float step;
      int sum;
      const int2 q = round_inputs<F::kGroup / 8, 4>(at < o.k ? inputs(o, at) : Lanes<8>(0.0f), step, sum);
      multiply(acc, strip, w, chunk, q, step, sum, lane);
      if (++chunk == strip.end) break;
      w = StripChunk<F>(strip, chunk, lane);
    }
  }
#pragma unroll
  for (int i = 0; i < F::kTiles * 2; ++i) {
    float v = acc[i / 2][i % 2];
    v += __shfl_xor_sync(~0u, v, 1);
    v += __shfl_xor_sync(~0u, v, 2);
    if (lane % 4 == 0) parts[warp * F::kRows + i / 2 * F::kTile + lane / 4 * 2 + i % 2] = v;
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= strip.tiles * F::kTile) return;
  await_previous();  // a warp without products
  float v = 0;
#pragma unroll
  for (int p = 0; p < F::kWarps; ++p) v += parts[p * F::kRows + i];
  if (o.plain) cuda::put(o.y, o.y_dtype, strip.row + i, v);
  else put(o, v, 0, strip.row + i);
#endif
}

}  // namespace hpcdl::cuda::quant4
