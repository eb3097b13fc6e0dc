#pragma once
// gemm<Isa, Epilogue>: include in a .simd.cpp and instantiate for the epilogues needed.

#include "hpcdl/ops/matmul/gemm.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::gemm {

/// The position of V::N neighbouring elements; the first `n` of them exist (all, if Full).
template <class Isa, bool Full> struct LaneAt {
  using V = simd::Vec<Isa>;
  std::int64_t i, j;
  int n;
  template <class T> V load(const T* p) const {
    if constexpr (Full) return V::load(p);
    else return V::load(p, n);
  }
  template <class T> V cols(const T* p) const { return load(p + j); }
  template <class T> V elem(const T* p, std::int64_t ld) const { return load(p + i * ld + j); }
  template <class T> V row(const T* p) const { return V(static_cast<float>(p[i])); }
  template <class T> void put(T* p, std::int64_t ld, V v) const {
    if constexpr (Full) v.store(p + i * ld + j);
    else v.store(p + i * ld + j, n);
  }
  static V erf(V v) { return simd::erf(v); }
};

namespace detail {

template <class Isa> inline simd::Vec<Isa> sums(const float* p) { return simd::Vec<Isa>::load(p); }
template <class Isa> inline simd::Vec<Isa> sums(const std::int32_t* p) {
  float f[simd::Vec<Isa>::N];
  for (int i = 0; i < simd::Vec<Isa>::N; ++i) f[i] = static_cast<float>(p[i]);
  return simd::Vec<Isa>::load(f);
}

/// Optional parts of an epilogue: whether any of them is used, and the epilogue without them, in a form that the
/// compiler can specialise.
template <class F> constexpr bool has_options(const F&) { return false; }
template <class T> constexpr bool has_options(const epilogue::Save<T>& f) { return f.to; }
template <class T> constexpr bool has_options(const epilogue::Residual<T>& f) { return f.c; }
template <class F, class... G> constexpr bool has_options(const epilogue::Chain<F, G...>& f) {
  if constexpr (sizeof...(G) > 0) return has_options(f.first) || has_options(f.rest);
  else return has_options(f.first);
}
template <class F> constexpr void drop_options(F&) {}
template <class T> constexpr void drop_options(epilogue::Save<T>& f) { f.to = nullptr; }
template <class T> constexpr void drop_options(epilogue::Residual<T>& f) { f.c = nullptr; }
template <class F, class... G> constexpr void drop_options(epilogue::Chain<F, G...>& f) {
  drop_options(f.first);
  if constexpr (sizeof...(G) > 0) drop_options(f.rest);
}

// Tiles are padded to whole vectors, so sums may be read beyond `cols`; memory outside the tile may not.
template <class Isa, class Sum, class E>
[[gnu::always_inline]] inline void apply_rows(const E& e, const Sum* s, std::int64_t ld, std::int64_t row,
                                              std::int64_t col, int rows, int cols) {
  using V = simd::Vec<Isa>;
  const auto one = [&](const auto& at, const Sum* sum) {
    if constexpr (std::is_same_v<typename E::Out, std::int32_t>) {
      std::int32_t* d = e.d + at.i * e.ld + at.j;
      for (int i = 0; i < at.n; ++i) d[i] = e.accumulate ? d[i] + sum[i] : sum[i];
    } else {
      V v = e.f(sums<Isa>(sum), at);
      if (e.accumulate) v = v + at.elem(e.d, e.ld);
      at.put(e.d, e.ld, v);
    }
  };
  for (int r = 0; r < rows; ++r, s += ld) {
    int c = 0;
    for (; c + V::N <= cols; c += V::N) one(LaneAt<Isa, true>{row + r, col + c, V::N}, s + c);
    if constexpr (V::N > 1)
      if (c < cols) one(LaneAt<Isa, false>{row + r, col + c, cols - c}, s + c);
  }
}

// Whole tiles of two vectors, as produced by tile registers, are finished a few rows at a time while other tiles
// multiply: checking the options for every row would take longer than the rest of the work (GELU 5 %, ReLU 4 % of a
// product on one thread).
template <class Isa, class Sum, class E>
void apply_tile(const void* epilogue, const void* tile, std::int64_t ld, std::int64_t row, std::int64_t col, int rows,
                int cols) {
  constexpr int kTwo = 2 * simd::Vec<Isa>::N;
  E e = *static_cast<const E*>(epilogue);
  const auto* s = static_cast<const Sum*>(tile);
  if (cols != kTwo || e.accumulate || has_options(e.f)) return apply_rows<Isa>(e, s, ld, row, col, rows, cols);
  e.accumulate = false;
  drop_options(e.f);
  apply_rows<Isa>(e, s, ld, row, col, rows, kTwo);
}

}  // namespace detail

namespace detail {
template <class Isa, class Sum, class E> Finish finish(const E& e) {
  using T = typename E::Out;
  constexpr bool kStoresSums = std::is_same_v<T, Sum> && std::is_same_v<typename E::Function, epilogue::Identity>;
  return {.epilogue = &e,
          .apply = &apply_tile<Isa, Sum, E>,
          .d = reinterpret_cast<std::byte*>(e.d),
          .d_ld = e.ld * static_cast<std::int64_t>(sizeof(T)),
          .d_element = sizeof(T),
          .plain = kStoresSums && !e.accumulate,
          .cold = e.cold};
}
}  // namespace detail

template <class Isa, class E> void gemm(Isa isa, Pool& pool, const Problem& p, const E& e) {
  run(kernel_set(isa, p.compute), pool, p, detail::finish<Isa, float>(e));
}

template <class Isa, class E> void gemm_alone(Isa isa, std::byte* scratch, const Problem& p, const E& e) {
  run_alone(kernel_set(isa, p.compute), scratch, p, detail::finish<Isa, float>(e));
}

template <class Isa, class E> void gemm_int8(Isa isa, Pool& pool, const Problem& p, const E& e) {
  run(kernel_set(isa, Compute::int8), pool, p, detail::finish<Isa, std::int32_t>(e));
}

}  // namespace hpcdl::gemm
