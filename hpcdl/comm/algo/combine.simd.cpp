#include <cstddef>
#include <type_traits>

#include "hpcdl/comm/algo/combine_kernels.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::comm::algo {
namespace {

using simd::Isa;
using V = simd::Vec<Isa>;

constexpr int kAny = 0;        // the number of rows that the arguments give
constexpr int kMostRows = 64;  // kMostTogether

struct Sum {
  static V apply(V a, V b) { return a + b; }
  template <class T> static T apply_one(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a + b;
    else return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  }
};
struct Max {
  // The vector maximum returns its second operand if either is NaN.
  static V apply(V a, V b) { return select(a == a, max(a, b), a); }
  template <class T> static T apply_one(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a != a ? a : a > b ? a : b;
    else return a > b ? a : b;
  }
};

/// simd::loop(), from the end.
template <class F> void loop_down(std::int64_t n, F&& f) {
  const std::int64_t whole = n / V::N * V::N;
  if (whole < n) f(whole, static_cast<int>(n - whole));
  for (std::int64_t i = whole - V::N; i >= 0; i -= V::N) f(i, simd::Whole{});
}

template <class T, class Op, bool kDivide, int kIns, int kOuts, Sweep kSweep> void rows(const CombineArguments& a) {
  const int ins = kIns == kAny ? a.ins : kIns, outs = kOuts == kAny ? a.outs : kOuts;
  const T* in[kIns == kAny ? kMostRows : kIns];
  T* out[kOuts == kAny ? kMostRows : kOuts];
  for (int k = 0; k < ins; ++k) in[k] = reinterpret_cast<const T*>(a.in[k]);
  for (int k = 0; k < outs; ++k) out[k] = reinterpret_cast<T*>(a.out[k]);
  const V divisor(static_cast<float>(a.divisor));
  const auto body = [&](std::int64_t i, auto lanes) {
    V v = simd::load<V>(in[0] + i, lanes);
    for (int k = 1; k < ins; ++k) v = Op::apply(v, simd::load<V>(in[k] + i, lanes));
    if constexpr (kDivide) v = v / divisor;
    for (int k = 0; k < outs; ++k) {
      if constexpr (kSweep == Sweep::stream) simd::stream(out[k] + i, v, lanes);
      else simd::store(out[k] + i, v, lanes);
    }
  };
  if constexpr (kSweep == Sweep::stream) simd::loop_aligned<Isa>(out[0], a.n, body), simd::stream_fence<Isa>();
  else if constexpr (kSweep == Sweep::down) loop_down(a.n, body);
  else simd::loop<Isa>(a.n, body);
}

template <class T, class Op, bool kDivide> void floats(const CombineArguments& a) {
  const bool two = a.ins == 2 && a.outs == 2;
  if (a.sweep == Sweep::stream)
    return two ? rows<T, Op, kDivide, 2, 2, Sweep::stream>(a) : rows<T, Op, kDivide, kAny, kAny, Sweep::stream>(a);
  if (a.sweep == Sweep::down)
    return two ? rows<T, Op, kDivide, 2, 2, Sweep::down>(a) : rows<T, Op, kDivide, kAny, kAny, Sweep::down>(a);
  if (a.ins == 2 && a.outs == 1) return rows<T, Op, kDivide, 2, 1, Sweep::up>(a);
  if (two) return rows<T, Op, kDivide, 2, 2, Sweep::up>(a);
  rows<T, Op, kDivide, kAny, kAny, Sweep::up>(a);
}

template <class T> void floats(const CombineArguments& a) {
  if (a.op == Reduce::max) floats<T, Max, false>(a);
  else if (a.op == Reduce::avg) floats<T, Sum, true>(a);
  else floats<T, Sum, false>(a);
}

/// Integers and f64, by the compiler's own vectors. An output is the same memory as an input or does not overlap it: no
/// iteration sees the result of another.
template <class T, class Op> void plain(const CombineArguments& a) {
  T* out = reinterpret_cast<T*>(a.out[0]);
  const T* first = reinterpret_cast<const T*>(a.in[0]);
  constexpr std::int64_t kBlock = 1024;
  T sum[kBlock];
  for (std::int64_t at = 0; at < a.n; at += kBlock) {
    const std::int64_t len = a.n - at < kBlock ? a.n - at : kBlock;
    for (std::int64_t i = 0; i < len; ++i) sum[i] = first[at + i];
    for (int k = 1; k < a.ins; ++k) {
      const T* in = reinterpret_cast<const T*>(a.in[k]) + at;
      for (std::int64_t i = 0; i < len; ++i) sum[i] = Op::template apply_one<T>(sum[i], in[i]);
    }
    if constexpr (std::is_floating_point_v<T>)
      if (a.op == Reduce::avg)
        for (std::int64_t i = 0; i < len; ++i) sum[i] /= static_cast<T>(a.divisor);
    for (int k = 0; k < a.outs; ++k) {
      out = reinterpret_cast<T*>(a.out[k]) + at;
      for (std::int64_t i = 0; i < len; ++i) out[i] = sum[i];
    }
  }
}

template <class T> void plain(const CombineArguments& a) {
  if (a.op == Reduce::max) plain<T, Max>(a);
  else plain<T, Sum>(a);
}

/// Nothing for types that are no numbers: check() refuses them.
template <class T> void of_type(const CombineArguments& a) {
  constexpr bool is_narrow_float = std::is_class_v<T> && std::is_convertible_v<T, float>;
  if constexpr (std::is_same_v<T, float> || is_narrow_float) floats<T>(a);
  else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) plain<T>(a);
}

}  // namespace

template <class I> void combine_kernel(I, const CombineArguments& a) {
  switch (a.dtype) {
#define HPCDL_CASE(dtype, name, array_name, type, floating) \
  case DType::dtype: return of_type<type>(a);
    HPCDL_DTYPES(HPCDL_CASE)
#undef HPCDL_CASE
    default: return;
  }
}

template void combine_kernel(Isa, const CombineArguments&);

}  // namespace hpcdl::comm::algo
