#include <type_traits>

#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/matmul/plain_gemm.cuh"

// Up to four rows times weights (N, K), as in decoding by a language model, one of the two in 16 bits: bound by reading
// the weights once. A warp processes a row of them, 16 bytes per lane, with several pieces in flight before the first
// is used.

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp, kMostRows = 4, kPiece = 8, kStreamWarps = 8;

/// Loads kPiece elements at p, of which n exist. kWhole: all or none exist, aligned to 16 bytes. Other addresses give
/// the same sums.
template <bool kWhole, class E> __device__ Pack<E, kPiece> piece(const E* p, int n) {
  if constexpr (!kWhole) return read<kPiece>(p, 0, n, E{});
  else return n > 0 ? read_aligned<kPiece>(p) : Pack<E, kPiece>{};
}

/// Converts weights for a product in A's type.
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

/// For operands of one 16-bit type, whole pieces only, and weights with few rows: `shares` warps share a row; each
/// loads the pieces of its share, up to kAhead at a time, before the activations are available. The order of sums
/// depends only on n and k.
template <class E, class T, int kRows, int kAhead>
__global__ void __launch_bounds__(kStreamWarps* kWarp, kRows == 1 ? (kAhead == 8 ? 3 : 4) : (kAhead == 8 ? 2 : 3))
    streamed_rows(const __grid_constant__ Gemm g, int shares) {
  constexpr int kStep = kWarp * kPiece;
  __shared__ float parts[kStreamWarps][kRows];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            rows = static_cast<int>(g.m), length = static_cast<int>(g.k), together = kStreamWarps / shares;
  const int each = ((length + kStep - 1) / kStep + shares - 1) / shares * kStep, begin = warp % shares * each,
            end = begin + each < length ? begin + each : length;
  const std::int64_t first = std::int64_t{blockIdx.x} * together, col = first + warp / shares, batch = blockIdx.y;
  const E* const a = static_cast<const E*>(g.a.data) + batch * g.a.batch_stride;
  const E* const b = static_cast<const E*>(g.b.data) + batch * g.b.batch_stride + col * g.b.ld;
  const bool some = col < g.n;
  uint4 w[kAhead];
  const auto fetch = [&](int k0) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (some && k0 + i * kStep < end) w[i] = stream16(b + k0 + i * kStep);
  };
  let_next_begin();
  if (!g.constant_b) await_previous();
  fetch(begin + lane * kPiece);
  await_previous();
  Lanes<kPiece> sums[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = Lanes<kPiece>(0.0f);
  for (int k0 = begin + lane * kPiece; some && k0 < end; k0 += kAhead * kStep) {
    if (k0 >= begin + kAhead * kStep) fetch(k0);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = k0 + i * kStep;
      if (k >= end) break;
      const auto weights = load<kPiece>(reinterpret_cast<const E*>(&w[i]));
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (r < rows) sums[r] = fma(weights, widen(read_aligned<kPiece>(a + r * g.a.ld + k)), sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float all = warp_reduce(sum(sums[r]), Sum{});
    if (lane == 0) parts[warp][r] = all;
  }
  __syncthreads();
  const int of = static_cast<int>(threadIdx.x) / kRows, r = static_cast<int>(threadIdx.x) % kRows;
  if (of >= together || first + of >= g.n || r >= rows) return;
  float total = 0;
  for (int i = 0; i < shares; ++i) total += parts[of * shares + i][r];
  finish<T>(g.out, total, r, first + of, batch);
}

/// The same if there are enough rows for every warp: it processes `rounds` of them, 2 kAhead pieces at a time, and
/// loads one half while it multiplies the other.
template <class E, class T, int kRows, int kAhead>
__global__ void __launch_bounds__(kStreamWarps* kWarp, 2) flowing_rows(const __grid_constant__ Gemm g, int rounds) {
  constexpr int kStep = kWarp * kPiece, kTurn = kAhead * kStep;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            rows = static_cast<int>(g.m), length = static_cast<int>(g.k);
  const std::int64_t batch = blockIdx.y;
  const E* const a = static_cast<const E*>(g.a.data) + batch * g.a.batch_stride + lane * kPiece;
  const E* const b = static_cast<const E*>(g.b.data) + batch * g.b.batch_stride + lane * kPiece;
  const std::int64_t first = std::int64_t{blockIdx.x} * kStreamWarps * rounds + warp,
                     last = first + std::int64_t{kStreamWarps} * (rounds - 1), end = last < g.n ? last + 1 : g.n;
  struct Place {
    std::int64_t col;
    int k;
    __device__ void advance(int length) {
      k += kTurn;
      if (k >= length) k = 0, col += kStreamWarps;
    }
  };
  Place ahead{first, 0}, here = ahead;
  const auto bring = [&](uint4(&w)[kAhead]) {
    if (ahead.col >= end) return;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (ahead.k + i * kStep + lane * kPiece < length) w[i] = stream16(b + ahead.col * g.b.ld + ahead.k + i * kStep);
    ahead.advance(length);
  };
  Lanes<kPiece> sums[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = Lanes<kPiece>(0.0f);
  const auto multiply = [&](const uint4(&w)[kAhead]) {
    const std::int64_t row = here.col;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = here.k + i * kStep;
      if (k + lane * kPiece >= length) break;
      const auto weights = load<kPiece>(reinterpret_cast<const E*>(&w[i]));
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (r < rows) sums[r] = fma(weights, widen(read_aligned<kPiece>(a + r * g.a.ld + k)), sums[r]);
    }
    here.advance(length);
    if (here.col == row) return;
    float mine = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float all = warp_reduce(sum(sums[r]), Sum{});
      if (lane == r) mine = all;
      sums[r] = Lanes<kPiece>(0.0f);
    }
    if (lane < rows) finish<T>(g.out, mine, lane, row, batch);
  };
  uint4 even[kAhead], odd[kAhead];
  let_next_begin();
  if (!g.constant_b) await_previous();
  bring(even), bring(odd);
  await_previous();
  while (here.col < end) {
    multiply(even), bring(even);
    if (here.col >= end) break;
    multiply(odd), bring(odd);
  }
}

bool whole_pieces(const GemmOperand& o) {
  return reinterpret_cast<std::uintptr_t>(o.data) % 16 == 0 && o.ld * dtype_bytes(o.dtype) % 16 == 0 &&
         o.batch_stride * dtype_bytes(o.dtype) % 16 == 0;
}

template <class E, class T> void start_streamed(Stream& s, const Gemm& g) {
  constexpr std::int64_t kBlocks = 128;  // about the number of multiprocessors of a large GPU
  const auto launch = [&](auto* kernel, std::int64_t columns, int count) {
    const Launch at{.grid = {blocks_for(g.n, columns), static_cast<unsigned>(g.batch)}, .block = kStreamWarps * kWarp};
    launch_overlapped(queue(s), has_clusters(s), kernel, at, "matmul", g, count);
  };
  if (g.batch * g.n >= kBlocks * kStreamWarps) {
    const std::int64_t at_once = 2 * multiprocessors(s) * kStreamWarps;
    const int rounds = static_cast<int>((g.batch * g.n + at_once - 1) / at_once);
    return launch(g.m == 1 ? flowing_rows<E, T, 1, 8> : flowing_rows<E, T, kMostRows, 4>, kStreamWarps * rounds,
                  rounds);
  }
  const std::int64_t pieces = (g.k + kWarp * kPiece - 1) / (kWarp * kPiece);
  int shares = 1;
  while (shares < kStreamWarps && shares < pieces && g.batch * g.n * shares < kBlocks * kStreamWarps) shares *= 2;
  const auto with = [&]<int kAhead>() {
    launch(g.m == 1 ? streamed_rows<E, T, 1, kAhead> : streamed_rows<E, T, kMostRows, kAhead>, kStreamWarps / shares,
           shares);
  };
  if (pieces <= 4 * shares) with.template operator()<4>();
  else with.template operator()<8>();
}

template <class A, class B, class T> void start(Stream& s, const Gemm& g) {
  const bool whole = whole_pieces(g.a) && whole_pieces(g.b) && g.k % kPiece == 0;
  if constexpr (std::is_same_v<A, B>)
    if (whole) return start_streamed<A, T>(s, g);
  const dim3 grid(blocks_for(g.n, kWarps), static_cast<unsigned>(g.batch));
  const auto launch = [&]<int kRows>() {
    if (whole) few_rows<A, B, T, kRows, true><<<grid, kThreads, 0, queue(s)>>>(g);
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
