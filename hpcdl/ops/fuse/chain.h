#pragma once
// Chains: a source and the stages that its values pass through, composed at compile time and run as one pass over
// memory.
//
//   chain(load(x), scale(2), add_columns(b), gelu(), add(residual))                        element-wise
//   chain(load(x), row_max(), minus_stat<0>(), exp(), row_sum(), over_stat<1>())           with row reductions: softmax
//
// A stage is a small struct with `V operator()(V v, const At& at) const`; V is a simd::Vec or a float, `at` knows the
// position and loads operands there (for_each.h defines it for the CPU; on a GPU it is a thread's position). A
// reduction passes the value through and produces one number per row, statistic 0, 1, ... in order of appearance, for
// the stages after it. Rows are swept once per reduction and once to store: stages before a reduction are recomputed
// rather than stored. This file needs only the core headers, so that a CUDA driver can run the same chains.

#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/fuse/operand.h"

namespace hpcdl::fuse {

template <class... S> struct Chain;
template <class S> struct Chain<S> {
  S first;
};
template <class S, class... Rest> struct Chain<S, Rest...> {
  S first;
  Chain<Rest...> rest;
};

template <class S> HPCDL_HOST_DEVICE constexpr Chain<S> chain(S s) { return {s}; }
template <class S, class... Rest> HPCDL_HOST_DEVICE constexpr Chain<S, Rest...> chain(S s, Rest... rest) {
  return {s, chain(rest...)};
}

// ---------------------------------------------------------------- sources

struct Load {
  In x;
  template <class At> HPCDL_HOST_DEVICE auto operator()(const At& at) const { return at.load(x); }
  HPCDL_HOST_DEVICE bool flat(std::int64_t cols) const { return x.stride == cols; }
};
inline Load load(const View& x) { return {x}; }

// ---------------------------------------------------------------- element-wise stages

struct Plus {
  In x;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At& at) const { return v + at.load(x); }
  HPCDL_HOST_DEVICE bool flat(std::int64_t cols) const { return x.stride == cols; }
};
inline Plus add(const View& x) { return {x}; }

struct Mul {
  In x;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At& at) const { return v * at.load(x); }
  HPCDL_HOST_DEVICE bool flat(std::int64_t cols) const { return x.stride == cols; }
};
inline Mul mul(const View& x) { return {x}; }

/// + b[col].
struct AddColumns {
  In b;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At& at) const {
    return v + at.load_columns(b);
  }
  HPCDL_HOST_DEVICE bool flat(std::int64_t) const { return false; }
};
inline AddColumns add_columns(const View& b) { return {b}; }

/// * w[col].
struct MulColumns {
  In w;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At& at) const {
    return v * at.load_columns(w);
  }
  HPCDL_HOST_DEVICE bool flat(std::int64_t) const { return false; }
};
inline MulColumns mul_columns(const View& w) { return {w}; }

struct Scale {
  float factor;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At&) const { return v * V(factor); }
};
HPCDL_HOST_DEVICE constexpr Scale scale(float factor) { return {factor}; }

/// F::value of activations.h.
template <class F> struct Apply {
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At&) const { return F::value(v); }
};
HPCDL_HOST_DEVICE constexpr Apply<Relu> relu() { return {}; }
HPCDL_HOST_DEVICE constexpr Apply<GeluTanh> gelu() { return {}; }
HPCDL_HOST_DEVICE constexpr Apply<GeluErf> gelu_erf() { return {}; }
HPCDL_HOST_DEVICE constexpr Apply<Silu> silu() { return {}; }

struct Exp {
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At&) const { return exp(v); }
};
HPCDL_HOST_DEVICE constexpr Exp exp() { return {}; }

// ---------------------------------------------------------------- row reductions and stages that use their results

struct RowMax {
  static constexpr float kStart = -__builtin_inff();
  template <class V> HPCDL_HOST_DEVICE static V combine(V acc, V v) { return max(v, acc); }
  template <class V> static float across(V acc) { return reduce_max(acc); }
  HPCDL_HOST_DEVICE static float finish(float x, std::int64_t) { return x; }
};
struct RowSum {
  static constexpr float kStart = 0;
  template <class V> HPCDL_HOST_DEVICE static V combine(V acc, V v) { return acc + v; }
  template <class V> static float across(V acc) { return reduce_add(acc); }
  HPCDL_HOST_DEVICE static float finish(float x, std::int64_t) { return x; }
};
struct RowMean : RowSum {
  HPCDL_HOST_DEVICE static float finish(float x, std::int64_t cols) { return x / static_cast<float>(cols); }
};
struct RowSumSquare : RowSum {
  template <class V> HPCDL_HOST_DEVICE static V combine(V acc, V v) { return fma(v, v, acc); }
};
struct RowMeanSquare : RowSumSquare {
  HPCDL_HOST_DEVICE static float finish(float x, std::int64_t cols) { return x / static_cast<float>(cols); }
};
HPCDL_HOST_DEVICE constexpr RowMax row_max() { return {}; }
HPCDL_HOST_DEVICE constexpr RowSum row_sum() { return {}; }
HPCDL_HOST_DEVICE constexpr RowMean row_mean() { return {}; }
HPCDL_HOST_DEVICE constexpr RowSumSquare row_sum_square() { return {}; }
HPCDL_HOST_DEVICE constexpr RowMeanSquare row_mean_square() { return {}; }

template <class S> inline constexpr bool is_reduction = requires { S::kStart; };

template <int I> struct MinusStat {
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At& at) const { return v - at.stat(I); }
};
template <int I> struct OverStat {
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At& at) const {
    return v * (V(1.0f) / at.stat(I));
  }
};
template <int I> struct TimesRsqrtStat {
  float eps;
  template <class V, class At> HPCDL_HOST_DEVICE V operator()(V v, const At& at) const {
    return v * (V(1.0f) / sqrt(at.stat(I) + V(eps)));
  }
};
template <int I> HPCDL_HOST_DEVICE constexpr MinusStat<I> minus_stat() { return {}; }
template <int I> HPCDL_HOST_DEVICE constexpr OverStat<I> over_stat() { return {}; }
template <int I> HPCDL_HOST_DEVICE constexpr TimesRsqrtStat<I> times_rsqrt_stat(float eps) { return {eps}; }

/// Softmax over each row; norms with learned weights.
inline auto row_softmax(const View& x, float factor) {
  return chain(load(x), scale(factor), row_max(), minus_stat<0>(), exp(), row_sum(), over_stat<1>());
}
inline auto row_rms_norm(const View& x, const View& w, float eps) {
  return chain(load(x), row_mean_square(), times_rsqrt_stat<0>(eps), mul_columns(w));
}
inline auto row_layer_norm(const View& x, const View& w, const View& b, float eps) {
  return chain(load(x), row_mean(), minus_stat<0>(), row_mean_square(), times_rsqrt_stat<1>(eps), mul_columns(w),
               add_columns(b));
}

// ---------------------------------------------------------------- evaluation

namespace detail {

template <class... S> inline constexpr int reductions_in = (0 + ... + static_cast<int>(is_reduction<S>));

/// The value before reduction K, or at the end of the chain if there are at most K reductions.
template <int K, class S, class... Rest, class V, class At>
HPCDL_HOST_DEVICE V pass(const Chain<S, Rest...>& c, V v, const At& at) {
  if constexpr (is_reduction<S>) {
    if constexpr (K == 0 || sizeof...(Rest) == 0) return v;
    else return pass<K - 1>(c.rest, v, at);
  } else {
    v = c.first(v, at);
    if constexpr (sizeof...(Rest) == 0) return v;
    else return pass<K>(c.rest, v, at);
  }
}
template <int K, class Source, class... Rest, class At>
HPCDL_HOST_DEVICE auto evaluate(const Chain<Source, Rest...>& c, const At& at) {
  if constexpr (sizeof...(Rest) == 0) return c.first(at);
  else return pass<K>(c.rest, c.first(at), at);
}

/// Reduction K of a chain.
template <int K, class S, class... Rest> constexpr auto reduction(const Chain<S, Rest...>* = nullptr) {
  if constexpr (!is_reduction<S>) return reduction<K>(static_cast<const Chain<Rest...>*>(nullptr));
  else if constexpr (K > 0) return reduction<K - 1>(static_cast<const Chain<Rest...>*>(nullptr));
  else return S{};
}

template <class S, class... Rest> bool flat(const Chain<S, Rest...>& c, std::int64_t cols) {
  bool here = !is_reduction<S>;
  if constexpr (requires { c.first.flat(cols); }) here = c.first.flat(cols);
  if constexpr (sizeof...(Rest) > 0) here = here && flat(c.rest, cols);
  return here;
}

}  // namespace detail

/// The body of an element-wise chain: y = chain.
template <class... S> struct Store {
  Out y;
  Chain<S...> c;
  template <class At> HPCDL_HOST_DEVICE void operator()(const At& at) const {
    at.store(y, detail::evaluate<detail::reductions_in<S...>>(c, at));
  }
};

}  // namespace hpcdl::fuse
