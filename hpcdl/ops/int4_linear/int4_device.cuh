#pragma once
// Shared code of the CUDA kernels of int4_linear (.cu files): operands, copies of chunks of a tile of weights into
// shared memory, the rounding of inputs, 8-bit products on tensor cores, the end of a sum.
//
// A tile's dword (int4_layout.h) becomes two registers of operand A of mma.m16n8k32 with one AND and one shift: lane
// (g, t), g = lane / 4, t = lane % 4, takes dwords 2g and 2g + 1 of block b0 + t, so that row 2g is row g of the
// operand and row 2g + 1 is row g + 8, and the low and the high nibbles are inputs 8 (b0 + t) .. +3 and +4 .. +7 of the
// same lane's 8 bytes of x.

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"

namespace hpcdl::cuda::quant4 {

using namespace hpcdl::int4;

inline constexpr int kChunk = 256, kChunkBlocks = kChunk / 8, kChunkBytes = kChunk / 2 * kTileRows;
/// Integers up to 2^22 in the mantissa of a float: the bits of 1.5 * 2^23 + v, so that a sum of products becomes a
/// float by one subtraction. The largest is 128 products of 15 and 127.
inline constexpr int kMagicBits = 0x4b400000;
inline constexpr float kMagic = 12582912.0f;

struct Product {
  void* y;
  const void *x, *bias, *residual;
  const std::uint8_t* packed;
  const bf16 *scale, *offset;
  std::int8_t* values;  // (rows, K): x in 8 bits
  float* steps;         // (groups, rows)
  std::int32_t* sums;   // (groups, rows): sums of the values
  std::int64_t rows, n, k, groups, x_stride, y_stride, residual_stride;
  DType x_dtype, y_dtype, bias_dtype;
  Int4Activation activation;
  bool aligned;  // weights, scales and offsets are aligned to 16 bytes
  bool aligned_x;
  bool constant;  // no preceding kernel writes them
  bool plain;     // neither bias nor activation nor residual
};

// ---------------------------------------------------------------- instructions

/// Issues a 16-byte copy, or stores zeros if there is nothing to copy.
__device__ inline void copy16(void* to, const void* from, bool there = true) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(there ? 16 : 0));
}
__device__ inline void copy4(void* to, const void* from, bool there = true) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(there ? 4 : 0));
}
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the newest kNewest groups have arrived.
template <int kNewest> __device__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

/// c += a b, 16 rows x 32 unsigned bytes by 32 signed bytes x 8 columns. Lane (g, t) receives rows g, g, g + 8, g + 8
/// of columns 2t, 2t + 1, 2t, 2t + 1.
__device__ inline void mma(int (&c)[4], const unsigned (&a)[4], int2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

/// Operand A from two dwords of weights: bytes 0 .. 15.
__device__ inline void unpack(unsigned (&a)[4], uint2 w) {
  a[0] = w.x & 0x0f0f0f0fu, a[1] = w.y & 0x0f0f0f0fu;
  a[2] = w.x >> 4 & 0x0f0f0f0fu, a[3] = w.y >> 4 & 0x0f0f0f0fu;
}

// A kernel that begins early (cuda/overlap.cuh) may prefetch weights.
__device__ inline void bring_closer(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// ---------------------------------------------------------------- weights

/// Chunk c of the tile that starts at `row`, and the positions of its parts in shared memory.
template <int kGroup> struct Chunk {
  static constexpr int kGroups = kChunk / kGroup, kScaleBytes = kGroups * static_cast<int>(kTileRows) * 2;
  std::int64_t row, first;  // first: block of 8 inputs
  int rows, blocks;

  __device__ Chunk(const Product& o, std::int64_t row_, std::int64_t c)
      : row(row_),
        first(c * kChunkBlocks),
        rows(static_cast<int>(o.n - row_ < kTileRows ? o.n - row_ : kTileRows)),
        blocks(static_cast<int>(o.k / 8 - first < kChunkBlocks ? o.k / 8 - first : kChunkBlocks)) {}
  __device__ int groups() const { return blocks * 8 / kGroup; }
  __device__ const std::uint8_t* packed(const Product& o) const {
    return o.packed + packed_at(row, o.k) + first * rows * 4;
  }
  __device__ std::int64_t scale(const Product& o) const { return scale_at(row, o.groups) + first * 8 / kGroup * rows; }

  __device__ void bring_closer(const Product& o, int lane) const {
    if (!o.aligned) return;
    const int lines = blocks * rows * 4 / 128, more = groups() * rows * 2 / 128;
    if (lane < lines) quant4::bring_closer(packed(o) + lane * 128);
    else if (lane - lines < more)
      quant4::bring_closer(reinterpret_cast<const std::byte*>(o.scale + scale(o)) + (lane - lines) * 128);
  }

  /// A warp issues the copies (weights, then scales, then offsets); elements beyond the matrix become 0.
  __device__ void fetch(std::byte* to, const Product& o, int lane) const {
    const std::uint8_t* q = packed(o);
    std::byte* scales = to + kChunkBytes;
    if (o.aligned && rows == kTileRows) {
#pragma unroll
      for (int i = 0; i < kChunkBytes / 512; ++i)
        copy16(to + (i * 32 + lane) * 16, q + (i * 32 + lane) * 16, i * 8 + lane / 4 < blocks);
      if (lane < kGroups * 2) {
        copy16(scales + lane * 16, o.scale + scale(o) + lane * 8, lane < groups() * 2);
        if (o.offset) copy16(scales + kScaleBytes + lane * 16, o.offset + scale(o) + lane * 8, lane < groups() * 2);
      }
      return;
    }
    // The last rows of a matrix, or a mapped file, in which nothing is aligned.
    constexpr int kTile = static_cast<int>(kTileRows);
    for (int i = lane; i < kChunkBlocks * kTile; i += kWarp) {
      const std::uint8_t* p = q + (i / kTile * rows + i % kTile) * 4;
      const bool there = i / kTile < blocks && i % kTile < rows;
      reinterpret_cast<unsigned*>(to)[i] =
          there ? p[0] | p[1] << 8 | p[2] << 16 | static_cast<unsigned>(p[3]) << 24 : 0;
    }
    for (int i = lane; i < kGroups * kTile; i += kWarp) {
      const bool there = i / kTile < groups() && i % kTile < rows;
      const std::int64_t from = scale(o) + i / kTile * rows + i % kTile;
      reinterpret_cast<bf16*>(scales)[i] = there ? o.scale[from] : bf16{};
      if (o.offset) reinterpret_cast<bf16*>(scales + kScaleBytes)[i] = there ? o.offset[from] : bf16{};
    }
  }
};

/// Two neighbouring bf16 as floats.
__device__ inline float2 widen_pair(unsigned v) { return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)}; }

// ---------------------------------------------------------------- inputs

/// The larger of both, or NaN if either is NaN.
__device__ inline float larger(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
/// 127 / most and most / 127, correctly rounded, for most > 2^-100: without the branches of a division, verified on an
/// H200 for every float. For infinity the second is NaN.
__device__ inline float per_step_of(float most) {
#if __CUDA_ARCH__ == 900
  const float b = most * 0.25f;  // its reciprocal is not subnormal
  float y = fast_reciprocal(b);
  y = __fmaf_rn(y, __fmaf_rn(-b, y, 1.0f), y);
  const float q = 31.75f * y;
  return __fmaf_rn(__fmaf_rn(-b, q, 31.75f), y, q);
#else
  return 127.0f / most;
#endif
}
__device__ inline float step_of(float most) {
  constexpr float y = 1.0f / 127.0f;
  const float q = most * y;
  return __fmaf_rn(__fmaf_rn(-127.0f, q, most), y, q);
}

/// v, or 0 if most <= 2^-100; in assembly, because the compiler would generate a branch.
__device__ inline float unless_tiny(float most, float v) {
  float r;
  asm("{\n.reg .pred p;\nsetp.gtu.f32 p, %1, 0f0D800000;\nselp.f32 %0, %2, 0f00000000, p;\n}"
      : "=f"(r)
      : "f"(most), "f"(v));
  return r;
}

/// Rounds 8 inputs of one lane together with those of the other lanes of their group (kLanesOfGroup neighbours), by the
/// operations that define the 8-bit inputs (int4_linear.h). NaN and infinity make the step NaN.
template <int kLanesOfGroup> __device__ int2 round_inputs(const Lanes<8>& v, float& step) {
  float most[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) most[i] = fabsf(v.v[i]);
#pragma unroll
  for (int d = 4; d > 0; d /= 2)
#pragma unroll
    for (int i = 0; i < d; ++i) most[i] = larger(most[i], most[i + d]);
#pragma unroll
  for (int d = 1; d < kLanesOfGroup; d *= 2) most[0] = larger(most[0], __shfl_xor_sync(~0u, most[0], d));
  const float per_step = unless_tiny(most[0], per_step_of(most[0]));
  step = unless_tiny(most[0], step_of(most[0]));
  unsigned q[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    q[i] = __float_as_uint(__fadd_rn(__fmul_rn(v.v[i], per_step), kMagic));  // rounded to nearest even in the low byte
  const auto pack = [&](int i) {
    return static_cast<int>(
        __byte_perm(__byte_perm(q[i], q[i + 1], 0x0040), __byte_perm(q[i + 2], q[i + 3], 0x0040), 0x5410));
  };
  return {pack(0), pack(4)};
}
/// sum: over kLanesOfSum neighbours.
template <int kLanesOfGroup, int kLanesOfSum = kLanesOfGroup>
__device__ int2 round_inputs(const Lanes<8>& v, float& step, int& sum) {
  const int2 q = round_inputs<kLanesOfGroup>(v, step);
  sum = __dp4a(q.x, 0x01010101, __dp4a(q.y, 0x01010101, 0));
#pragma unroll
  for (int d = 1; d < kLanesOfSum; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
  return q;
}

/// x[at .. at + 7] of one row.
__device__ inline Lanes<8> inputs(const Product& o, std::int64_t at) {
  if (o.x_dtype == DType::f16) return load<8>(static_cast<const f16*>(o.x) + at);
  return o.x_dtype == DType::bf16 ? load<8>(static_cast<const bf16*>(o.x) + at)
                                  : load<8>(static_cast<const float*>(o.x) + at);
}
/// The same for a row that is aligned to 16 bytes.
__device__ inline Lanes<8> aligned_inputs(const Product& o, unsigned at) {
  if (o.x_dtype == DType::bf16) return widen(read_aligned<8>(static_cast<const bf16*>(o.x) + at));
  return o.x_dtype == DType::f16 ? widen(read_aligned<8>(static_cast<const f16*>(o.x) + at))
                                 : widen(read_aligned<8>(static_cast<const float*>(o.x) + at));
}

// ---------------------------------------------------------------- results

__device__ inline float activate(float v, Int4Activation a) {
  switch (a) {
    case Int4Activation::relu: return fuse::Relu::value(v);
    case Int4Activation::gelu: return fuse::GeluTanh::value(v);
    case Int4Activation::gelu_erf: return fuse::GeluErf::value(v);
    case Int4Activation::silu: return fuse::Silu::value(v);
    default: return v;
  }
}

/// Not inline: a kernel contains dozens of these calls.
__device__ __noinline__ inline void put(const Product& o, float v, std::int64_t row, std::int64_t col) {
  if (o.bias) v += fetch(o.bias, o.bias_dtype, col);
  v = activate(v, o.activation);
  if (o.residual) v += fetch(o.residual, o.y_dtype, row * o.residual_stride + col);
  cuda::put(o.y, o.y_dtype, row * o.y_stride + col, v);
}

}  // namespace hpcdl::cuda::quant4
