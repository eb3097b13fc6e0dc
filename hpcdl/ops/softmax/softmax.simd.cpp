#include "hpcdl/ops/softmax/softmax.h"

#include <cmath>

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"
#include "hpcdl/simd/math.h"
#include "hpcdl/simd/prefetch.h"

namespace hpcdl::cpu {
namespace {

constexpr float kInf = __builtin_inff();
constexpr int kShort = 8;              // registers: rows up to this length stay in them
constexpr std::int64_t kBlock = 2048;  // columns that stay in L1 between their maximum and their exponentials
constexpr std::int64_t kTempCols =
    65536;  // exponentials of a row are kept in L2 until their sum is known; longer rows compute them twice
constexpr std::int64_t kTurnCols =
    32768;  // the same for two rows, next to a row that is read and one that is prefetched: half of 1 MiB

/// The number of columns that row `r` sees.
std::int64_t visible(const View& x, std::int64_t r, bool causal) {
  if (!causal) return x.cols();
  const std::int64_t rows = x[-2];
  return r % rows + x.cols() - rows + 1;
}

/// e^(scale * x) = 2^(rate * x): all exponents here are to base 2. `rate` is not negative: x is multiplied by `sign`,
/// so that the largest result belongs to the largest sign * x.
template <class T> struct Row {
  T* y;
  const T* x;
  std::int64_t n;  // columns seen; those after them are 0
  float rate, sign;
  std::int64_t ahead;  // prefetch distance in elements, from this row of x to a later one
  bool past_cache;     // the output does not fit into the cache
  float* temp;         // kTempCols floats, or as many as the row has
};

template <class Isa> float power(float x) { return reduce_max(exp2(simd::Vec<Isa>(x))); }

/// Half of a later row is prefetched into L2 while this one is read, half while it is written, so that memory never
/// waits for arithmetic: step i of n of either phase prefetches one line per two lines of its own. kLong: rows of at
/// least kLongBytes.
constexpr std::int64_t kLongBytes = 32768;
template <bool kLong, class T> void prefetch_next(const Row<T>& r, std::int64_t i, bool second_half) {
  const auto* next = reinterpret_cast<const char*>(r.x + r.ahead) +
                     (static_cast<std::int64_t>(sizeof(T)) * ((second_half ? r.n : 0) + i)) / 2;
  if constexpr (kLong) simd::prefetch_pages_in_turn(next);
  else __builtin_prefetch(next, 0, 2);
}

/// y[i] = f(i, lanes) over [begin, end).
template <class Isa, class T, class F> void write(const Row<T>& r, std::int64_t begin, std::int64_t end, F&& f) {
  using namespace simd;
  T* y = r.y + begin;
  if (r.past_cache)
    loop_aligned<Isa>(y, end - begin, [&](std::int64_t i, auto k) { stream(y + i, f(begin + i, k), k); });
  else loop<Isa>(end - begin, [&](std::int64_t i, auto k) { store(y + i, f(begin + i, k), k); });
}

/// Exponents rate * x - rate * top are as exact as rate * x, which is not enough beyond this limit: for ordinary masks
/// of -1e10 they are wrong by hundreds. There x - top is multiplied instead, which costs one more operation.
constexpr float kFar = 256;
bool is_far(float exponent) { return !(std::fabs(exponent) <= kFar); }

/// rate * (top - other), as exact as exponents relative to either.
template <class T> float between(const Row<T>& r, float top, float other) {
  const float a = top * r.rate, b = other * r.rate;
  return is_far(a) || is_far(b) ? (top - other) * r.rate : a - b;
}

/// A short row whose largest exponent is far, or not finite.
template <class Isa, class T> [[gnu::noinline, gnu::cold]] void far_row(const Row<T>& r) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const V sign(r.sign), rate(r.rate);
  const V top(max_over<Isa>(r.n, [&](std::int64_t i, auto k) { return first(load<V>(r.x + i, k) * sign, k, -kInf); }));
  const auto term = [&](std::int64_t i, auto k) {
    return exp2(first((load<V>(r.x + i, k) * sign - top) * rate, k, -kInf));
  };
  const V inv(1.0f / sum_over<Isa>(r.n, [&](V sum, std::int64_t i, auto k) { return sum + term(i, k); }));
  loop<Isa>(r.n, [&](std::int64_t i, auto k) { store(r.y + i, term(i, k) * inv, k); });
}

/// A row of NV registers, the last of them partly used.
template <class Isa, int NV, class T> void short_row(const Row<T>& r) {
  using V = simd::Vec<Isa>;
  const V s(r.rate * r.sign);
  const int last = static_cast<int>(r.n) - (NV - 1) * V::N;
  V v[NV];
#pragma GCC unroll 8
  for (int q = 0; q + 1 < NV; ++q) v[q] = V::load(r.x + q * V::N) * s;
  v[NV - 1] = (V::load(r.x + (NV - 1) * V::N, last) * s).first(last, -kInf);
  V top(-kInf);
#pragma GCC unroll 8
  for (int q = 0; q < NV; ++q) top = max(v[q], top);
  const float highest = reduce_max(top);
  if (is_far(highest)) [[unlikely]]
    return far_row<Isa>(r);
  const V m(highest);
  V sum(0.0f);
#pragma GCC unroll 8
  for (int q = 0; q < NV; ++q) {
    v[q] = exp2(v[q] - m);
    sum = sum + v[q];
  }
  const V inv(1.0f / reduce_add(sum));
#pragma GCC unroll 8
  for (int q = 0; q + 1 < NV; ++q) (v[q] * inv).store(r.y + q * V::N);
  (v[NV - 1] * inv).store(r.y + (NV - 1) * V::N, last);
}

template <class Isa, class T> void short_row(const Row<T>& r) {
  switch ((r.n + simd::Vec<Isa>::N - 1) / simd::Vec<Isa>::N) {
    case 0: return;
    case 1: return short_row<Isa, 1>(r);
    case 2: return short_row<Isa, 2>(r);
    case 3: return short_row<Isa, 3>(r);
    case 4: return short_row<Isa, 4>(r);
    case 5: return short_row<Isa, 5>(r);
    case 6: return short_row<Isa, 6>(r);
    case 7: return short_row<Isa, 7>(r);
    default: return short_row<Isa, 8>(r);
  }
}

/// The sum over some columns, relative to 2^(rate * top), top the largest sign * x of them.
struct Part {
  float top = -kInf, sum = 0;
};

/// Columns [at, at + n); their exponentials relative to the block's maximum are stored to r.temp if `keep`. beside(i,
/// lanes) is called with each exponential.
template <class Isa, bool keep, bool kLong, class T, class F>
Part block(const Row<T>& r, std::int64_t at, std::int64_t n, F&& beside) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const T* x = r.x + at;
  float* temp = r.temp + at;
  const V sign(r.sign);
  Part p;
  p.top = max_over<Isa>(n, [&](std::int64_t i, auto k) { return first(load<V>(x + i, k) * sign, k, -kInf); });
  const auto sum_of = [&](auto exponent) {
    return sum_over<Isa>(n, [&](V a, std::int64_t i, auto k) {
      prefetch_next<kLong>(r, at + i, false);
      const V e = exp2(first(exponent(load<V>(x + i, k)), k, -kInf));
      if constexpr (keep) store(temp + i, e, k);
      beside(at + i, k);
      return a + e;
    });
  };
  const V top(p.top == -kInf ? 0 : p.top);  // only -inf: -inf - -inf would be NaN
  if (p.top != -kInf && is_far(p.top * r.rate)) [[unlikely]] {
    p.sum = sum_of([&, rate = V(r.rate)](V v) { return (v * sign - top) * rate; });
  } else {
    const V s(r.rate * r.sign), m = V(0.0f) - top * V(r.rate);
    p.sum = sum_of([&](V v) { return fma(v, s, m); });
  }
  return p;
}
template <class Isa, bool keep, bool kLong, class T> Part block(const Row<T>& r, std::int64_t at, std::int64_t n) {
  return block<Isa, keep, kLong>(r, at, n, [](std::int64_t, auto) {});
}

template <class Isa, class T> void join(const Row<T>& r, Part& all, const Part& p) {
  if (p.top == -kInf) all.sum += p.sum;  // 0 or NaN
  else if (p.top <= all.top) all.sum += p.sum * power<Isa>(between(r, p.top, all.top));
  else all = {p.top, p.sum + (all.top == -kInf ? all.sum : all.sum * power<Isa>(between(r, all.top, p.top)))};
}

template <class Isa, class T> void long_row(const Row<T>& r) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  Part all;
  const auto blocks = [&](auto f) {
    for (std::int64_t at = 0; at < r.n; at += kBlock) f(at, r.n - at < kBlock ? r.n - at : kBlock);
  };
  if (r.n <= kTempCols) {
    float tops[kTempCols / kBlock];
    blocks([&](std::int64_t at, std::int64_t n) {
      const Part p = block<Isa, true, false>(r, at, n);
      tops[at / kBlock] = p.top;
      join<Isa>(r, all, p);
    });
    blocks([&](std::int64_t at, std::int64_t n) {
      const V factor(power<Isa>(between(r, tops[at / kBlock], all.top)) / all.sum);
      write<Isa>(r, at, at + n, [&](std::int64_t i, auto k) {
        prefetch_next<false>(r, i, true);
        return load<V>(r.temp + i, k) * factor;
      });
    });
  } else {
    blocks([&](std::int64_t at, std::int64_t n) { join<Isa>(r, all, block<Isa, false, false>(r, at, n)); });
    const V inv(1.0f / all.sum);
    const auto put = [&](auto exponent) {
      write<Isa>(r, 0, r.n, [&](std::int64_t i, auto k) { return exp2(exponent(load<V>(r.x + i, k))) * inv; });
    };
    const V sign(r.sign), top(all.top), rate(r.rate), s(r.rate * r.sign), m(-(all.top * r.rate));
    if (is_far(all.top * r.rate)) put([&](V v) { return (v * sign - top) * rate; });
    else put([&](V v) { return fma(v, s, m); });
  }
}

/// Floats between the exponentials of two rows: whole lines but not whole pages, so that loads and stores do not alias.
std::int64_t turn_stride(std::int64_t cols) { return (cols + 1023) / 1024 * 1024 + 528; }

/// Rows of whole lines written with non-temporal stores: a row is written while the exponentials of the next one are
/// computed, so that memory receives stores at an even pace. Gives the same bits as long_row.
template <class Isa, bool kLong, class T, class F>
void rows_in_turn(std::int64_t begin, std::int64_t end, std::int64_t cols, float* temp, F&& row_at) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  float tops[kTurnCols / kBlock], factors[kTurnCols / kBlock];  // for this row's blocks; for those of the previous row
  T* before = nullptr;                                          // destination of the previous row's exponentials
  const auto temp_of = [&](std::int64_t r) { return temp + r % 2 * turn_stride(cols); };
  const auto blocks = [&](auto f) {
    for (std::int64_t at = 0; at < cols; at += kBlock) f(at, cols - at < kBlock ? cols - at : kBlock);
  };
  const auto put = [&](const float* exponentials, V factor, std::int64_t i, auto k) {
    stream(before + i, load<V>(exponentials + i, k) * factor, k);
  };
  for (auto r = begin; r < end; ++r) {
    Row<T> row = row_at(r);
    row.temp = temp_of(r);
    Part all;
    blocks([&](std::int64_t at, std::int64_t n) {
      const V factor(before ? factors[at / kBlock] : 0);
      const float* last = temp_of(r + 1);
      const Part p = !before ? block<Isa, true, kLong>(row, at, n)
                             : block<Isa, true, kLong>(row, at, n, [&](std::int64_t i, auto k) {
                                 put(last, factor, i, k);
                                 prefetch_next<kLong>(row, i, true);
                               });
      tops[at / kBlock] = p.top;
      join<Isa>(row, all, p);
    });
    blocks([&](std::int64_t at, std::int64_t) {
      factors[at / kBlock] = power<Isa>(between(row, tops[at / kBlock], all.top)) / all.sum;
    });
    before = row.y;
  }
  if (begin == end) return;
  blocks([&](std::int64_t at, std::int64_t n) {
    const V factor(factors[at / kBlock]);
    loop<Isa>(n, [&](std::int64_t i, auto k) { put(temp_of(end - 1), factor, at + i, k); });
  });
}

}  // namespace

template <class Isa> void softmax(Isa, Pool& pool, Tensor y, View x, const Softmax::Args& a) {
  using V = simd::Vec<Isa>;
  const auto cols = x.cols();
  const bool past_cache = goes_past_cache(y);
  const auto ahead = rows_ahead(cols * dtype_bytes(x.dtype())) * x.row_stride();
  const bool in_turn = past_cache && !a.causal && cols > kShort * V::N && cols <= kTurnCols &&
                       y.row_stride() * dtype_bytes(y.dtype()) % 64 == 0 &&
                       reinterpret_cast<std::uintptr_t>(y.data()) % 64 == 0;
  pool.reserve_scratch((in_turn            ? 2 * turn_stride(cols)
                        : cols < kTempCols ? cols
                                           : kTempCols) *
                       static_cast<std::int64_t>(sizeof(float)));
  visit_dtype(x.dtype(), [&]<class T>() {
    for_rows_on_threads(pool, x.rows(), cols, [&](int thread, std::int64_t begin, std::int64_t end) {
      auto* temp = reinterpret_cast<float*>(pool.scratch(thread));
      const auto row_at = [&](std::int64_t r) {
        return Row<T>{y.ptr<T>() + r * y.row_stride(),
                      x.ptr<T>() + r * x.row_stride(),
                      visible(x, r, a.causal),
                      std::fabs(a.scale * 1.44269504f),
                      a.scale < 0 ? -1.0f : 1.0f,
                      ahead,
                      past_cache,
                      temp};
      };
      if (in_turn) {
        if (cols * static_cast<std::int64_t>(sizeof(T)) < kLongBytes)
          rows_in_turn<Isa, false, T>(begin, end, cols, temp, row_at);
        else rows_in_turn<Isa, true, T>(begin, end, cols, temp, row_at);
      } else {
        for (auto r = begin; r < end; ++r) {
          const Row<T> row = row_at(r);
          if (row.n <= kShort * V::N) short_row<Isa>(row);
          else long_row<Isa>(row);
          write<Isa>(row, row.n, cols, [](std::int64_t, auto) { return V(0.0f); });
        }
      }
      if (past_cache) simd::stream_fence<Isa>();
    });
  });
}

template <class Isa> void softmax_backward(Isa, Pool& pool, Grad dx, View y, View dy, const Softmax::Args& a) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto n = y.cols();
  const bool past_cache = goes_past_cache(dx);
  visit_dtype(y.dtype(), [&]<class T>() {
    for_rows(pool, y.rows(), n, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const T* p = y.ptr<T>() + r * y.row_stride();
        const T* g = dy.ptr<T>() + r * dy.row_stride();
        T* out = dx.ptr<T>() + r * dx.row_stride();
        const auto seen = visible(y, r, a.causal);
        const V dot(sum_over<Isa>(
            seen, [&](V sum, std::int64_t i, auto k) { return fma(load<V>(p + i, k), load<V>(g + i, k), sum); }));
        const V s(a.scale);
        const auto value = [&](std::int64_t i, auto k) { return s * load<V>(p + i, k) * (load<V>(g + i, k) - dot); };
        if (dx.accumulate()) {
          loop<Isa>(seen, [&](std::int64_t i, auto k) { store(out + i, load<V>(out + i, k) + value(i, k), k); });
        } else {
          const Row<T> row{out, nullptr, n, 1, 1, 0, past_cache, nullptr};
          write<Isa>(row, 0, seen, value);
          if (seen < n) write<Isa>(row, seen, n, [](std::int64_t, auto) { return V(0.0f); });
        }
      }
      if (past_cache) stream_fence<Isa>();
    });
  });
}

template void softmax(simd::Isa, Pool&, Tensor, View, const Softmax::Args&);
template void softmax_backward(simd::Isa, Pool&, Grad, View, View, const Softmax::Args&);

}  // namespace hpcdl::cpu
