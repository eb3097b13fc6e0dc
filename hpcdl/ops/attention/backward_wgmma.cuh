#pragma once
// Attention backward on Hopper's tensor cores (.cu files). A piece of work is kKeys keys of one key/value head of one
// sequence: each of two consumer warpgroups owns half of the keys and iterates over all queries that see them, so dk
// and dv stay in registers:
//
//   P^T  = exp2(scale K Q^T - lse)      registers, the A operand of dv += P^T dO
//   dS^T = P^T (V dO^T - delta)         registers, the A operand of dk += dS^T Q; to shared memory for dq = dS K
//
// dq of a tile of queries is the sum of contributions of the pieces of its keys. It is summed in global memory in the
// order of the pieces (a separate warp waits for the turn and lets the copy engine add), so results are reproducible
// bit for bit; the piece with the last turn writes dq itself. Pieces are handed out in the same order. From the last
// keys to the first, a causal mask lets each piece start one step behind the previous one, so there is hardly any
// waiting; in the opposite order the longest pieces begin first. Pieces of several heads are interleaved, so that
// pieces of one head do not contend. Sources: Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3", 2024.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/ops/attention/backward_pipelined.cuh"

namespace hpcdl::cuda {

/// Tensor maps are (width, heads, tokens, batch) with boxes of (64, 1, rows, 1): kQueries rows of q and dout, kKeys of
/// k and v. Elements of a box beyond the width of a head are 0 and add nothing.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attention_backward_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                             const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dout,
                             const __grid_constant__ BackwardProblem p) {
#if HPCDL_SM90A
  const BackwardMemory<Shape> m;
  m.start();
  const auto load_or_add = [&](int warp) {
    if (warp == 0) backward_produce<Shape>(m, q, k, v, dout, p);
    if (warp >= 2) backward_add<Shape>(m, p, warp - 2);
  };
  roles<Producers<24, 4>, Consumers<2, 240>>(load_or_add, [&](int group) {
    const int works = Shape::pieces(p.keys) * p.kv_heads * BackwardPiece<Shape>::parts_of(p) * p.batch;
    BackwardConsumer<T, Shape> c{.m = m, .p = p, .group = group};
    while (true) {
      m.keys().get(c.ks);
      const int work = c.next_work();
      if (work >= works) break;
      if constexpr (Shape::kPipelined) c.pipelined_walk(work);
      else c.walk(work);
    }
  });
#endif
}

/// Sums dk and dv over the shares written by parts of the query heads. Four columns per thread; blockIdx.y selects dk
/// or dv.
template <class T>
__global__ void __launch_bounds__(256) attention_backward_add(const __grid_constant__ BackwardProblem p) {
  const Heads& to = blockIdx.y == 0 ? p.dk : p.dv;
  const std::int64_t i = (std::int64_t{blockIdx.x} * 256 + threadIdx.x) * 4, one = p.share(1, 0, 0, 0);
  if (!to.data || i >= one) return;
  const float* from = p.shares + blockIdx.y * p.parts * one + i;
  Lanes<4> sum = load<4>(from);
  for (int part = 1; part < p.parts; ++part) sum = sum + load<4>(from + part * one);
  const int column = static_cast<int>(i % p.width);
  const std::int64_t row = i / p.width, head = row % p.kv_heads, token = row / p.kv_heads % p.keys,
                     sequence = row / p.kv_heads / p.keys;
  T* place = static_cast<T*>(to.data) + to.at(sequence, token, head) + column;
  store(place, to.accumulate ? sum + load<4>(static_cast<const T*>(place)) : sum);
}

/// sum + the dot product of eight elements of x with eight of y. Both groups are aligned to 16 bytes.
template <class T>
__device__ float add_product(const Heads& x, std::int64_t i, const Heads& y, std::int64_t j, float sum) {
  const uint4 x4 = *reinterpret_cast<const uint4*>(static_cast<const T*>(x.data) + i),
              y4 = *reinterpret_cast<const uint4*>(static_cast<const T*>(y.data) + j);
  const unsigned xs[4] = {x4.x, x4.y, x4.z, x4.w}, ys[4] = {y4.x, y4.y, y4.z, y4.w};
#pragma unroll
  for (int k = 0; k < 4; ++k)
    sum += unpack_low<T>(xs[k]) * unpack_low<T>(ys[k]) + unpack_high<T>(xs[k]) * unpack_high<T>(ys[k]);
  return sum;
}

/// Computed by kLanes neighbours. Not inline, so that ordinary rows do not pay for it.
template <class T, int kLanes, class Problem>
__device__ __noinline__ RowExponent far_exponent(const Problem& p, int b, int t, int h, float lse) {
  const std::int64_t q0 = p.q.at(b, t, h);
  return row_exponent<kLanes>(lse, p.first_of(b, p.seen(t)), p.seen(t), p.scale * kLog2e, [&](std::int64_t key) {
    const std::int64_t k0 = p.k.at(b, key, h / p.group());
    float dot = 0;
#pragma unroll 1
    for (int d = 0; d < p.width; d += 8) dot = add_product<T>(p.q, q0 + d, p.k, k0 + d, dot);
    return dot;
  });
}

/// Writes delta, lse and tops in the order and padding of backward and sets all turns and the ticket to the first. A row of 8
/// kShare x 16 bytes is read by kShare threads.
template <class T, class Shape, class Problem>
__global__ void __launch_bounds__(256, 6)
    attention_backward_begin(const __grid_constant__ Problem p, float* lse2, float* delta, float* tops,
                             unsigned* counters, int count, int rows, bool ascending) {
  constexpr int kShare = Shape::kWidth / 8, kTogether = 32 / kShare,  // threads per row, rows per warp
      kQueries = Shape::kQueries;
  const int thread = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  for (int i = thread; i < count; i += static_cast<int>(gridDim.x) * 256) {
    unsigned turn = 0;
    if constexpr (Shape::kDocuments)
      if (const int tiles = Shape::tiles(static_cast<int>(p.queries)), head = i / 2 / tiles; ascending && i < count - 1)
        turn = static_cast<unsigned>(p.first_of(head / p.heads, i / 2 % tiles * kQueries + 1)) / Shape::kKeys;
    counters[i] = turn;
  }
  const int r = thread / 32 * kTogether + thread % 32 / kShare, lane = thread % kShare;
  if (r >= rows) return;
  // Rows in memory order: (B, padded T, H).
  const int queries = static_cast<int>(p.queries), tiles = Shape::tiles(queries), h = r % p.heads,
            t = r / p.heads % (tiles * kQueries), b = r / p.heads / (tiles * kQueries);
  const float* const lse = p.lse + (static_cast<std::int64_t>(b) * p.heads + h) * queries;
  const float own = t < queries ? lse[t] : __builtin_inff();
  bool far = false;
  if (t % kQueries == 0) {
#pragma unroll
    for (int i = 0; i < kQueries; i += kShare) far |= is_far_row(p, lse[::min(t + i + lane, queries - 1)]);
  }
  float sum = 0;
  if (t < queries && 8 * lane < p.width)
    sum = add_product<T>(p.out, p.out.at(b, t, h) + 8 * lane, p.dout, p.dout.at(b, t, h) + 8 * lane, 0);
#pragma unroll
  for (int offset = kShare / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  const auto e = __any_sync(~0u, is_far_row(p, own)) ? far_exponent<T, kShare>(p, b, t, h, own) : near_exponent(own);
  const unsigned votes = __ballot_sync(0xffffffffu, far) >> thread % 32 / kShare * kShare & ((1u << kShare) - 1);
  if (lane != 0) return;
  const int number = (b * p.heads + h) * tiles + t / kQueries;
  const std::int64_t at = static_cast<std::int64_t>(number) * kQueries + t % kQueries;
  float* const of_tile = lse2 + static_cast<std::int64_t>(number) * Shape::kStatistics;
  delta[at] = sum, tops[at] = e.top, of_tile[t % kQueries] = e.log;
  if (t % kQueries == 0) of_tile[kQueries] = __int_as_float(votes != 0 ? number + 1 : 0);
}

}  // namespace hpcdl::cuda
