// One query per head: bound by reading k and v once. A task processes the keys block by block for a run of neighbouring
// heads, so that memory is read in long pieces, and prefetches the next block during the current one.

#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/attention/pack.h"
#include "hpcdl/pool.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kKeys = 32, kMaxDim = Attention::kMaxHeadDim;
/// Query heads that share one pass over keys and values, and the states of a task.
constexpr int kGroup = 4, kStates = 16;

/// One query head.
struct State {
  alignas(64) float q[kMaxDim], out[kMaxDim], p[kKeys];
  float top, sum;
};

/// Up to kGroup query heads of one key/value head.
template <class K> struct Group {
  attn::Rows<const K> k, v;
  State* state;
  int count;
};

template <class K> void prefetch_row(const K* row, std::int64_t d) {
  const auto* p = reinterpret_cast<const char*>(row);
  for (std::int64_t i = 0; i < d * static_cast<std::int64_t>(sizeof(K)); i += 64) __builtin_prefetch(p + i);
}

/// NV vectors hold a head; Whole: without a tail.
template <class Isa, int NV, bool Whole, class K> simd::Vec<Isa> load_part(const K* row, int i, std::int64_t d) {
  using V = simd::Vec<Isa>;
  if constexpr (Whole) return V::load(row + i * V::N);
  else return i * V::N < d ? V::load(row + i * V::N, attn::lanes_at<Isa>(d, i * V::N)) : V(0.0f);
}

/// p of one block: scores -> exp(score - top). Returns the factor by which out and sum must shrink.
template <class Isa> float softmax_row(Isa, State& w, std::int64_t keys) {
  using V = simd::Vec<Isa>;
  V top(w.top);
  for (std::int64_t j = 0; j < keys; j += V::N)
    top = max(V::load(w.p + j, attn::lanes_at<Isa>(keys, j), -__builtin_inff()), top);
  const float before = w.top;
  w.top = reduce_max(top);
  V sum(0.0f);
  for (std::int64_t j = 0; j < kKeys; j += V::N) {
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

template <class Isa, int G, int NV, bool Whole, class K>
[[gnu::flatten]] void block(Isa isa, const Group<K>& g, std::int64_t j0, std::int64_t keys, std::int64_t d, bool more) {
  using V = simd::Vec<Isa>;
  for (std::int64_t j = j0; j < j0 + keys; ++j) {
    if (more) prefetch_row(g.k[j + kKeys], d);
    V dot[G];
    for (int h = 0; h < G; ++h) dot[h] = V(0.0f);
#pragma GCC unroll 16
    for (int i = 0; i < NV; ++i) {
      const V k = load_part<Isa, NV, Whole>(g.k[j], i, d);
#pragma GCC unroll 4
      for (int h = 0; h < G; ++h) dot[h] = fma(k, V::load(g.state[h].q + i * V::N), dot[h]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < G; ++h) g.state[h].p[j - j0] = reduce_add(dot[h]);
  }
  float shrink[G];
  for (int h = 0; h < G; ++h) shrink[h] = softmax_row(isa, g.state[h], keys);
  if (more)
    for (std::int64_t j = j0; j < j0 + keys; ++j) prefetch_row(g.v[j + kKeys], d);
  constexpr int kStep = NV < 4 ? NV : 4;  // vectors of out that stay in registers at a time
  for (int i0 = 0; i0 < NV; i0 += kStep) {
    V out[G][kStep];
#pragma GCC unroll 4
    for (int h = 0; h < G; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) out[h][i] = V::load(g.state[h].out + (i0 + i) * V::N) * V(shrink[h]);
    for (std::int64_t j = 0; j < keys; ++j) {
      V v[kStep];
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) v[i] = load_part<Isa, NV, Whole>(g.v[j0 + j], i0 + i, d);
#pragma GCC unroll 4
      for (int h = 0; h < G; ++h)
#pragma GCC unroll 4
        for (int i = 0; i < kStep; ++i) out[h][i] = fma(V(g.state[h].p[j]), v[i], out[h][i]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < G; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) out[h][i].store(g.state[h].out + (i0 + i) * V::N);
  }
}

template <class Isa, int NV, bool Whole, class K>
void block_of(Isa isa, const Group<K>& g, std::int64_t j0, std::int64_t keys, std::int64_t d, bool more) {
  if (g.count == 1) block<Isa, 1, NV, Whole>(isa, g, j0, keys, d, more);
  else if (g.count == 2) block<Isa, 2, NV, Whole>(isa, g, j0, keys, d, more);
  else if (g.count == 3) block<Isa, 3, NV, Whole>(isa, g, j0, keys, d, more);
  else block<Isa, 4, NV, Whole>(isa, g, j0, keys, d, more);
}

template <class Isa, class K> void walk(Isa isa, const Group<K>* groups, int count, std::int64_t keys, std::int64_t d) {
  constexpr int N = simd::Vec<Isa>::N, kAll = static_cast<int>(kMaxDim) / N;
  const bool two = d == 2 * N, four = d == 4 * N, eight = d == 8 * N;
  for (std::int64_t j0 = 0; j0 < keys; j0 += kKeys) {
    const std::int64_t n = keys - j0 < kKeys ? keys - j0 : kKeys;
    const bool more = j0 + 2 * kKeys <= keys;
    for (int i = 0; i < count; ++i) {
      if (four) block_of<Isa, 4, true>(isa, groups[i], j0, n, d, more);
      else if (eight) block_of<Isa, 8, true>(isa, groups[i], j0, n, d, more);
      else if (two) block_of<Isa, 2, true>(isa, groups[i], j0, n, d, more);
      else block_of<Isa, kAll, false>(isa, groups[i], j0, n, d, more);
    }
  }
}

struct Task {
  std::int64_t b, first, last;  // key/value heads [first, last) of sequence b
};

struct Sizes {
  std::int64_t heads, kv_heads, d, keys;
  float scale;
};

template <class Isa, class T, class K>
void run_task(Isa isa, const Task& task, const Sizes& z, const Tensor& out, const Tensor& lse, const View& q,
              const View& k, const View& v) {
  using V = simd::Vec<Isa>;
  State states[kStates];
  Group<K> groups[kStates];
  const std::int64_t share = z.heads / z.kv_heads, h0 = task.first * share, h1 = task.last * share;
  // As many heads at a time as there are states.
  for (std::int64_t h = h0; h < h1;) {
    int used = 0, count = 0;
    const std::int64_t begin = h;
    while (h < h1 && used < kStates) {
      const auto left = (h / share + 1) * share - h, room = std::int64_t{kStates} - used;
      const int n = static_cast<int>(left < kGroup ? (left < room ? left : room) : (kGroup < room ? kGroup : room));
      groups[count++] = {attn::head_rows<K>(k, task.b, h / share, z.d), attn::head_rows<K>(v, task.b, h / share, z.d),
                         states + used, n};
      used += n;
      h += n;
    }
    for (int i = 0; i < used; ++i) {
      State& w = states[i];
      const T* from = attn::head_rows<T>(q, task.b, begin + i, z.d)[0];
      for (std::int64_t e = 0; e < kMaxDim; e += V::N) {
        const V x = e < z.d ? V::load(from + e, attn::lanes_at<Isa>(z.d, e)) : V(0.0f);
        (x * V(z.scale)).store(w.q + e);
        V(0.0f).store(w.out + e);
      }
      w.top = -__builtin_inff();
      w.sum = 0;
    }
    walk(isa, groups, count, z.keys, z.d);
    for (int i = 0; i < used; ++i) {
      const State& w = states[i];
      T* to = attn::head_rows<T>(out, task.b, begin + i, z.d)[0];
      for (std::int64_t e = 0; e < z.d; e += V::N)
        (V::load(w.out + e) * V(1.0f / w.sum)).store(to + e, attn::lanes_at<Isa>(z.d, e));
      if (lse) (V(w.top) + log(V(w.sum))).store(lse.ptr<float>() + task.b * z.heads + begin + i, 1);
    }
  }
}

}  // namespace

template <class Isa>
void attention_decode(Isa isa, Pool& pool, Tensor out, Tensor lse, View q, View k, View v, std::int64_t keys,
                      const Attention::Args& a) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads;
  const std::int64_t d = q.rank() == 4 ? q[3] : q[2] / heads;
  const Sizes z{heads, kv_heads, d, keys, a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d))};
  const auto run = [&]<class T, class K>() {
    // A static split: the same thread processes the same part of the cache in every step.
    parallel_for(pool, q[0] * kv_heads, 1 + 16384 / (keys * d), [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const auto b = begin / kv_heads, last = (b + 1) * kv_heads < end ? (b + 1) * kv_heads : end;
        run_task<Isa, T, K>(isa, {b, begin - b * kv_heads, last - b * kv_heads}, z, out, lse, q, k, v);
        begin = last;
      }
    });
  };
  visit_dtype(q.dtype(),
              [&]<class T>() { visit_dtype(k.dtype(), [&]<class K>() { run.template operator()<T, K>(); }); });
}

template void attention_decode(simd::Isa, Pool&, Tensor, Tensor, View, View, View, std::int64_t,
                               const Attention::Args&);

}  // namespace hpcdl::cpu
