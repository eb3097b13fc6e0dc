#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/planted/planted.h"

namespace hpcdl::lab::verify::planted {
namespace {

using Args = hpcdl_matmul_args;

/// Operands of one product of the batch, with strides that undo the transposition.
struct Product {
  std::int64_t batch, m, n, k, a_row, a_col, b_row, b_col;
  float scale;
  explicit Product(const hpcdl_call* c) {
    const auto &a = c->inputs[0], &y = c->outputs[0];
    const auto& t = args<Args>(c);
    batch = y.rank > 2 ? y.shape[0] : 1;
    m = y.shape[y.rank - 2], n = y.shape[y.rank - 1], k = t.transpose_a ? a.shape[a.rank - 2] : a.shape[a.rank - 1];
    a_row = t.transpose_a ? 1 : k, a_col = t.transpose_a ? m : 1;
    b_row = t.transpose_b ? 1 : n, b_col = t.transpose_b ? k : 1;
    scale = t.scale;
  }
  std::int64_t a_at(std::int64_t s, std::int64_t i, std::int64_t l) const { return s * m * k + i * a_row + l * a_col; }
  std::int64_t b_at(std::int64_t s, std::int64_t l, std::int64_t j) const { return s * k * n + l * b_row + j * b_col; }
};

/// y[i, j] = sum(first, last, at) over l, where at(l) is a product in float.
template <class T, class Sum> void each_result(const hpcdl_call* c, Sum sum) {
  const Product p(c);
  const T *a = in<T>(c, 0), *b = in<T>(c, 1);
  for (std::int64_t s = 0; s < p.batch; ++s)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j)
        out<T>(c, 0)[(s * p.m + i) * p.n + j] =
            T(p.scale * sum(p.k, [&](std::int64_t l) {
                return static_cast<float>(a[p.a_at(s, i, l)]) * static_cast<float>(b[p.b_at(s, l, j)]);
              }));
}
template <class Sum> int matmul(const hpcdl_call* c, Sum sum) {
  return with_type(c->inputs[0], [&]<class T>() { each_result<T>(c, sum); });
}

const auto forwards = [](std::int64_t k, auto term) {
  float s = 0;
  for (std::int64_t l = 0; l < k; ++l) s += term(l);
  return s;
};
const auto backwards = [](std::int64_t k, auto term) {
  float s = 0;
  for (auto l = k; l-- > 0;) s += term(l);
  return s;
};
const auto eight_lanes = [](std::int64_t k, auto term) {
  float s[8] = {};
  for (std::int64_t l = 0; l < k; ++l) s[l % 8] += term(l);
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
};
const auto in_double = [](std::int64_t k, auto term) {
  double s = 0;
  for (std::int64_t l = 0; l < k; ++l) s += static_cast<double>(term(l));
  return static_cast<float>(s);
};
template <class Narrow> float narrow_sum(std::int64_t k, auto term) {
  Narrow s(0.0f);
  for (std::int64_t l = 0; l < k; ++l) s = Narrow(static_cast<float>(s) + term(l));
  return s;
}

/// By tiles of 16 x 16 x 16 into a float buffer.
int blocked(const hpcdl_call* c) {
  const Product p(c);
  const float *a = in<float>(c, 0), *b = in<float>(c, 1);
  for (std::int64_t s = 0; s < p.batch; ++s)
    for (std::int64_t i0 = 0; i0 < p.m; i0 += 16)
      for (std::int64_t j0 = 0; j0 < p.n; j0 += 16) {
        float tile[16][16] = {};
        const auto i1 = std::min<std::int64_t>(16, p.m - i0), j1 = std::min<std::int64_t>(16, p.n - j0);
        for (std::int64_t l = 0; l < p.k; ++l)
          for (std::int64_t i = 0; i < i1; ++i)
            for (std::int64_t j = 0; j < j1; ++j) tile[i][j] += a[p.a_at(s, i0 + i, l)] * b[p.b_at(s, l, j0 + j)];
        for (std::int64_t i = 0; i < i1; ++i)
          for (std::int64_t j = 0; j < j1; ++j)
            out<float>(c, 0)[(s * p.m + i0 + i) * p.n + j0 + j] = p.scale * tile[i][j];
      }
  return HPCDL_OK;
}

/// Splits K into four parts: one thread each if that many are allowed, otherwise one after the other.
template <class Work> void four_parts(const hpcdl_call* c, Work work) {
  if (c->threads < 4) {
    for (int t = 0; t < 4; ++t) work(t);
    return;
  }
  std::vector<std::thread> team;
  for (int t = 0; t < 4; ++t) team.emplace_back([=] { work(t); });
  for (auto& t : team) t.join();
}
float part_of(const Product& p, const float* a, const float* b, std::int64_t s, std::int64_t i, std::int64_t j,
              int part) {
  float sum = 0;
  for (auto l = p.k * part / 4; l < p.k * (part + 1) / 4; ++l) sum += a[p.a_at(s, i, l)] * b[p.b_at(s, l, j)];
  return sum;
}
std::int64_t results(const hpcdl_call* c) { return size(c->outputs[0]); }
template <class F> void each_place(const Product& p, F f) {
  for (std::int64_t s = 0; s < p.batch; ++s)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) f(s, i, j, (s * p.m + i) * p.n + j);
}
int split_k(const hpcdl_call* c) {
  const Product p(c);
  std::vector<float> part(static_cast<std::size_t>(4 * results(c)));
  four_parts(c, [&](int t) {
    each_place(p, [&](std::int64_t s, std::int64_t i, std::int64_t j, std::int64_t at) {
      part[static_cast<std::size_t>(t * results(c) + at)] = part_of(p, in<float>(c, 0), in<float>(c, 1), s, i, j, t);
    });
  });
  for (std::int64_t at = 0; at < results(c); ++at) {
    float sum = 0;
    for (int t = 0; t < 4; ++t) sum += part[static_cast<std::size_t>(t * results(c) + at)];
    out<float>(c, 0)[at] = p.scale * sum;
  }
  return HPCDL_OK;
}

/// Sometimes lets other threads run.
void jitter() {
  const auto ticks = std::chrono::steady_clock::now().time_since_epoch().count();
  for (auto i = (ticks >> 5) & 3; i > 0; --i) ::sched_yield();
}
/// Parts are added in the order in which threads come: correct, but not reproducible.
int order_of_arrival(const hpcdl_call* c) {
  const Product p(c);
  std::vector<std::atomic<float>> sum(static_cast<std::size_t>(results(c)));
  four_parts(c, [&](int t) {
    each_place(p, [&](std::int64_t s, std::int64_t i, std::int64_t j, std::int64_t at) {
      if (at % 64 == 0) jitter();
      sum[static_cast<std::size_t>(at)].fetch_add(part_of(p, in<float>(c, 0), in<float>(c, 1), s, i, j, t));
    });
  });
  for (std::int64_t at = 0; at < results(c); ++at) out<float>(c, 0)[at] = p.scale * sum[static_cast<std::size_t>(at)];
  return HPCDL_OK;
}
/// The same without atomics: a thread overwrites what another has just added.
int race(const hpcdl_call* c) {
  const Product p(c);
  std::vector<float> sum(static_cast<std::size_t>(results(c)));
  four_parts(c, [&](int t) {
    each_place(p, [&](std::int64_t s, std::int64_t i, std::int64_t j, std::int64_t at) {
      volatile float& place = sum[static_cast<std::size_t>(at)];
      const float before = place, mine = part_of(p, in<float>(c, 0), in<float>(c, 1), s, i, j, t);
      if (at % 16 == 0) jitter();
      place = before + mine;
    });
  });
  for (std::int64_t at = 0; at < results(c); ++at) out<float>(c, 0)[at] = p.scale * sum[static_cast<std::size_t>(at)];
  return HPCDL_OK;
}

// ---- broken ----

int transposed_weight(const hpcdl_call* c) {
  Args turned = args<Args>(c);
  turned.transpose_b = !turned.transpose_b;
  hpcdl_call copy = *c;
  copy.args = &turned;
  return matmul(&copy, forwards);
}
const auto k_by_four = [](std::int64_t k, auto term) { return forwards(k / 4 * 4, term); };
int forgets_scale(const hpcdl_call* c) {
  Args plain = args<Args>(c);
  plain.scale = 1;
  hpcdl_call copy = *c;
  copy.args = &plain;
  return matmul(&copy, forwards);
}
/// One b for the whole batch.
int first_of_batch(const hpcdl_call* c) {
  const Product p(c);
  each_place(p, [&](std::int64_t s, std::int64_t i, std::int64_t j, std::int64_t at) {
    out<float>(c, 0)[at] = p.scale * forwards(p.k, [&](std::int64_t l) {
                             return in<float>(c, 0)[p.a_at(s, i, l)] * in<float>(c, 1)[p.b_at(0, l, j)];
                           });
  });
  return HPCDL_OK;
}
/// The last tile of columns starts at n - 16 even when there are fewer than 16.
int overlapping_tile(const hpcdl_call* c) {
  matmul(c, forwards);
  const Product p(c);
  if (p.n > 16 && p.n % 16 == 1 && p.m > 0) std::swap(out<float>(c, 0)[p.n - 1], out<float>(c, 0)[p.n - 2]);
  return HPCDL_OK;
}
/// A sum that starts with the value of the last call.
int global_state(const hpcdl_call* c) {
  static float left = 0;
  const float start = left;
  matmul(c, [&](std::int64_t k, auto term) { return start + forwards(k, term); });
  if (results(c) > 0) left = 1e-3f * out<float>(c, 0)[0];
  return HPCDL_OK;
}
/// Adds noise from the clock.
int seeded_by_time(const hpcdl_call* c) {
  const auto ticks = static_cast<float>(std::chrono::steady_clock::now().time_since_epoch().count() % 1000) * 1e-9f;
  return matmul(c, [&](std::int64_t k, auto term) { return forwards(k, term) * (1 + ticks); });
}

}  // namespace

void add_matmul(Corpus& list) {
  Adder m{list, "matmul"};
  m.good("naive", [](const hpcdl_call* c) { return matmul(c, forwards); }, kBoth, HPCDL_SAME_BITS_ANY_THREADS);
  m.good("backwards", [](const hpcdl_call* c) { return matmul(c, backwards); }, kBoth);
  m.good("eight_lanes", [](const hpcdl_call* c) { return matmul(c, eight_lanes); });
  m.good("in_double", [](const hpcdl_call* c) { return matmul(c, in_double); });
  m.good("blocked", blocked);
  m.good("split_k", split_k, kF32, HPCDL_SAME_BITS_ANY_THREADS);
  m.good("order_of_arrival_declared", order_of_arrival, kF32, HPCDL_BITS_MAY_VARY);
  m.bad("order_of_arrival", "adds parts in the order in which threads come", order_of_arrival);
  m.bad("race", "two threads write one sum", race);
  m.bad("in_fp16", "sums in fp16",
        [](const hpcdl_call* c) { return matmul(c, [](std::int64_t k, auto t) { return narrow_sum<f16>(k, t); }); });
  m.bad(
      "in_bf16", "sums in bf16",
      [](const hpcdl_call* c) { return matmul(c, [](std::int64_t k, auto t) { return narrow_sum<bf16>(k, t); }); },
      kBf16);
  m.bad("transposed_weight", "reads b as its transpose", transposed_weight);
  m.bad("k_by_four", "the tail of K is left out", [](const hpcdl_call* c) { return matmul(c, k_by_four); });
  m.bad("forgets_scale", "the scale is forgotten", forgets_scale);
  m.bad("first_of_batch", "one b for the whole batch", first_of_batch);
  m.bad("overlapping_tile", "wrong where N is one beyond a tile", overlapping_tile);
  m.bad("global_state", "the result depends on the call before", global_state);
  m.bad("seeded_by_time", "depends on the clock", seeded_by_time);
}

}  // namespace hpcdl::lab::verify::planted
