#pragma once
// One row of x on Hopper, for K up to 4096, or 8192 with larger blocks. A warp multiplies one chunk of all of a block's
// rows; a block has as many warps as K has chunks. Constant weights (Product::constant) are loaded before the preceding
// kernel has ended, and are in registers when x arrives: without going through shared memory there are no bank
// conflicts and no instructions to read it. K is a multiple of 256, N of a block's rows, and N K is below 2^32. Tensors
// of a file that are not aligned to 16 bytes are read byte by byte, with the same bits.
//
// The products use signed bytes, so that sums of x are needed only if there are offsets: the excess of 8 in the low
// nibbles q is subtracted by one product for all rows of W, and high nibbles become 16 (q - 8) by one instruction. All
// sums are 16 times too large.

#include "hpcdl/cuda/arch.cuh"
#include "hpcdl/cuda/warpgroup.cuh"
#include "hpcdl/ops/int4_linear/int4_device.cuh"

namespace hpcdl::cuda::quant4 {

/// kPairs: pairs of tiles per block. A lane loads 16 bytes: four rows of one tile of a pair.
template <int kGroup_, int kPairs_, int kWarps_ = 16> struct Direct {
  static constexpr int kGroup = kGroup_, kPairs = kPairs_, kWarps = kWarps_, kThreads = kWarps * kWarp,
                       kPairRows = 2 * static_cast<int>(kTileRows), kRows = kPairs * kPairRows,
                       kMostK = kWarps * kChunk,
                       kBlocks = kPairs * kWarps == 16 ? 2 : 1;  // per multiprocessor
  static constexpr int kScales = kGroup == 32 ? 2 : 1;           // per row, for the 64 inputs whose sums a lane gets
};

#if HPCDL_SM90A

/// Like stream16().
__device__ inline uint2 stream8(const void* p) {
  uint2 r;
  asm volatile("ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
               : "=r"(r.x), "=r"(r.y)
               : "l"(p)
               : "memory");
  return r;
}

/// The same for any address.
__device__ inline uint2 gather8(const void* p) {
  std::uint64_t r = 0;
#pragma unroll 1
  for (int i = 7; i >= 0; --i) r = r << 8 | static_cast<const std::uint8_t*>(p)[i];
  return {static_cast<unsigned>(r), static_cast<unsigned>(r >> 32)};
}
__device__ inline uint4 gather16(const std::uint8_t* p) {
  const uint2 low = gather8(p), high = gather8(p + 8);
  return {low.x, low.y, high.x, high.y};
}

/// c += a b of signed bytes; otherwise like mma().
__device__ inline void mma_signed(int (&c)[4], const unsigned (&a)[4], int b0, int b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// 16 (q - 8) of the high nibbles. sign: 0x80808080 in a register, because an instruction takes only one constant.
__device__ inline unsigned high_signed(unsigned w, unsigned sign) {
  unsigned r;
  asm("lop3.b32 %0, %1, 0xf0f0f0f0, %2, 0x6a;" : "=r"(r) : "r"(w), "r"(sign));
  return r;
}

/// The bias and the residual of a result, loaded before its sum is complete.
struct EarlyTerms {
  unsigned bias = 0, residual = 0;  // bits, of types that only joined() looks at, so that no load is waited for

  __device__ static unsigned bits(const void* p, DType d, unsigned i) {
    return d == DType::f32 ? static_cast<const unsigned*>(p)[i] : static_cast<const unsigned short*>(p)[i];
  }
  __device__ void bring(const Product& o, unsigned col) {
    if (o.bias) bias = bits(o.bias, o.bias_dtype, col);
    if (o.residual) residual = bits(o.residual, o.y_dtype, col);
  }
  __device__ float joined(const Product& o, float v) const {
    if (o.bias) v += fetch(&bias, o.bias_dtype, 0);
    v = activate(v, o.activation);
    return o.residual ? v + fetch(&residual, o.y_dtype, 0) : v;
  }
};

template <int N> __device__ float sum_in_pairs(const float* v) {
  if constexpr (N == 1) return *v;
  else return sum_in_pairs<N / 2>(v) + sum_in_pairs<N / 2>(v + N / 2);
}

/// One chunk of rows; lane (g, t) holds rows 4g .. 4g + 3 of each pair, blocks t, t + 4, ... `tile`: the first row of
/// the tile of a pair that the lane reads, the first tile if g < 4.
template <class F> struct DirectChunk {
  uint4 weights[F::kPairs][8];
  uint2 scales[F::kPairs][F::kScales], offsets[F::kPairs][F::kScales];

  template <class Matrix> __device__ DirectChunk(const Matrix& o, unsigned tile, unsigned chunk, unsigned lane) {
    if (o.aligned) fetch(o, tile, chunk, lane, [](auto* p) { return stream16(p); }, [](auto* p) { return stream8(p); });
    else fetch(o, tile, chunk, lane, [](auto* p) { return gather16(p); }, [](auto* p) { return gather8(p); });
  }

 private:
  template <class Matrix, class Weights, class Scales>
  __device__ void fetch(const Matrix& o, unsigned tile, unsigned chunk, unsigned lane, Weights of16, Scales of8) {
    constexpr unsigned kTile = kTileRows;
    const unsigned g = lane / 4, t = lane % 4, k = static_cast<unsigned>(o.k);
    const unsigned from = tile * (k / 2) + chunk * kChunkBytes + t * (kTile * 4) + g % 4 * 16,
                   scale = tile * (k / F::kGroup) + (chunk * kChunk + t * 64) / F::kGroup * kTile + g % 4 * 4;
#pragma unroll
    for (int p = 0; p < F::kPairs; ++p) {
      const unsigned pair = from + p * F::kPairRows * (k / 2), at = scale + p * F::kPairRows * (k / F::kGroup);
#pragma unroll
      for (int m = 0; m < 8; ++m) weights[p][m] = of16(o.packed + pair + m * kTile * 16);
#pragma unroll
      for (int i = 0; i < F::kScales; ++i) {
        scales[p][i] = of8(o.scale + at + i * kTile);
        offsets[p][i] = o.offset ? of8(o.offset + at + i * kTile) : uint2{0, 0};
      }
    }
  }
};

/// Sums of a pair over 64 inputs: lane (g, t) receives rows 4g .. 4g + 3, blocks 2t and 2t + 1 of 32 inputs, 16 times
/// too large. q: the lanes' rounded inputs. Column n of a product stands for the 32 inputs n: B is 0 except for them.
__device__ inline void multiply(int (&sums)[4][2], const uint4 (&w)[8], int2 q, unsigned g) {
  constexpr unsigned kLow = 0x0f0f0f0fu, kMinus8 = 0xf8f8f8f8u;
  const unsigned minus8[4] = {kMinus8, kMinus8, kMinus8, kMinus8};
  unsigned sign;
  asm("mov.u32 %0, 0x80808080;" : "=r"(sign));
  int low[2][4] = {}, high[2][4] = {};
  mma_signed(low[0], minus8, q.x, 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) low[1][i] = low[0][i];
#pragma unroll
  for (unsigned m = 0; m < 8; m += 2) {
    const int low0 = g == m ? q.x : 0, low1 = g == m + 1 ? q.x : 0, high0 = g == m ? q.y : 0,
              high1 = g == m + 1 ? q.y : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned v[4] = {i ? w[m].z : w[m].x, i ? w[m].w : w[m].y, i ? w[m + 1].z : w[m + 1].x,
                             i ? w[m + 1].w : w[m + 1].y};
      const unsigned l[4] = {v[0] & kLow, v[1] & kLow, v[2] & kLow, v[3] & kLow};
      const unsigned h[4] = {high_signed(v[0], sign), high_signed(v[1], sign), high_signed(v[2], sign),
                             high_signed(v[3], sign)};
      mma_signed(low[i], l, low0, low1);
      mma_signed(high[i], h, high0, high1);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i / 2][i % 2] = high[i / 4][i % 4] + 16 * low[i / 4][i % 4];
}

/// sums[4g + t of pair p] = chunk times the lanes' rounded inputs.
template <class F>
__device__ void multiply(float* sums, const DirectChunk<F>& w, bool offsets, int2 q, float step, unsigned lane) {
  const unsigned g = lane / 4, t = lane % 4;
  const auto value = [](const int* blocks, int i) {  // for one scale; exact: below 2^20
    const int sum = F::kScales == 2 ? blocks[i] : blocks[0] + blocks[1];
    return __int_as_float(sum + kMagicBits) - kMagic;
  };
  float steps[F::kScales], totals[F::kScales] = {};
#pragma unroll
  for (int i = 0; i < F::kScales; ++i) steps[i] = __shfl_sync(~0u, step, t * 8 + i * 4) * 0.0625f;
  if (offsets) {
    const unsigned sixteens[4] = {0x10101010u, 0x10101010u, 0x10101010u, 0x10101010u};
    int c[4] = {};
    mma_signed(c, sixteens, q.x, q.y);
#pragma unroll
    for (int i = 0; i < F::kScales; ++i) totals[i] = value(c, i) * steps[i];
  }
#pragma unroll
  for (int p = 0; p < F::kPairs; ++p) {
    int c[4][2];
    multiply(c, w.weights[p], q, g);
    float v[4] = {};
#pragma unroll
    for (int i = 0; i < F::kScales; ++i) {
      const float2 s[2] = {widen_pair(w.scales[p][i].x), widen_pair(w.scales[p][i].y)};
#pragma unroll
      for (int r = 0; r < 4; ++r) v[r] = ::fmaf(value(c[r], i), (r % 2 ? s[r / 2].y : s[r / 2].x) * steps[i], v[r]);
      if (!offsets) continue;
      const float2 o[2] = {widen_pair(w.offsets[p][i].x), widen_pair(w.offsets[p][i].y)};
#pragma unroll
      for (int r = 0; r < 4; ++r) v[r] = ::fmaf(r % 2 ? o[r / 2].y : o[r / 2].x, totals[i], v[r]);
    }
    // Of the four lanes' sums of four rows, each lane keeps those of one row.
    const bool second = t & 2, odd = t & 1;
    const float a = (second ? v[2] : v[0]) + __shfl_xor_sync(~0u, second ? v[0] : v[2], 2),
                b = (second ? v[3] : v[1]) + __shfl_xor_sync(~0u, second ? v[1] : v[3], 2);
    sums[p * F::kPairRows + lane] = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
  }
}

#endif

template <class F>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) multiply_direct(const __grid_constant__ Product o) {
#if HPCDL_SM90A
  __shared__ float parts[F::kWarps][F::kRows];
  const unsigned warp = static_cast<unsigned>(warp_index()), lane = threadIdx.x % kWarp;
  let_next_begin();
  if (!o.constant) await_previous();
  const unsigned row = warp * F::kPairRows + lane, col = blockIdx.x * F::kRows + row;
  EarlyTerms terms;
  if (warp * kChunk < o.k) {
    const DirectChunk<F> w(o, blockIdx.x * F::kRows + lane / 16 * static_cast<unsigned>(kTileRows), warp, lane);
    await_previous();
    if (warp < F::kPairs) terms.bring(o, col);
    float step;
    const unsigned at = warp * kChunk + lane * 8;
    const Lanes<8> x = o.aligned_x ? aligned_inputs(o, at) : inputs(o, at);
    const int2 q = round_inputs<F::kGroup / 8>(x, step);
    multiply<F>(parts[warp], w, o.offset != nullptr, q, step, lane);
  } else {
#pragma unroll
    for (int p = 0; p < F::kPairs; ++p) parts[warp][p * F::kPairRows + lane] = 0;
    await_previous();
    if (warp < F::kPairs) terms.bring(o, col);
  }
  constexpr int kBarrier = 1;
  if (warp >= F::kPairs) {
    named_arrive(kBarrier, static_cast<int>(blockDim.x));
    return;
  }
  named_sync(kBarrier, static_cast<int>(blockDim.x));
  float v[F::kWarps];
#pragma unroll
  for (unsigned i = 0; i < F::kWarps; ++i) v[i] = i < blockDim.x / kWarp ? parts[i][row] : 0;
  const float sum = sum_in_pairs<F::kWarps>(v);
  cuda::put(o.y, o.y_dtype, col, o.plain ? sum : terms.joined(o, sum));
#endif
}

}  // namespace hpcdl::cuda::quant4
