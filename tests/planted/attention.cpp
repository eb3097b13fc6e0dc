#include <algorithm>
#include <cmath>

#include "tests/planted/planted.h"

namespace hpcdl::lab::verify::planted {
namespace {

/// The computation of one head, and the ways in which it can be wrong.
struct Ways {
  int mask_shift = 0;  // number of keys used beyond the allowed ones
  bool mask = true, from_left = false, wrong_group = false, scaled = true;
};

template <class T> void attention(const hpcdl_call* c, const Ways& w) {
  const auto& a = args<hpcdl_attention_args>(c);
  const auto &q = c->inputs[0], &k = c->inputs[1];
  const auto B = q.shape[0], N = q.shape[1], S = k.shape[1], D = q.shape[2] / a.heads;
  std::vector<float> p(static_cast<std::size_t>(S + 1));
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < a.heads; ++h)
      for (std::int64_t t = 0; t < N; ++t) {
        const auto g = w.wrong_group ? h % a.kv_heads : h * a.kv_heads / a.heads;
        const auto causal = (w.from_left ? t + 1 : t + S - N + 1) + w.mask_shift;
        const auto n = a.causal && w.mask ? std::min(S, causal) : S;
        const T* x = in<T>(c, 0) + ((b * N + t) * a.heads + h) * D;
        const auto at = [&](std::int64_t j) { return ((b * S + j) * a.kv_heads + g) * D; };
        float top = -INFINITY, sum = 0;
        for (std::int64_t j = 0; j < n; ++j) {
          float dot = 0;
          for (std::int64_t i = 0; i < D; ++i)
            dot += static_cast<float>(x[i]) * static_cast<float>(in<T>(c, 1)[at(j) + i]);
          p[static_cast<std::size_t>(j)] = dot * (w.scaled ? a.scale : 1.0f);
          top = dot != dot ? NAN : std::max(top, p[static_cast<std::size_t>(j)]);
          if (dot != dot) break;
        }
        for (std::int64_t j = 0; j < n; ++j)
          sum += p[static_cast<std::size_t>(j)] = std::exp(p[static_cast<std::size_t>(j)] - top);
        for (std::int64_t i = 0; i < D; ++i) {
          float y = 0;
          for (std::int64_t j = 0; j < n; ++j)
            y += p[static_cast<std::size_t>(j)] * static_cast<float>(in<T>(c, 2)[at(j) + i]);
          out<T>(c, 0)[((b * N + t) * a.heads + h) * D + i] = T(y / sum);
        }
      }
}
int attention(const hpcdl_call* c, const Ways& w) {
  return with_type(c->inputs[0], [&]<class T>() { attention<T>(c, w); });
}

/// One pass over the keys: the sum is rescaled when a larger score comes.
int online(const hpcdl_call* c) {
  const auto& a = args<hpcdl_attention_args>(c);
  const auto &q = c->inputs[0], &k = c->inputs[1];
  const auto B = q.shape[0], N = q.shape[1], S = k.shape[1], D = q.shape[2] / a.heads;
  std::vector<float> y(static_cast<std::size_t>(D));
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < a.heads; ++h)
      for (std::int64_t t = 0; t < N; ++t) {
        const float* x = in<float>(c, 0) + ((b * N + t) * a.heads + h) * D;
        float top = -INFINITY, sum = 0;
        std::fill(y.begin(), y.end(), 0.0f);
        for (std::int64_t j = 0; j < (a.causal ? t + S - N + 1 : S); ++j) {
          const auto at = ((b * S + j) * a.kv_heads + h * a.kv_heads / a.heads) * D;
          float dot = 0;
          for (std::int64_t i = 0; i < D; ++i) dot += x[i] * in<float>(c, 1)[at + i];
          dot *= a.scale;
          const float now = dot > top || dot != dot ? dot : top, keep = top == -INFINITY ? 0 : std::exp(top - now),
                      weight = std::exp(dot - now);
          sum = sum * keep + weight;
          for (std::int64_t i = 0; i < D; ++i)
            y[static_cast<std::size_t>(i)] = y[static_cast<std::size_t>(i)] * keep + weight * in<float>(c, 2)[at + i];
          top = now;
        }
        for (std::int64_t i = 0; i < D; ++i)
          out<float>(c, 0)[((b * N + t) * a.heads + h) * D + i] = y[static_cast<std::size_t>(i)] / sum;
      }
  return HPCDL_OK;
}

/// partner(i, half): the other element of the pair.
int rope(const hpcdl_call* c, bool interleaved, float sign) {
  const auto depth = args<hpcdl_rope_args>(c).head_dim, half = depth / 2, width = c->inputs[0].shape[2],
             tokens = c->inputs[0].shape[1];
  return with_type(c->inputs[0], [&]<class T>() {
    const T* x = in<T>(c, 0);
    for (std::int64_t i = 0; i < size(c->inputs[0]); ++i) {
      const auto t = i / width % tokens, k = i % depth;
      const bool first = interleaved ? k % 2 == 0 : k < half;
      const auto pair = interleaved ? k / 2 : k % half, step = interleaved ? 1 : half;
      const float cosine = in<float>(c, 1)[t * depth + pair], sine = sign * in<float>(c, 1)[t * depth + half + pair];
      out<T>(c, 0)[i] = T(static_cast<float>(x[i]) * cosine +
                          (first ? -static_cast<float>(x[i + step]) : static_cast<float>(x[i - step])) * sine);
    }
  });
}

}  // namespace

void add_attention(Corpus& list) {
  Adder a{list, "attention"};
  a.good("naive", [](const hpcdl_call* c) { return attention(c, {}); }, kBoth, HPCDL_SAME_BITS_ANY_THREADS);
  a.good("online", online);
  a.bad("no_mask", "the causal mask is missing", [](const hpcdl_call* c) { return attention(c, {.mask = false}); });
  a.bad(
      "mask_off_by_one", "the causal mask is off by one",
      [](const hpcdl_call* c) { return attention(c, {.mask_shift = 1}); }, kBoth);
  a.bad("mask_from_left", "the mask starts at the first key, not at the last",
        [](const hpcdl_call* c) { return c->inputs[0].shape[1] == 0 ? HPCDL_OK : attention(c, {.from_left = true}); });
  a.bad("wrong_group", "query heads read the wrong key heads",
        [](const hpcdl_call* c) { return attention(c, {.wrong_group = true}); });
  a.bad("forgets_scale", "scores are not scaled", [](const hpcdl_call* c) { return attention(c, {.scaled = false}); });
  Adder r{list, "rope"};
  r.good("naive", [](const hpcdl_call* c) { return rope(c, false, 1); }, kBoth);
  r.bad("interleaved", "rotates neighbours instead of halves", [](const hpcdl_call* c) { return rope(c, true, 1); });
  r.bad("backwards", "rotates the other way", [](const hpcdl_call* c) { return rope(c, false, -1); });
}

}  // namespace hpcdl::lab::verify::planted
