#pragma once
// Attention of one query per head, bound by reading k and v once: for decode.simd.cpp and paged_attention.simd.cpp. A
// task processes the keys block by block for a run of neighbouring heads, so that memory is read in long pieces, and
// prefetches the next block during the current one.

#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/attention/pack.h"
#include "hpcdl/simd/load8.h"
#include "hpcdl/simd/loop.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kKeysAtOnce = 32, kMaxDim = Attention::kMaxHeadDim;
/// Query heads that share one pass over keys and values, and the states of a task.
constexpr int kHeadsAtOnce = 4, kStates = 16;

/// One query head.
struct State {
  alignas(64) float q[kMaxDim], out[kMaxDim], p[kKeysAtOnce];
  float top, sum;
};

/// Up to kHeadsAtOnce query heads of one key/value head. Rows: attn::Rows, or PagedRows of ops/paged_attention.
template <class Rows> struct Group {
  Rows k, v;
  State* state;
  int count;
};

/// The rows of the keys and values of a block, and of the next one if all of its keys exist. Rows that have a member
/// `scale` are codes to be multiplied by scale[row].
template <class Rows> struct Block {
  Rows k, v, next_k, next_v;
};
template <class Rows>
concept Scaled = requires(const Rows& r) { r.scale; };

template <class K> void prefetch_row(const K* row, std::int64_t d) {
  const auto* p = reinterpret_cast<const char*>(row);
  for (std::int64_t i = 0; i < d * static_cast<std::int64_t>(sizeof(K)); i += 64) __builtin_prefetch(p + i);
}

/// NV vectors hold a head; Whole: without a tail.
template <class Isa, int NV, bool Whole, class K> simd::Vec<Isa> load_part(const K* row, int i, std::int64_t d) {
  using V = simd::Vec<Isa>;
  if constexpr (Whole) return simd::load_wide<V>(row + i * V::N);
  else return i * V::N < d ? simd::load_wide<V>(row + i * V::N, attn::lanes_at<Isa>(d, i * V::N)) : V(0.0f);
}

/// Which keys a call reads, and how their scores change.
struct Sizes {
  std::int64_t heads, kv_heads, d, keys;
  float scale;
  std::int64_t first = 0;  // keys before it are not seen
  float cap = 0;           // of scores; 0: none
};

/// p of one block: scores -> exp(score - top). Returns the factor by which out and sum must shrink. The first `hidden`
/// keys are not seen.
template <class Isa> float softmax_row(Isa, State& w, std::int64_t keys, std::int64_t hidden, float cap) {
  using V = simd::Vec<Isa>;
  if (cap > 0)
    for (std::int64_t j = 0; j < keys; j += V::N) {
      const int n = attn::lanes_at<Isa>(keys, j);
      (V(cap) * simd::tanh<Isa>(V::load(w.p + j, n) / V(cap))).store(w.p + j, n);
    }
  for (std::int64_t j = 0; j < hidden; ++j) w.p[j] = -__builtin_inff();
  V top(w.top);
  for (std::int64_t j = 0; j < keys; j += V::N)
    top = max(V::load(w.p + j, attn::lanes_at<Isa>(keys, j), -__builtin_inff()), top);
  const float before = w.top;
  w.top = reduce_max(top);
  V sum(0.0f);
  for (std::int64_t j = 0; j < kKeysAtOnce; j += V::N) {
    const int n = j < keys ? attn::lanes_at<Isa>(keys, j) : 0;
    const V e = exp(V::load(w.p + j, n, -__builtin_inff()) - V(w.top));
    e.store(w.p + j);
    sum = sum + e;
  }
  float shrink[V::N];
  exp(V(before) - V(w.top)).store(shrink);
  w.sum = w.sum * shrink[0] + reduce_add(sum);
  return shrink[0];
}

/// p[j] *= scale[j]
template <class Isa> void multiply_by(Isa, float* p, const float* scale, std::int64_t keys) {
  simd::loop<Isa>(keys, [&](std::int64_t j, auto lanes) {
    using V = simd::Vec<Isa>;
    simd::store(p + j, simd::load<V>(p + j, lanes) * simd::load<V>(scale + j, lanes), lanes);
  });
}

template <class Isa, int G, int NV, bool Whole, class Rows>
[[gnu::flatten]] void block(Isa isa, State* state, const Block<Rows>& b, std::int64_t keys, const Sizes& z,
                            std::int64_t hidden, bool more) {
  const std::int64_t d = z.d;
  using V = simd::Vec<Isa>;
  for (std::int64_t j = 0; j < keys; ++j) {
    if (more) prefetch_row(b.next_k[j], d);
    V dot[G];
    for (int h = 0; h < G; ++h) dot[h] = V(0.0f);
#pragma GCC unroll 16
    for (int i = 0; i < NV; ++i) {
      const V k = load_part<Isa, NV, Whole>(b.k[j], i, d);
#pragma GCC unroll 4
      for (int h = 0; h < G; ++h) dot[h] = fma(k, V::load(state[h].q + i * V::N), dot[h]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < G; ++h) state[h].p[j] = reduce_add(dot[h]);
  }
  float shrink[G];
  for (int h = 0; h < G; ++h) {
    if constexpr (Scaled<Rows>) multiply_by(isa, state[h].p, b.k.scale, keys);
    shrink[h] = softmax_row(isa, state[h], keys, hidden, z.cap);
    if constexpr (Scaled<Rows>) multiply_by(isa, state[h].p, b.v.scale, keys);
  }
  if (more)
    for (std::int64_t j = 0; j < keys; ++j) prefetch_row(b.next_v[j], d);
  constexpr int kStep = NV < 4 ? NV : 4;  // vectors of out that stay in registers at a time
  for (int i0 = 0; i0 < NV; i0 += kStep) {
    V out[G][kStep];
#pragma GCC unroll 4
    for (int h = 0; h < G; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) out[h][i] = V::load(state[h].out + (i0 + i) * V::N) * V(shrink[h]);
    for (std::int64_t j = 0; j < keys; ++j) {
      V v[kStep];
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) v[i] = load_part<Isa, NV, Whole>(b.v[j], i0 + i, d);
#pragma GCC unroll 4
      for (int h = 0; h < G; ++h)
#pragma GCC unroll 4
        for (int i = 0; i < kStep; ++i) out[h][i] = fma(V(state[h].p[j]), v[i], out[h][i]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < G; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) out[h][i].store(state[h].out + (i0 + i) * V::N);
  }
}

template <class Isa, int NV, bool Whole, class Rows>
void block_of(Isa isa, const Group<Rows>& g, std::int64_t j0, std::int64_t keys, const Sizes& z, bool more) {
  const std::int64_t next = more ? j0 + kKeysAtOnce : j0;
  const Block<decltype(g.k.at(j0))> b{g.k.at(j0), g.v.at(j0), g.k.at(next), g.v.at(next)};
  const std::int64_t hidden = j0 < z.first ? z.first - j0 : 0;
  if (g.count == 1) block<Isa, 1, NV, Whole>(isa, g.state, b, keys, z, hidden, more);
  else if (g.count == 2) block<Isa, 2, NV, Whole>(isa, g.state, b, keys, z, hidden, more);
  else if (g.count == 3) block<Isa, 3, NV, Whole>(isa, g.state, b, keys, z, hidden, more);
  else block<Isa, 4, NV, Whole>(isa, g.state, b, keys, z, hidden, more);
}

template <class Isa, class Rows> void walk(Isa isa, const Group<Rows>* groups, int count, const Sizes& z) {
  const std::int64_t keys = z.keys, d = z.d;
  constexpr int N = simd::Vec<Isa>::N, kAll = static_cast<int>(kMaxDim) / N;
  const bool two = d == 2 * N, four = d == 4 * N, eight = d == 8 * N;
  for (std::int64_t j0 = z.first / kKeysAtOnce * kKeysAtOnce; j0 < keys; j0 += kKeysAtOnce) {
    const std::int64_t n = keys - j0 < kKeysAtOnce ? keys - j0 : kKeysAtOnce;
    const bool more = j0 + 2 * kKeysAtOnce <= keys;
    for (int i = 0; i < count; ++i) {
      if (four) block_of<Isa, 4, true>(isa, groups[i], j0, n, z, more);
      else if (eight) block_of<Isa, 8, true>(isa, groups[i], j0, n, z, more);
      else if (two) block_of<Isa, 2, true>(isa, groups[i], j0, n, z, more);
      else block_of<Isa, kAll, false>(isa, groups[i], j0, n, z, more);
    }
  }
}

/// Key/value heads [first, last) of one sequence. q_of(h) and out_of(h) are rows of query heads, keys_of(g) and
/// values_of(g) the rows of key/value heads; lse, of heads `lse_apart` elements apart, may be null.
template <class Isa, class Rows>
void run_task(Isa isa, std::int64_t first, std::int64_t last, const Sizes& z, float* lse, std::int64_t lse_apart,
              auto&& q_of, auto&& out_of, auto&& keys_of, auto&& values_of) {
  using V = simd::Vec<Isa>;
  State states[kStates];
  Group<Rows> groups[kStates];
  const std::int64_t share = z.heads / z.kv_heads, h0 = first * share, h1 = last * share;
  // As many heads at a time as there are states.
  for (std::int64_t h = h0; h < h1;) {
    int used = 0, count = 0;
    const std::int64_t begin = h;
    while (h < h1 && used < kStates) {
      const auto left = (h / share + 1) * share - h, room = std::int64_t{kStates} - used;
      const int n = static_cast<int>(left < kHeadsAtOnce ? (left < room ? left : room)
                                                         : (kHeadsAtOnce < room ? kHeadsAtOnce : room));
      groups[count++] = {keys_of(h / share), values_of(h / share), states + used, n};
      used += n;
      h += n;
    }
    for (int i = 0; i < used; ++i) {
      State& w = states[i];
      const auto* from = q_of(begin + i);
      for (std::int64_t e = 0; e < kMaxDim; e += V::N) {
        const V x = e < z.d ? V::load(from + e, attn::lanes_at<Isa>(z.d, e)) : V(0.0f);
        (x * V(z.scale)).store(w.q + e);
        V(0.0f).store(w.out + e);
      }
      w.top = -__builtin_inff();
      w.sum = 0;
    }
    walk(isa, groups, count, z);
    for (int i = 0; i < used; ++i) {
      const State& w = states[i];
      auto* to = out_of(begin + i);
      for (std::int64_t e = 0; e < z.d; e += V::N)
        (V::load(w.out + e) * V(1.0f / w.sum)).store(to + e, attn::lanes_at<Isa>(z.d, e));
      if (lse) (V(w.top) + log(V(w.sum))).store(lse + (begin + i) * lse_apart, 1);
    }
  }
}

}  // namespace
}  // namespace hpcdl::cpu
