#pragma once
// Attention backward on Hopper's tensor cores (.cu files): consumers of heads of 128. Without overlap a step takes 4570
// cycles (H200, 4 x 16 x 4096 x 128 causal), of which tensor cores need 2560; exponentials take 990, dS 810, and
// storing dq, including the wait for shared memory, 880. Here
//
//   dv of the next tile is multiplied while dq of this one is stored,
//   scores of the next tile while dS of this one is computed,
//   dk and dq of this tile while the next one's scores are exponentiated,
//
// so queries are kept longer than their dout, in separate stages. If an accumulator that is read within the loop is in
// flight across the loop edge, ptxas abandons this order and waits for each product at once; dv, which is only added
// to, may be in flight. Besides the 128 registers of dk and dv a thread has about 80: 32 for s, 32 for dS or dq, and 16
// for P. dS as a register operand would need another 16 during dk; reading it from shared memory, where dq needs it
// anyway, is faster.
//
// H200, bf16, us (a step at a time | dS of dk in registers | as here): 4 x 16 x 4096 x 128 3030 | 3099 | 2921, causal
// 1648 | 1643 | 1558; 1 x 32 x 8192 x 128 causal with 8 key/value heads 3149 | 3087 | 2839. A second stage of sums
// instead of the third one of queries: 3003, 1595, 2940. (All from one run, in which each turn was still passed on
// after a fence.) With 64 x 128 scores, heads of 64 run out of registers.

#include "hpcdl/ops/attention/backward_consumer.cuh"

namespace hpcdl::cuda {

#if HPCDL_SM90A

/// dk += dS^T Q, reading what this warpgroup stored to shared memory.
template <class T, class Shape> __device__ inline void BackwardConsumer<T, Shape>::issue_dk(const char* queries) {
  static_assert(Shape::kQueries == 64, "a row of scores is 128 bytes");
  const auto a = wgmma_descriptor<Major::k>(m.score(scores.stage) + group * 64 * 128),
             b = wgmma_descriptor<Major::mn>(queries, Shape::kQueries);
  wgmma_fence();
#pragma unroll
  for (int c = 0; c < Shape::kQueries / 16; ++c)
    wgmma<T, Major::k, Major::mn>(dk, a + c * kStepK, b + c * kStepMn, true);
  wgmma_commit();
}

template <class T, class Shape>
__device__ inline void BackwardConsumer<T, Shape>::issue_next_dv(const unsigned (&a)[kScores / 8][4]) {
  m.douts().get(os);
  issue_gradient(dv, a, m.dout(os.stage));
}

/// On entry `a` is P^T of this tile, whose dv is in flight; on return both belong to the next tile, if there is one.
template <class T, class Shape>
template <bool kMore>
__device__ inline void BackwardConsumer<T, Shape>::pipelined_step(const BackwardPiece<Shape>& w,
                                                                  unsigned (&a)[kScores / 8][4], int head, int tile,
                                                                  int next, bool masked) {
  const int stage = qs.stage;
  {
    float ds[kScores];
    unsigned b[kScores / 8][4];
    issue_scores(ds, m.value(ks.stage), m.dout(os.stage));
    issue_scores_behind<kMore>();
    wgmma_pin(ds);
    score_gradients(b, a, ds, m.delta(os.stage));
    put_scores(b);
  }
  named_sync(1, 256);
  issue_dk(m.query(stage));
  m.douts().fenced_done(os.stage);
  os.next();
  if constexpr (kMore) {
    wgmma_wait<1>();
    wgmma_pin(s);
  }
  float dq[Shape::kSums];
  issue_dq(dq);
  scores.next();
  if constexpr (kMore) {
    probabilities(a, w, next, masked, far_tile());
    wgmma_wait<1>();
    m.queries().fenced_done(stage);
    issue_next_dv(a);
    wgmma_wait<1>();
  } else {
    wgmma_wait<0>();
    wgmma_pin(dk), wgmma_pin(dv);
    m.queries().fenced_done(stage);
  }
  wgmma_pin(dq);
  put_dq(dq, w, head, tile);
}

template <class T, class Shape> __device__ inline void BackwardConsumer<T, Shape>::pipelined_walk(int work) {
  const auto w = BackwardPiece<Shape>::find(p, work);
  begin_piece();
  const int sharing = w.sharing(p), end = w.first_head(p) + sharing;
  int head = end - sharing, tile = p.ascending ? w.after - 1 : w.first;
  unsigned a[kScores / 8][4];
  probabilities(a, w, tile, w.masked(p, tile), far_tile());
  issue_next_dv(a);
  for (int more = w.steps(p) - 1; more > 0; --more) {  // step i without the divisions, whose registers would spill
    int next_head = head + 1, next = tile;
    if (next_head == end) next_head = end - sharing, next += p.ascending ? -1 : 1;
    pipelined_step<true>(w, a, head, tile, next, w.masked(p, next));
    head = next_head, tile = next;
  }
  pipelined_step<false>(w, a, head, tile, 0, false);
  end_piece(w);
}

#endif

}  // namespace hpcdl::cuda
