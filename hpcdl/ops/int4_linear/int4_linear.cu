#include "hpcdl/ops/int4_linear/int4_linear.h"

#include "hpcdl/cuda/element.h"
#include "hpcdl/cuda/reduce.h"
#include "hpcdl/ops/fuse/activations.h"

// A block multiplies one tile of 16 rows of W with up to kInputs rows of x; its warps share out the groups. A warp reads two
// blocks of the tile, 128 bytes, at once: lane r holds row r mod 16. Weights are taken apart in registers: the nibbles of a
// dword are two operands of dp4a (four 8-bit products), or eight floats when the inputs are exact.

namespace hpcdl::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kInputs = 8;

struct Operands {
  void* y;
  const void *x, *bias, *residual;
  const std::uint8_t* packed;
  const bf16 *scale, *offset;
  std::int8_t* values;  // (rows, K): x in 8 bits
  float* steps;         // (rows, groups)
  std::int32_t* sums;   // (rows, groups): of the values
  std::int64_t rows, n, k, groups, x_stride, y_stride, residual_stride;
  DType x_dtype, y_dtype, bias_dtype;
  Int4Activation activation;
};

/// A warp rounds one group of one row, by the operations that define the 8-bit inputs (int4_linear.h).
__global__ void __launch_bounds__(kThreads) round_inputs(Operands o) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, group = o.k / o.groups;
  if (i >= o.rows * o.groups) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t row = i / o.groups, first = i % o.groups * group;
  float v[4], top = 0, poison = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    v[j] = lane + j * kWarp < group ? fetch(o.x, o.x_dtype, row * o.x_stride + first + lane + j * kWarp) : 0.0f;
    top = fmaxf(top, fabsf(v[j]));
    poison = ::fmaf(v[j], 0.0f, poison);  // NaN when an input is NaN or infinite
  }
  top = warp_reduce(top, Max{});
  poison = warp_reduce(poison, Sum{});
  const float per_step = top > 0x1p-100f ? 127.0f / top : 0.0f;
  int sum = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int q = __float2int_rn(fminf(fmaxf(v[j] * per_step, -127.0f), 127.0f));
    if (lane + j * kWarp < group) o.values[row * o.k + first + lane + j * kWarp] = static_cast<std::int8_t>(q);
    sum += q;
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) o.sums[i] = sum, o.steps[i] = (per_step > 0 ? top / 127.0f : 0.0f) + poison;
}

__device__ float activate(float v, Int4Activation a) {
  switch (a) {
    case Int4Activation::relu: return fuse::Relu::value(v);
    case Int4Activation::gelu: return fuse::GeluTanh::value(v);
    case Int4Activation::gelu_erf: return fuse::GeluErf::value(v);
    case Int4Activation::silu: return fuse::Silu::value(v);
    default: return v;
  }
}

__device__ void put(const Operands& o, float v, std::int64_t row, std::int64_t col) {
  if (o.bias) v += fetch(o.bias, o.bias_dtype, col);
  v = activate(v, o.activation);
  if (o.residual) v += fetch(o.residual, o.y_dtype, row * o.residual_stride + col);
  cuda::put(o.y, o.y_dtype, row * o.y_stride + col, v);
}

template <bool kExact, int kCount> __global__ void __launch_bounds__(kThreads) multiply_tile(Operands o) {
  __shared__ float parts[kWarps][kCount][int4::kTileRows];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp, r = lane % 16, odd = lane / 16;
  const std::int64_t tile = std::int64_t{blockIdx.x} * int4::kTileRows, rows = int4::tile_rows(tile, o.n), first = std::int64_t{blockIdx.y} * kCount;
  const std::int64_t group = o.k / o.groups, blocks = group / 8;
  const int count = static_cast<int>(o.rows - first < kCount ? o.rows - first : kCount);
  const std::uint8_t* packed = o.packed + int4::packed_at(tile, o.k);
  float acc[kCount] = {};
  if (r < rows)
    for (std::int64_t g = warp; g < o.groups; g += kWarps) {
      const std::int64_t at = int4::scale_at(tile, o.groups) + g * rows + r;
      const float scale = widen(o.scale[at]), offset = o.offset ? widen(o.offset[at]) : 0.0f;
      int dot[kCount] = {};
      float exact[kCount] = {};
#pragma unroll 4
      for (std::int64_t b = odd; b < blocks; b += 2) {
        const std::uint8_t* p = packed + ((g * blocks + b) * rows + r) * 4;
        const unsigned w = p[0] | p[1] << 8 | p[2] << 16 | static_cast<unsigned>(p[3]) << 24;  // a mapped file aligns nothing
        const std::int64_t k = g * group + b * 8;
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
          if (c >= count) break;
          if constexpr (kExact) {
            const std::int64_t x0 = (first + c) * o.x_stride + k;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const int shift = 8 * j;
              exact[c] = ::fmaf(::fmaf(static_cast<float>(static_cast<int>(w >> shift & 15) - 8), scale, offset), fetch(o.x, o.x_dtype, x0 + j), exact[c]);
              exact[c] = ::fmaf(::fmaf(static_cast<float>(static_cast<int>(w >> (shift + 4) & 15) - 8), scale, offset), fetch(o.x, o.x_dtype, x0 + 4 + j), exact[c]);
            }
          } else {
            const int2 x = *reinterpret_cast<const int2*>(o.values + (first + c) * o.k + k);
            dot[c] = __dp4a(static_cast<int>(w & 0x0f0f0f0fu), x.x, dot[c]);
            dot[c] = __dp4a(static_cast<int>(w >> 4 & 0x0f0f0f0fu), x.y, dot[c]);
          }
        }
      }
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        if (c >= count) break;
        if constexpr (kExact) {
          acc[c] += exact[c];
        } else {
          const std::int64_t i = (first + c) * o.groups + g;
          // The sum over the group is taken by one of the two lanes of a row: its -8 and its offset.
          const int centred = odd == 0 ? dot[c] - 8 * o.sums[i] : dot[c];
          acc[c] = ::fmaf(static_cast<float>(centred), scale * o.steps[i], acc[c]);
          if (odd == 0 && o.offset) acc[c] = ::fmaf(offset, o.steps[i] * static_cast<float>(o.sums[i]), acc[c]);
        }
      }
    }
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    const float both = acc[c] + __shfl_xor_sync(~0u, acc[c], 16);
    if (odd == 0) parts[warp][c][r] = both;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * int4::kTileRows; i += kThreads) {
    const int c = i / int4::kTileRows, row = i % int4::kTileRows;
    if (row >= rows) continue;
    float v = 0;
    for (int w = 0; w < kWarps; ++w) v += parts[w][c][row];
    put(o, v, first + c, tile + row);
  }
}

}  // namespace

void int4_linear(Stream& s, Tensor y, View x, const int4::Weight& w, View bias, View residual, const int4::Scratch& scratch, const Int4Linear::Args& a) {
  if (y.size() == 0 || x.size() == 0) return;
  const Operands o{y.data(), x.data(), bias.data(), residual.data(), w.packed.ptr<std::uint8_t>(), w.scale.ptr<bf16>(),
                   w.offset ? w.offset.ptr<bf16>() : nullptr, a.exact ? nullptr : scratch.values.ptr<std::int8_t>(), scratch.steps.ptr<float>(),
                   scratch.sums.ptr<std::int32_t>(), x.rows(), w.n(), w.k(), w.groups(), x.row_stride(), y.row_stride(),
                   residual ? residual.row_stride() : 0, x.dtype(), y.dtype(), bias.dtype(), a.activation};
  if (!a.exact) {
    round_inputs<<<blocks_for(o.rows * o.groups, kWarps), kThreads, 0, queue(s)>>>(o);
    launched("int4_linear.inputs");
  }
  const auto start = [&]<int kCount>() {
    const dim3 grid(blocks_for(int4::tiles(o.n), 1), blocks_for(o.rows, kCount));
    if (a.exact) multiply_tile<true, kCount><<<grid, kThreads, 0, queue(s)>>>(o);
    else multiply_tile<false, kCount><<<grid, kThreads, 0, queue(s)>>>(o);
  };
  if (o.rows == 1) start.template operator()<1>();
  else start.template operator()<kInputs>();
  launched("int4_linear");
}

}  // namespace hpcdl::cuda
