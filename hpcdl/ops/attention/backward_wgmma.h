#pragma once
// Attention backward on Hopper's tensor cores (.cu files). A piece of work is kKeys keys of one key/value head of one
// sequence: two consumer warpgroups own half of the keys each and walk over all queries that see them, so dk and dv
// stay in registers:
//
//   P^T  = exp2(scale K Q^T - lse)      registers, the A operand of dv += P^T dO
//   dS^T = P^T (V dO^T - delta)         registers, the A operand of dk += dS^T Q; to shared memory for dq = dS K
//
// dq of a tile of queries is the sum of what the pieces of its keys give. It is added up in global memory in the order
// of the pieces (a warp beside the consumers waits for the turn and has the copy engine add), so results repeat bit for
// bit; the piece whose turn is the last writes dq itself. Pieces are handed out in that order too. From the last keys
// to the first, a causal mask lets each piece start where the one before it is a step ahead, so turns are hardly waited
// for; the other way round the longest pieces begin first. Pieces of several heads are handed out in turns, so that
// those of one head do not meet. Sources: Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3", 2024.

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/ops/attention/backward_pipelined.h"

namespace hpcdl::cuda {

/// Tensor maps are (width, heads, tokens, batch) with boxes of (64, 1, rows, 1): kQueries rows of q and dout, kKeys of
/// k and v. What a box has beyond the width of a head is 0, and adds nothing.
template <class T, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attention_backward_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                             const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dout,
                             const __grid_constant__ BackwardProblem p) {
#if HPCDL_SM90A
  extern __shared__ __align__(1024) char memory[];
  const BackwardMemory<Shape> m{memory};
  const int warp = warp_index();
  if (threadIdx.x == 0) m.init();
  __syncthreads();
  if (warp >= 8) {
    release_registers<24>();
    if (warp == 8 && elect_one()) backward_produce<Shape>(m, q, k, v, dout, p);
    if (warp >= 10 && elect_one()) backward_add<Shape>(m, p, warp - 10);
  } else {
    claim_registers<240>();
    const int works = Shape::pieces(p.keys) * p.kv_heads * BackwardPiece<Shape>::parts_of(p) * p.batch;
    BackwardConsumer<T, Shape> c{.m = m, .p = p, .group = warp / 4};
    while (true) {
      barrier_wait(m.key_full(c.ks.stage), c.ks.parity);
      const int work = c.next_work();
      if (work >= works) break;
      if constexpr (Shape::kPipelined) c.pipelined_walk(work);
      else c.walk(work);
    }
  }
#endif
}

/// dk and dv from the shares of them that parts of the query heads gave. Four columns a thread; blockIdx.y: of which.
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

/// delta and lse in the order and padding of backward; all turns and the ticket to 0. One warp a row of 8 kLanes x 16
/// bytes.
template <class T, int kWidth>
__global__ void __launch_bounds__(256)
    attention_backward_begin(Heads out, Heads dout, const float* lse, float* lse2, float* delta, unsigned* counters,
                             int count, int heads, int queries, int padded, int rows, int width) {
  constexpr int kShare = kWidth / 8, kTogether = 32 / kShare;  // threads of a row, rows of a warp
  const int thread = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  for (int i = thread; i < count; i += static_cast<int>(gridDim.x) * 256) counters[i] = 0;
  const int r = thread / 32 * kTogether + thread % 32 / kShare, lane = thread % kShare;
  if (r >= rows) return;
  // Rows in memory order: (B, padded T, H).
  const int h = r % heads, t = r / heads % padded, b = r / heads / padded;
  float sum = 0;
  if (t < queries && 8 * lane < width) {
    const auto read = [&](const Heads& x) {
      return *reinterpret_cast<const uint4*>(static_cast<const T*>(x.data) + b * x.batch + t * x.token + h * x.head +
                                             8 * lane);
    };
    const uint4 x = read(out), y = read(dout);
    const unsigned xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum += unpack_low<T>(xs[i]) * unpack_low<T>(ys[i]) + unpack_high<T>(xs[i]) * unpack_high<T>(ys[i]);
  }
#pragma unroll
  for (int offset = kShare / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane != 0) return;
  const std::int64_t at = (static_cast<std::int64_t>(b) * heads + h) * padded + t;
  delta[at] = sum;
  lse2[at] = t < queries ? lse[(static_cast<std::int64_t>(b) * heads + h) * queries + t] * 1.4426950408889634f
                         : __builtin_inff();
}

}  // namespace hpcdl::cuda
