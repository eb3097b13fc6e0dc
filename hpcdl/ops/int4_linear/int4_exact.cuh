#pragma once
// Unrounded inputs: weights become bf16 in registers, (q - 8) exactly, and products are bf16 x bf16 on tensor cores
// with f32 sums. An f32 input is the exact sum of three bf16 and an f16 one of two (the mantissa is split), so it costs
// three or two products instead of one and no precision. A block multiplies one tile of 16 rows of W by up to 8 rows of
// x; its warps divide the chunks.

#include "hpcdl/ops/int4_linear/int4_device.cuh"

namespace hpcdl::cuda::quant4 {

template <int kGroup_, class X_> struct Exact {
  static constexpr int kGroup = kGroup_, kWarps = 8, kThreads = kWarps * kWarp, kInputs = 8, kStages = 3;
  static constexpr int kGroups = Chunk<kGroup>::kGroups, kStageBytes = kChunkBytes + 2 * Chunk<kGroup>::kScaleBytes;
  static constexpr int kSharedBytes = kWarps * kStages * kStageBytes;
  using X = X_;
  static constexpr int kParts = std::is_same_v<X, bf16> ? 1 : std::is_same_v<X, f16> ? 2 : 3;
};

/// c += a b, 16 x 16 by 16 x 8 in bf16.
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

/// The nibbles at bits 0 and 16 as bf16, minus 8: placed in the mantissa of 128, whose steps are 1.
__device__ inline unsigned to_bf16(unsigned w) {
  const unsigned v = (w & 0x000f000fu) | 0x43004300u;
  const __nv_bfloat162 centred = __hsub2(reinterpret_cast<const __nv_bfloat162&>(v),
                                         __nv_bfloat162{__ushort_as_bfloat16(0x4308), __ushort_as_bfloat16(0x4308)});
  return reinterpret_cast<const unsigned&>(centred);
}

/// 8 inputs as operand B of two products, for each part: inputs 0, 2, 4, 6 and 1, 3, 5, 7, in the order of a dword's
/// nibbles.
template <int kParts> __device__ void split(uint2 (&b)[kParts][2], Lanes<8> x) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    unsigned u[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      u[i] = __float_as_uint(x.v[i]);
      x.v[i] -= __uint_as_float(u[i] & 0xffff0000u);  // infinity gives NaN
    }
    b[p][0] = {__byte_perm(u[0], u[2], 0x7632), __byte_perm(u[4], u[6], 0x7632)};
    b[p][1] = {__byte_perm(u[1], u[3], 0x7632), __byte_perm(u[5], u[7], 0x7632)};
  }
}

/// acc += one group; x: the inputs of this lane's row at the chunk, null if the row does not exist.
template <class F>
__device__ void multiply_group(float (&acc)[4], const std::byte* stage, const typename F::X* x, int group, bool offsets,
                               int lane) {
  const int g = lane / 4, t = lane % 4;
  const unsigned ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  float c[4] = {}, total[4] = {};
#pragma unroll
  for (int m = 0; m < F::kGroup / 32; ++m) {
    const int block = (group * (F::kGroup / 32) + m) * 4 + t;
    uint2 b[F::kParts][2];
    split<F::kParts>(b, x ? load<8>(x + block * 8) : Lanes<8>(0.0f));
    const uint2 w = *reinterpret_cast<const uint2*>(stage + (block * static_cast<int>(kTileRows) + 2 * g) * 4);
    const unsigned even[4] = {to_bf16(w.x), to_bf16(w.y), to_bf16(w.x >> 4), to_bf16(w.y >> 4)};
    const unsigned odd[4] = {to_bf16(w.x >> 8), to_bf16(w.y >> 8), to_bf16(w.x >> 12), to_bf16(w.y >> 12)};
#pragma unroll
    for (int p = F::kParts - 1; p >= 0; --p) {
      mma(c, even, b[p][0]), mma(c, odd, b[p][1]);
      if (offsets) mma(total, ones, b[p][0]), mma(total, ones, b[p][1]);
    }
  }
  const std::byte* at = stage + kChunkBytes + (group * static_cast<int>(kTileRows) + 2 * g) * 2;
  const float2 scale = widen_pair(*reinterpret_cast<const unsigned*>(at));
  float2 offset{0, 0};
  if (offsets) offset = widen_pair(*reinterpret_cast<const unsigned*>(at + Chunk<F::kGroup>::kScaleBytes));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    acc[i] = ::fmaf(c[i], i < 2 ? scale.x : scale.y, acc[i]);
    if (offsets) acc[i] = ::fmaf(total[i], i < 2 ? offset.x : offset.y, acc[i]);
  }
}

template <class F> __global__ void __launch_bounds__(F::kThreads) multiply_exact(const __grid_constant__ Product o) {
  extern __shared__ __align__(16) std::byte memory[];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4,
            t = lane % 4;
  const std::int64_t tile = std::int64_t{blockIdx.x} * kTileRows, first = std::int64_t{blockIdx.y} * F::kInputs,
                     chunks = (o.k + kChunk - 1) / kChunk;
  const int count = static_cast<int>(o.rows - first < F::kInputs ? o.rows - first : F::kInputs);
  const auto* x = g < count ? static_cast<const typename F::X*>(o.x) + (first + g) * o.x_stride : nullptr;
  std::byte* ring = memory + warp * F::kStages * F::kStageBytes;
  const auto fetch = [&](std::int64_t c, int slot) {
    if (c < chunks) Chunk<F::kGroup>(o, tile, c).fetch(ring + slot * F::kStageBytes, o, lane);
    close_copies();
  };
  let_next_begin();
  await_previous();
  float acc[4] = {};
  for (int i = 0; i < F::kStages - 1; ++i) fetch(warp + std::int64_t{i} * F::kWarps, i);
  int slot = 0;
  for (std::int64_t c = warp; c < chunks; c += F::kWarps, slot = (slot + 1) % F::kStages) {
    fetch(c + (F::kStages - 1) * F::kWarps, (slot + F::kStages - 1) % F::kStages);
    await_copies<F::kStages - 1>();
    __syncwarp();
    const int groups = Chunk<F::kGroup>(o, tile, c).groups();
    for (int group = 0; group < groups; ++group)
      multiply_group<F>(acc, ring + slot * F::kStageBytes, x ? x + c * kChunk : nullptr, group, o.offset != nullptr,
                        lane);
    __syncwarp();
  }
  __syncthreads();
  auto* parts = reinterpret_cast<float (*)[F::kInputs][kTileRows]>(memory);
#pragma unroll
  for (int i = 0; i < 4; ++i) parts[warp][2 * t + i % 2][2 * g + i / 2] = acc[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * static_cast<int>(kTileRows); i += F::kThreads) {
    const int row = i % static_cast<int>(kTileRows), col = i / static_cast<int>(kTileRows);
    if (tile + row >= o.n) continue;
    float v = 0;
#pragma unroll
    for (int w = 0; w < F::kWarps; ++w) v += parts[w][col][row];
    put(o, v, first + col, tile + row);
  }
}

}  // namespace hpcdl::cuda::quant4
