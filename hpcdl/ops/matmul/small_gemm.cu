#include "hpcdl/ops/matmul/plain_gemm.cuh"

#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/matmul/tile_plan.cuh"

// Products of a few rows or columns, or of a short k, as in the last layer of a classifier: with a tile of 64 or 128
// one block of the GPU would iterate over k alone. If both operands run along k, each element is computed by a warp.
// Otherwise a block, whose warps divide k, computes 32 neighbours.

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

template <class E>
__device__ float element(const GemmOperand& o, std::int64_t base, std::int64_t row, std::int64_t k, bool along_k) {
  return widen(static_cast<const E*>(o.data)[base + (along_k ? row * o.ld + k : k * o.ld + row)]);
}

template <class E, class T, bool kAlongK>
__global__ void __launch_bounds__(kThreads) small(const __grid_constant__ Gemm g) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t i = kAlongK ? std::int64_t{blockIdx.x} * kWarps + warp : std::int64_t{blockIdx.x} * kWarp + lane,
                     batch = blockIdx.y;
  const bool exists = i < g.m * g.n;
  const auto row = static_cast<std::int64_t>(static_cast<unsigned>(i) / static_cast<unsigned>(g.n)),
             col = i - row * g.n;
  const std::int64_t base_a = batch * g.a.batch_stride, base_b = batch * g.b.batch_stride;
  const bool a_along_k = !g.a.transposed, b_along_k = g.b.transposed;
  float sum = 0;
  if (exists)
#pragma unroll 8
    for (std::int64_t k = kAlongK ? lane : warp; k < g.k; k += kAlongK ? kWarp : kWarps)
      sum = ::fmaf(element<E>(g.a, base_a, row, k, a_along_k), element<E>(g.b, base_b, col, k, b_along_k), sum);
  if constexpr (kAlongK) {
#pragma unroll
    for (int apart = kWarp / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (exists && lane == 0) finish<T>(g.out, sum, row, col, batch);
  } else {
    __shared__ float sums[kWarps][kWarp];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || !exists) return;
    for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
    finish<T>(g.out, sum, row, col, batch);
  }
}

}  // namespace

Gemm at_whole_addresses(Gemm g) {
  alignas(16) static std::byte somewhere;
  g.a.data = g.b.data = g.out.d = &somewhere;
  if (g.out.residual) g.out.residual = &somewhere;
  if (g.out.z) g.out.z = &somewhere;
  return g;
}

// A product that the tiles compute from an arena, whose addresses are aligned, must have the same bits at any address:
// plain_gemm()'s other kernels add in the order of the tiles, this one does not.
bool fits_small_gemm(const Gemm& g) {
  constexpr std::int64_t kFew = 16, kMostElements = 1 << 18;
  return (g.m <= kFew || g.n <= kFew || g.k <= kFew) && g.m * g.n <= kMostElements && g.k <= 4096 && g.batch <= 65535 &&
         g.a.dtype == g.compute && g.b.dtype == g.compute && !fits_tiles(at_whole_addresses(g));
}

void small_gemm(Stream& s, const Gemm& g) {
  const bool along_k = !g.a.transposed && g.b.transposed && g.k >= kWarp;
  const dim3 grid(blocks_for(g.m * g.n, along_k ? kWarps : kWarp), static_cast<unsigned>(g.batch));
  visit_dtype(g.compute, [&]<class E>() {
    visit_dtype(g.out.dtype, [&]<class T>() {
      along_k ? small<E, T, true><<<grid, kThreads, 0, queue(s)>>>(g)
              : small<E, T, false><<<grid, kThreads, 0, queue(s)>>>(g);
    });
  });
  launched("matmul");
}

}  // namespace hpcdl::cuda
