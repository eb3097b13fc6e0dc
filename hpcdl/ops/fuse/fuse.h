#pragma once
// Runs a chain (chain.h) on the CPU, as one pass over memory.
//
//   fuse::run(isa, pool, y, fuse::chain(fuse::load(x), fuse::scale(2), fuse::add_columns(b), fuse::gelu()));
//
// For .simd.cpp files. All operands have y's dtype; y may be a Grad that accumulates, and may be an operand itself.

#include "hpcdl/ops/fuse/chain.h"
#include "hpcdl/ops/fuse/for_each.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::fuse {
namespace detail {

/// Fills stats[K ...] for one row, reduction by reduction.
template <class T, int K, class Isa, class... S>
[[gnu::flatten]] void reduce_row(Isa isa, const Chain<S...>& c, std::int64_t row, std::int64_t cols, float* stats) {
  if constexpr (K < reductions_in<S...>) {
    using V = simd::Vec<Isa>;
    using R = decltype(reduction<K, S...>());
    V acc(R::kStart), acc2(R::kStart);
    std::int64_t i = 0;
    for (; i + 2 * V::N <= cols; i += 2 * V::N) {
      acc = R::combine(acc, evaluate<K>(c, Spot<Isa, T, false, false>{row, i, V::N, stats}));
      acc2 = R::combine(acc2, evaluate<K>(c, Spot<Isa, T, false, false>{row, i + V::N, V::N, stats}));
    }
    for (; i < cols; i += V::N) {
      const int n = static_cast<int>(cols - i < V::N ? cols - i : V::N);
      float lanes[V::N], before[V::N];
      R::combine(acc, evaluate<K>(c, Spot<Isa, T, true, false>{row, i, n, stats})).store(lanes);
      acc.store(before);
      for (int l = 0; l < n; ++l) before[l] = lanes[l];
      acc = V::load(before);
    }
    if constexpr (R::kStart == 0) acc = acc + acc2;
    else acc = max(acc, acc2);
    stats[K] = R::finish(R::across(acc), cols);
    reduce_row<T, K + 1>(isa, c, row, cols, stats);
  }
}

}  // namespace detail

template <class Isa, class... S> void run(Isa isa, Pool& pool, const Grad& y, const Chain<S...>& c) {
  constexpr int reductions = detail::reductions_in<S...>;
  const Store<S...> body{y, c};
  visit_dtype(y.dtype(), [&]<class T>() {
    if constexpr (reductions == 0) {
      const bool flat = y.is_contiguous() && detail::flat(c, y.cols());
      for_each<T>(isa, pool, flat ? Plane{1, y.size()} : Plane{y.rows(), y.cols()}, y.bytes(), body);
    } else {
      if (y.cols() == 0) return;
      for_rows(pool, y.rows(), y.cols(), [&](std::int64_t begin, std::int64_t end) {
        for (auto r = begin; r < end; ++r) {
          float stats[reductions];
          detail::reduce_row<T, 0>(isa, c, r, y.cols(), stats);
          row_loop<T, false>(isa, body, r, 0, y.cols(), bytes_ahead(y.bytes()), stats);
        }
      });
    }
  });
}
template <class Isa, class... S> void run(Isa isa, Pool& pool, const Tensor& y, const Chain<S...>& c) {
  run(isa, pool, Grad(y, Write::overwrite), c);
}

}  // namespace hpcdl::fuse
