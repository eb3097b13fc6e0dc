// One query per head: a dot product with every key and a weighted sum of every value, each read once for all query heads
// that share it.

#include "hpcdl/core/pool.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/attention/tile.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kKeys = 64, kMaxDim = Attention::kMaxHeadDim;

/// Query heads served by one pass over the keys.
constexpr int kGroup = 4;

template <class T, class K> struct Task {
  attn::Rows<const K> k, v;
  const T* q[kGroup];
  T* out[kGroup];
  float* lse[kGroup];
  std::int64_t keys, d;
  float scale;
};

template <class Isa> struct State {
  using V = simd::Vec<Isa>;
  static constexpr int kVectors = static_cast<int>(kMaxDim) / V::N;
  V q[kVectors], out[kVectors];
  float top = -__builtin_inff(), sum = 0;
  alignas(64) float p[kKeys];
};

template <class Isa> int lanes_of(std::int64_t d, std::int64_t i) {
  constexpr int N = simd::Vec<Isa>::N;
  return static_cast<int>(d - i < N ? d - i : N);
}

/// w.p: scores -> exp(score - top); out and sum shrink where the maximum rose.
template <class Isa> void softmax_row(Isa, State<Isa>& w, std::int64_t keys, int vectors) {
  using V = simd::Vec<Isa>;
  V top(w.top);
  for (std::int64_t j = 0; j < keys; j += V::N) top = max(V::load(w.p + j, lanes_of<Isa>(keys, j), -__builtin_inff()), top);
  const float before = w.top;
  w.top = reduce_max(top);
  const V m(w.top);
  V sum(0.0f);
  for (std::int64_t j = 0; j < keys; j += V::N) {
    const int n = lanes_of<Isa>(keys, j);
    exp(V::load(w.p + j, n, -__builtin_inff()) - m).store(w.p + j, n);
    sum = sum + V::load(w.p + j, n);
  }
  float shrink[V::N];
  exp(V(before) - m).store(shrink);
  w.sum = w.sum * shrink[0] + reduce_add(sum);
  for (int i = 0; i < vectors; ++i) w.out[i] = w.out[i] * V(shrink[0]);
}

template <class Isa, int G, class T, class K> void decode_group(Isa isa, const Task<T, K>& t) {
  using V = simd::Vec<Isa>;
  const int vectors = static_cast<int>((t.d + V::N - 1) / V::N);
  State<Isa> w[G];
  for (int g = 0; g < G; ++g)
    for (int i = 0; i < vectors; ++i) {
      w[g].q[i] = V::load(t.q[g] + i * V::N, lanes_of<Isa>(t.d, i * V::N)) * V(t.scale);
      w[g].out[i] = V(0.0f);
    }
  for (std::int64_t j0 = 0; j0 < t.keys; j0 += kKeys) {
    const std::int64_t keys = t.keys - j0 < kKeys ? t.keys - j0 : kKeys;
    for (std::int64_t j = 0; j < keys; ++j) {
      V dot[G];
      for (int g = 0; g < G; ++g) dot[g] = V(0.0f);
      for (int i = 0; i < vectors; ++i) {
        const V kv = V::load(t.k[j0 + j] + i * V::N, lanes_of<Isa>(t.d, i * V::N));
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) dot[g] = fma(kv, w[g].q[i], dot[g]);
      }
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) w[g].p[j] = reduce_add(dot[g]);
    }
    for (int g = 0; g < G; ++g) softmax_row(isa, w[g], keys, vectors);
    for (std::int64_t j = 0; j < keys; ++j)
      for (int i = 0; i < vectors; ++i) {
        const V vv = V::load(t.v[j0 + j] + i * V::N, lanes_of<Isa>(t.d, i * V::N));
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) w[g].out[i] = fma(V(w[g].p[j]), vv, w[g].out[i]);
      }
  }
  for (int g = 0; g < G; ++g) {
    const V inv(1.0f / w[g].sum);
    for (int i = 0; i < vectors; ++i) (w[g].out[i] * inv).store(t.out[g] + i * V::N, lanes_of<Isa>(t.d, i * V::N));
    if (t.lse[g]) (V(w[g].top) + log(V(w[g].sum))).store(t.lse[g], 1);
  }
}

}  // namespace

template <class Isa>
void attention_decode(Isa isa, Pool& pool, Tensor out, Tensor lse, View q, View k, View v, std::int64_t keys, const Attention::Args& a) {
  const std::int64_t heads = a.heads, kv_heads = a.kv_heads > 0 ? a.kv_heads : heads, share = heads / kv_heads;
  const std::int64_t d = q.rank() == 4 ? q[3] : q[2] / heads, per_kv = (share + kGroup - 1) / kGroup;
  const float scale = a.scale > 0 ? a.scale : 1 / __builtin_sqrtf(static_cast<float>(d));
  const std::int64_t tasks = q[0] * kv_heads * per_kv;
  // A static split: the same thread meets the same part of the cache in every step.
  const auto run = [&]<class T, class K>() {
    parallel_for(pool, tasks, 1 + 16384 / (keys * d), [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        const auto b = i / (kv_heads * per_kv), kv = i / per_kv % kv_heads, first = kv * share + i % per_kv * kGroup;
        const auto last = (kv + 1) * share, count = last - first < kGroup ? last - first : kGroup;
        Task<T, K> t{attn::head_rows<K>(k, b, kv, d), attn::head_rows<K>(v, b, kv, d), {}, {}, {}, keys, d, scale};
        for (std::int64_t g = 0; g < count; ++g) {
          t.q[g] = attn::head_rows<T>(q, b, first + g, d)[0];
          t.out[g] = attn::head_rows<T>(out, b, first + g, d)[0];
          t.lse[g] = lse ? lse.ptr<float>() + b * heads + first + g : nullptr;
        }
        if (count == 1) decode_group<Isa, 1>(isa, t);
        else if (count == 2) decode_group<Isa, 2>(isa, t);
        else if (count == 3) decode_group<Isa, 3>(isa, t);
        else decode_group<Isa, 4>(isa, t);
      }
    });
  };
  visit_dtype(q.dtype(), [&]<class T>() { visit_dtype(k.dtype(), [&]<class K>() { run.template operator()<T, K>(); }); });
}

template void attention_decode(simd::Isa, Pool&, Tensor, Tensor, View, View, View, std::int64_t, const Attention::Args&);

}  // namespace hpcdl::cpu
