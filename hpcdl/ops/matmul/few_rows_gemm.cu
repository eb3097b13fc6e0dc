#include <type_traits>

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/reduce.h"
#include "hpcdl/ops/matmul/plain_gemm.h"

// Up to four rows times weights (N, K), as a language model decodes, one of the two in 16 bits: bound by reading the weights once. A warp
// has a row of them, 16 bytes to a lane, several pieces on their way before the first is used.

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp, kMostRows = 4, kPiece = 8;

/// kPiece elements at p, of which n exist. kWhole: all or none of them, at a multiple of 16 bytes. Other addresses give
/// the same sums.
template <bool kWhole, class E> __device__ Pack<E, kPiece> piece(const E* p, int n) {
  if constexpr (!kWhole) return read<kPiece>(p, 0, n, E{});
  else return n > 0 ? read_aligned<kPiece>(p) : Pack<E, kPiece>{};
}

/// As a product in A's type takes it.
template <class A, class B> __device__ Lanes<kPiece> rounded(const Pack<B, kPiece>& w) {
  if constexpr (sizeof(A) < sizeof(B)) return widen(pack<A>(widen(w)));
  else return widen(w);
}

template <class A, class B, class T, int kRows, bool kWhole>
__global__ void __launch_bounds__(kThreads) few_rows(const __grid_constant__ Gemm g) {
  constexpr int kAhead = kRows == 1 ? 8 : 4, kStep = kWarp * kPiece;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            rows = static_cast<int>(g.m), length = static_cast<int>(g.k);
  const std::int64_t col = std::int64_t{blockIdx.x} * kWarps + warp, batch = blockIdx.y;
  if (col >= g.n) return;
  const A* const a = static_cast<const A*>(g.a.data) + batch * g.a.batch_stride;
  const B* const b = static_cast<const B*>(g.b.data) + batch * g.b.batch_stride + col * g.b.ld;
  Lanes<kPiece> sums[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = Lanes<kPiece>(0.0f);
  for (int k0 = lane * kPiece; k0 < length; k0 += kAhead * kStep) {
    Pack<B, kPiece> w[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) w[i] = piece<kWhole>(b + k0 + i * kStep, length - k0 - i * kStep);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = k0 + i * kStep;
      if (k >= length) break;
      const auto weights = rounded<A>(w[i]);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (r < rows) sums[r] = fma(weights, widen(piece<kWhole>(a + r * g.a.ld + k, length - k)), sums[r]);
    }
  }
  float mine = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float all = warp_reduce(sum(sums[r]), Sum{});
    if (lane == r) mine = all;
  }
  if (lane < rows) finish<T>(g.out, mine, lane, col, batch);
}

template <class A, class B, class T> void start(Stream& s, const Gemm& g) {
  const auto whole = [&](const GemmOperand& o) {
    return reinterpret_cast<std::uintptr_t>(o.data) % 16 == 0 && o.ld * dtype_bytes(o.dtype) % 16 == 0 &&
           o.batch_stride * dtype_bytes(o.dtype) % 16 == 0;
  };
  const dim3 grid(blocks_for(g.n, kWarps), static_cast<unsigned>(g.batch));
  const auto launch = [&]<int kRows>() {
    if (whole(g.a) && whole(g.b) && g.k % kPiece == 0)
      few_rows<A, B, T, kRows, true><<<grid, kThreads, 0, queue(s)>>>(g);
    else few_rows<A, B, T, kRows, false><<<grid, kThreads, 0, queue(s)>>>(g);
  };
  if (g.m == 1) launch.template operator()<1>();
  else launch.template operator()<kMostRows>();
  launched("matmul");
}

}  // namespace

bool fits_few_rows(const Gemm& g) {
  constexpr std::int64_t kLeast = 128, kLongest = 1 << 24;
  return g.m <= kMostRows && g.n >= kLeast && g.k >= kLeast && g.k <= kLongest && g.batch <= 65535 && !g.a.transposed &&
         g.b.transposed && g.a.dtype == g.compute &&
         (g.compute == DType::f32 ? g.b.dtype != DType::f32 : g.b.dtype == g.compute || g.b.dtype == DType::f32) &&
         (g.out.dtype == DType::f32 || g.out.dtype == g.compute);
}

void few_rows_gemm(Stream& s, const Gemm& g) {
  const auto to = [&]<class A, class B>() {
    if (std::is_same_v<A, float> || g.out.dtype != DType::f32) start<A, B, A>(s, g);
    else start<A, B, float>(s, g);
  };
  const auto with = [&]<class E>() {  // of 16 bits
    if (g.compute == DType::f32) to.template operator()<float, E>();
    else if (g.b.dtype == DType::f32) to.template operator()<E, float>();
    else to.template operator()<E, E>();
  };
  if (g.compute == DType::f16 || (g.compute == DType::f32 && g.b.dtype == DType::f16)) with.template operator()<f16>();
  else with.template operator()<bf16>();
}

}  // namespace hpcdl::cuda
