#pragma once
// One row of x, normalised, times pairs of rows of up to three 16-bit matrices (N, K) (.cu files): bound by reading the
// weights once. Every block normalises the row itself, while the first weights of its warps are in flight. A warp
// processes one pair at a time; `Pairs` defines its rows and the use of the two sums:
//
//   count                        the number of pairs
//   place(u)                     the rows of pair u
//   prepare(shared)              called by all threads of a block, before its first barrier; reads only what the
//                                previous kernel does not write if the weights are constant
//   finish(shared, u, a, b)      called by one thread with the sums of pair u
//
// The kernel for several rows (matmul/streamed_weights.cuh) uses the same Pairs.

#include <algorithm>

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/overlap.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/ops/matmul/row_pairs.h"
#include "hpcdl/ops/matrix.h"

namespace hpcdl::cuda {

/// x and the parameters of its norm.
struct NormedRow {
  const void* x;
  Parameter gamma;
  float eps;
  int k;
  bool constant;  // no kernel writes weights and gamma

  __device__ Lanes<8> weights(int at) const { return gamma.load<8, true>(at, 0, 8); }
  __device__ float rstd(float squares) const { return 1.0f / sqrtf(squares * (1.0f / static_cast<float>(k)) + eps); }
};

/// Whether the operands suit the pair kernels: one row of T, whole accesses.
inline bool one_whole_row(const View& x, const View& gamma) {
  const auto whole = [](const View& v) { return reinterpret_cast<std::uintptr_t>(v.data()) % 16 == 0; };
  return x.rows() == 1 && x.cols() >= 8 && x.cols() % 8 == 0 && x.cols() <= 16384 && whole(x) && whole(gamma);
}
inline bool whole_rows(const View& w, DType type) {
  return w.dtype() == type && reinterpret_cast<std::uintptr_t>(w.data()) % 16 == 0 && w.row_stride() % 8 == 0 &&
         w.rows() < (1 << 30);
}

template <class E, class Pairs> struct PairedRows {
  NormedRow in;
  const E* w[kMostMatrices];
  std::int64_t ld[kMostMatrices];
  Pairs pairs;
  int rounds;  // pairs per warp
};

inline constexpr int kPairThreads = 128;

/// Stores the normalised row, rounded to E, to shared memory.
template <class E, int kHeld>
__device__ void normalise(Pack<E, 8>* to, const NormedRow& in, const Lanes<8> (&held)[kHeld], float* memory) {
  const int packs = in.k / 8, first = static_cast<int>(threadIdx.x);
  float squares = 0;
  for (int i = first; i < packs; i += kPairThreads) {
    to[i] = read_aligned<8>(static_cast<const E*>(in.x) + i * 8);
    const auto v = widen(to[i]);
    squares += sum(v * v);
  }
  const Lanes<8> rstd(in.rstd(block_reduce<kPairThreads>(squares, Sum{}, memory)));
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    if (const int i = first + j * kPairThreads; i < packs) to[i] = pack<E>(widen(to[i]) * rstd * held[j]);
  for (int i = first + kHeld * kPairThreads; i < packs; i += kPairThreads)
    to[i] = pack<E>(widen(to[i]) * rstd * in.weights(i * 8));
  __syncthreads();
}

template <class E, class Pairs>
__global__ void __launch_bounds__(kPairThreads, 4) paired_rows(const __grid_constant__ PairedRows<E, Pairs> p) {
  constexpr int kAhead = 4, kPiece = 8, kStep = kWarp * kPiece, kTurn = kAhead * kStep, kWarps = kPairThreads / kWarp,
                kHeld = 2;
  extern __shared__ __align__(16) unsigned char dynamic[];
  __shared__ float memory[kWarps], shared[Pairs::kShared];
  auto* const row = reinterpret_cast<Pack<E, kPiece>*>(dynamic);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp, k = p.in.k;
  const int begin = static_cast<int>(blockIdx.x) * kWarps * p.rounds,
            end = begin + kWarps * p.rounds < p.pairs.count ? begin + kWarps * p.rounds : p.pairs.count;
  struct Cursor {
    int pair, at;
    __device__ void advance(int k) {
      at += kTurn;
      if (at >= k) at = 0, pair += kWarps;
    }
  };
  Cursor ahead{begin + warp, 0}, here = ahead;
  const auto bring = [&](uint4(&w)[2][kAhead]) {
    if (ahead.pair >= end) return;
    const PairPlace place = p.pairs.place(ahead.pair);
    const int at = ahead.at + lane * kPiece;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const E* const from = p.w[place.matrix[j]] + place.row[j] * p.ld[place.matrix[j]] + at;
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (at + i * kStep < k) w[j][i] = stream16(from + i * kStep);
    }
    ahead.advance(k);
  };
  Lanes<kPiece> sums[2] = {Lanes<kPiece>(0.0f), Lanes<kPiece>(0.0f)};
  const auto multiply = [&](const uint4(&w)[2][kAhead]) {
    const int at = here.at + lane * kPiece, pair = here.pair;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at + i * kStep >= k) break;
      const auto x = widen(row[(at + i * kStep) / kPiece]);
#pragma unroll
      for (int j = 0; j < 2; ++j) sums[j] = fma(load<kPiece>(reinterpret_cast<const E*>(&w[j][i])), x, sums[j]);
    }
    here.advance(k);
    if (here.pair == pair) return;
    const float a = warp_reduce(sum(sums[0]), Sum{}), b = warp_reduce(sum(sums[1]), Sum{});
    sums[0] = sums[1] = Lanes<kPiece>(0.0f);
    if (lane == 0) p.pairs.finish(shared, pair, a, b);
  };
  uint4 even[2][kAhead], odd[2][kAhead];
  Lanes<kPiece> held[kHeld];
  let_next_begin();
  if (!p.in.constant) await_previous();
  bring(even), bring(odd);
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    if (const int i = static_cast<int>(threadIdx.x) + j * kPairThreads; i < k / kPiece)
      held[j] = p.in.weights(i * kPiece);
  if (p.in.constant) p.pairs.prepare(shared);
  await_previous();
  if (!p.in.constant) p.pairs.prepare(shared);
  normalise<E>(row, p.in, held, memory);
  while (here.pair < end) {
    multiply(even), bring(even);
    if (here.pair >= end) break;
    multiply(odd), bring(odd);
  }
}

/// Warps get equal numbers of pairs, all at once. Half as many blocks, which would leave registers for those of the
/// next kernel, have too few weights in flight: 21.6 us on an H100, not 18, for 2 x 5632 x 2048.
template <class E, class Pairs> void start_pairs(Stream& s, PairedRows<E, Pairs> p, const char* name) {
  constexpr int kWarps = kPairThreads / kWarp;
  const int at_once = 4 * multiprocessors(s) * kWarps;
  p.rounds = (p.pairs.count + at_once - 1) / at_once;
  launch_overlapped(queue(s), has_clusters(s), paired_rows<E, Pairs>,
                    {.grid = blocks_for(p.pairs.count, kWarps * p.rounds),
                     .block = kPairThreads,
                     .shared = static_cast<std::size_t>(p.in.k) * sizeof(E)},
                    name, p);
}

/// f.template operator()<E>() with bf16 or f16; false for other types.
template <class F> bool with_16_bits(DType type, F&& f) {
  if (type == DType::bf16) f.template operator()<bf16>();
  else if (type == DType::f16) f.template operator()<f16>();
  else return false;
  return true;
}

/// A vector of biases, or none.
struct Bias {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Bias() = default;
  explicit Bias(const View& v) : data(v.data()), dtype(v.dtype()) {}
  __device__ float operator()(int i) const { return data ? fetch(data, dtype, i) : 0.0f; }
};

}  // namespace hpcdl::cuda
