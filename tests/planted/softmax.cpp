#include <algorithm>
#include <cmath>
#include <thread>

#include "tests/planted/planted.h"

namespace hpcdl::lab::verify::planted {
namespace {

using Args = hpcdl_softmax_args;

std::int64_t seen(const hpcdl_call* c, std::int64_t row) {
  const auto& t = c->inputs[0];
  return args<Args>(c).causal ? row % t.shape[t.rank - 2] + cols(t) - t.shape[t.rank - 2] + 1 : cols(t);
}

/// One correct row: y may be x. Any NaN makes the row NaN.
template <class T> void row_softmax(T* y, const T* x, std::int64_t n, std::int64_t all, float scale) {
  float top = -INFINITY, sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = scale * static_cast<float>(x[i]);
    top = v > top || v != v ? v : top;
    if (v != v) break;
  }
  for (std::int64_t i = 0; i < n; ++i) sum += std::exp(scale * static_cast<float>(x[i]) - top);
  for (std::int64_t i = 0; i < n; ++i) y[i] = T(std::exp(scale * static_cast<float>(x[i]) - top) / sum);
  for (std::int64_t i = n; i < all; ++i) y[i] = T(0.0f);
}

template <class T> void all_rows(const hpcdl_call* c, std::int64_t begin, std::int64_t end) {
  const auto n = cols(c->inputs[0]);
  for (auto r = begin; r < end; ++r)
    row_softmax(out<T>(c, 0) + r * n, in<T>(c, 0) + r * n, seen(c, r), n, args<Args>(c).scale);
}
int naive(const hpcdl_call* c) {
  return with_type(c->inputs[0], [&]<class T>() { all_rows<T>(c, 0, rows(c->inputs[0])); });
}
int backwards(const hpcdl_call* c) {
  for (auto r = rows(c->inputs[0]); r-- > 0;) all_rows<float>(c, r, r + 1);
  return HPCDL_OK;
}
int threaded(const hpcdl_call* c) {
  std::vector<std::thread> team;
  const auto all = rows(c->inputs[0]);
  for (int t = 0; t < c->threads; ++t)
    team.emplace_back([=] { all_rows<float>(c, all * t / c->threads, all * (t + 1) / c->threads); });
  for (auto& t : team) t.join();
  return HPCDL_OK;
}

/// One pass for maximum and sum (Milakov & Gimelshein).
int online(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r) {
    const float *x = in<float>(c, 0) + r * n, s = args<Args>(c).scale;
    float top = -INFINITY, sum = 0;
    for (std::int64_t i = 0; i < seen(c, r); ++i) {
      const float v = s * x[i];
      if (!(v <= top)) sum = (top == -INFINITY ? 0 : sum * std::exp(top - v)), top = v != v || top != top ? NAN : v;
      sum += std::exp(v - top);
    }
    for (std::int64_t i = 0; i < n; ++i)
      out<float>(c, 0)[r * n + i] = i < seen(c, r) ? std::exp(s * x[i] - top) / sum : 0;
  }
  return HPCDL_OK;
}
int in_double(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r) {
    const float* x = in<float>(c, 0) + r * n;
    const double s = static_cast<double>(args<Args>(c).scale);
    double top = -INFINITY, sum = 0;
    for (std::int64_t i = 0; i < seen(c, r); ++i) top = std::fmax(top, s * static_cast<double>(x[i]));
    for (std::int64_t i = 0; i < seen(c, r); ++i) sum += std::exp(s * static_cast<double>(x[i]) - top);
    for (std::int64_t i = 0; i < n; ++i)
      out<float>(c, 0)[r * n + i] =
          i < seen(c, r) ? static_cast<float>(std::exp(s * static_cast<double>(x[i]) - top) / sum) : 0;
  }
  return HPCDL_OK;
}
/// Declines sizes that it does not support.
int only_whole_vectors(const hpcdl_call* c) { return cols(c->inputs[0]) % 8 ? HPCDL_UNSUPPORTED : naive(c); }

// ---- broken ----

int no_maximum(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r) {
    float sum = 0;
    const float *x = in<float>(c, 0) + r * n, s = args<Args>(c).scale;
    for (std::int64_t i = 0; i < seen(c, r); ++i) sum += std::exp(s * x[i]);
    for (std::int64_t i = 0; i < n; ++i) out<float>(c, 0)[r * n + i] = i < seen(c, r) ? std::exp(s * x[i]) / sum : 0;
  }
  return HPCDL_OK;
}
int no_mask(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r)
    row_softmax(out<float>(c, 0) + r * n, in<float>(c, 0) + r * n, n, n, args<Args>(c).scale);
  return HPCDL_OK;
}
int mask_off_by_one(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r)
    row_softmax(out<float>(c, 0) + r * n, in<float>(c, 0) + r * n, std::min(n, seen(c, r) + 1), n, args<Args>(c).scale);
  return HPCDL_OK;
}
int forgets_scale(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r)
    row_softmax(out<float>(c, 0) + r * n, in<float>(c, 0) + r * n, seen(c, r), n, 1);
  return HPCDL_OK;
}
/// The last cols % 8 columns are neither summed nor written.
int no_tail(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r)
    row_softmax(out<float>(c, 0) + r * n, in<float>(c, 0) + r * n, std::min(seen(c, r), n / 8 * 8), n / 8 * 8,
                args<Args>(c).scale);
  return HPCDL_OK;
}
/// Correct if rows have 64 elements.
int one_shape(const hpcdl_call* c) {
  constexpr std::int64_t n = 64;
  const auto all = size(c->inputs[0]);
  for (std::int64_t at = 0; at < all; at += n) {
    const auto m = std::min(n, all - at);
    row_softmax(out<float>(c, 0) + at, in<float>(c, 0) + at, std::min(m, seen(c, at / n)), m, args<Args>(c).scale);
  }
  return HPCDL_OK;
}
/// Keeps the result of each address.
int cached_by_pointer(const hpcdl_call* c) {
  static thread_local const void* last = nullptr;
  static thread_local std::vector<float> kept;
  static thread_local Args kept_args;
  const auto n = static_cast<std::size_t>(size(c->inputs[0]));
  if (last != c->inputs[0].data || kept.size() != n || std::memcmp(&kept_args, c->args, sizeof kept_args) != 0) {
    naive(c);
    last = c->inputs[0].data, kept_args = args<Args>(c);
    kept.assign(out<float>(c, 0), out<float>(c, 0) + n);
  }
  std::copy(kept.begin(), kept.end(), out<float>(c, 0));
  return HPCDL_OK;
}
/// Returns the result of the previous call.
int stale_buffer(const hpcdl_call* c) {
  static std::vector<float> buffer;
  const auto n = static_cast<std::size_t>(size(c->inputs[0]));
  const bool fresh = buffer.size() != n;
  const std::vector<float> before = buffer;
  naive(c);
  buffer.assign(out<float>(c, 0), out<float>(c, 0) + n);
  if (!fresh) std::copy(before.begin(), before.end(), out<float>(c, 0));
  return HPCDL_OK;
}
int nan_dropped_by_max(const hpcdl_call* c) {
  const auto n = cols(c->inputs[0]);
  for (std::int64_t r = 0; r < rows(c->inputs[0]); ++r) {
    const float *x = in<float>(c, 0) + r * n, s = args<Args>(c).scale;
    float top = -INFINITY, sum = 0;
    const auto weight = [&](std::int64_t i) { return std::exp(std::fmax(s * x[i], -3e38f) - top); };
    for (std::int64_t i = 0; i < seen(c, r); ++i) top = std::fmax(top, s * x[i]);
    for (std::int64_t i = 0; i < seen(c, r); ++i) sum += weight(i);
    for (std::int64_t i = 0; i < n; ++i) out<float>(c, 0)[r * n + i] = i < seen(c, r) ? weight(i) / sum : 0;
  }
  return HPCDL_OK;
}
/// Correct, but rounds rows up to whole vectors when it writes.
int writes_behind(const hpcdl_call* c) {
  naive(c);
  const auto n = size(c->inputs[0]);
  if (n > 0)
    for (auto i = n; i % 4; ++i) out<float>(c, 0)[i] = 0;
  return HPCDL_OK;
}
/// Does nothing if nothing seems to have changed since the last call: ten positions of input and output are the same.
int leaves_out_repeats(const hpcdl_call* c) {
  static const void* last = nullptr;
  static std::int64_t last_size = -1;
  static float seen_in[10], seen_out[10];
  static Args last_args;
  const auto n = size(c->inputs[0]);
  const auto at = [&](int k) { return n * k / 10; };
  bool same =
      n > 0 && last == c->outputs[0].data && last_size == n && std::memcmp(&last_args, c->args, sizeof last_args) == 0;
  for (int k = 0; same && k < 10; ++k)
    same = in<float>(c, 0)[at(k)] == seen_in[k] && out<float>(c, 0)[at(k)] == seen_out[k];
  if (same) return HPCDL_OK;
  naive(c);
  last = c->outputs[0].data, last_size = n, last_args = args<Args>(c);
  for (int k = 0; n > 0 && k < 10; ++k) seen_in[k] = in<float>(c, 0)[at(k)], seen_out[k] = out<float>(c, 0)[at(k)];
  return HPCDL_OK;
}
/// A cheap exponential: 1 % off.
int coarse_exp(const hpcdl_call* c) {
  naive(c);
  for (std::int64_t i = 0; i < size(c->inputs[0]); ++i) out<float>(c, 0)[i] *= 1 + 1e-4f * std::sin(in<float>(c, 0)[i]);
  return HPCDL_OK;
}

}  // namespace

void add_softmax(Corpus& list) {
  Adder s{list, "softmax"};
  s.good("naive", naive, kBoth, HPCDL_IN_PLACE | HPCDL_SAME_BITS_ANY_THREADS);
  s.good("backwards", backwards);
  s.good("threaded", threaded, kF32, HPCDL_SAME_BITS_ANY_THREADS);
  s.good("online", online);
  s.good("in_double", in_double);
  s.good("only_whole_vectors", only_whole_vectors, kBoth);
  s.bad("no_maximum", "overflows: no maximum subtracted", no_maximum);
  s.bad("no_mask", "the causal mask is missing", no_mask);
  s.bad("mask_off_by_one", "the causal mask is off by one", mask_off_by_one);
  s.bad("forgets_scale", "the scale is forgotten", forgets_scale);
  s.bad("no_tail", "the last columns are left out", no_tail);
  s.bad("one_shape", "right for one row length only", one_shape);
  s.bad("cached_by_pointer", "a cached result, found by its address", cached_by_pointer);
  s.bad("stale_buffer", "returns the result of the previous call", stale_buffer);
  s.bad("nan_dropped_by_max", "a NaN disappears", nan_dropped_by_max);
  s.bad("writes_behind", "writes past the end of its output", writes_behind);
  s.bad("leaves_out_repeats", "no work when the call looks like the last", leaves_out_repeats);
  s.bad("coarse_exp", "an exponential of 4 digits", coarse_exp);
}

}  // namespace hpcdl::lab::verify::planted
