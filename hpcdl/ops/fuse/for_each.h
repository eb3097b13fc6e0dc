#pragma once
// The CPU driver of fused kernels: calls body(spot) for every vector of a (rows, cols) plane. A spot knows its position
// and loads and stores operands there; a body is a small copyable functor, templated on the spot, that accesses memory
// only through it, so that a CUDA driver with one float per thread can run the same body.

#include "hpcdl/ops/fuse/plane.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::fuse {

/// One vector of columns of one row; kTail: only the first n lanes exist. kStream: output uses non-temporal stores.
template <class Isa, class T, bool kTail, bool kStream> struct Spot {
  using V = simd::Vec<Isa>;
  using Element = T;
  std::int64_t row, col;
  int n;
  const float* stats;      // results of earlier row reductions
  std::int64_t ahead = 0;  // prefetch distance in bytes

  template <class U = T> V load(const In& x) const {
    const U* p = x.template at<U>(row, col);
    if constexpr (!kTail) __builtin_prefetch(reinterpret_cast<const std::byte*>(p) + ahead, 0, 2);
    return load_from(p);
  }
  /// Loads from a vector over the columns (bias, weight), the same for every row.
  V load_columns(const In& b) const { return load_from(b.template at<T>(0, col)); }
  V stat(int i) const { return V(stats[i]); }

  template <class U = T> void store(const Out& y, V v) const {
    U* p = y.template at<U>(row, col);
    if (y.accumulate) v = v + load_from(static_cast<const U*>(p));
    if constexpr (kTail) v.store(p, n);
    else if constexpr (kStream) v.stream(p);
    else v.store(p);
  }

 private:
  template <class U> V load_from(const U* p) const {
    if constexpr (kTail) return V::load(p, n);
    else return V::load(p);
  }
};

/// Outputs of at least this size do not stay in any cache: reading the lines before writing them would be wasted.
inline constexpr std::int64_t kStreamBytes = std::int64_t{24} << 20;

/// The prefetch distance for operands too large for any L2. The hardware prefetcher follows a page to its end and then
/// waits for the next: with as much arithmetic as in GELU, on 16-bit elements, that took half of the time.
inline std::int64_t bytes_ahead(std::int64_t out_bytes) { return out_bytes >= 1 << 20 ? 4096 : 0; }

// flatten: a call per vector, which reloads its constants, costs more than most bodies.
template <class T, bool kStream, class Isa, class Body>
[[gnu::flatten]] void row_loop(Isa, const Body& shared, std::int64_t row, std::int64_t begin, std::int64_t end,
                               std::int64_t ahead, const float* stats = nullptr) {
  constexpr int N = simd::Vec<Isa>::N;
  const Body body = shared;  // a copy that no store can alias
  std::int64_t i = begin;
  for (; i + N <= end; i += N) body(Spot<Isa, T, false, kStream>{row, i, N, stats, ahead});
  if (i < end) body(Spot<Isa, T, true, kStream>{row, i, static_cast<int>(end - i), stats, ahead});
}

/// body(spot) over the plane. `out_bytes`: bytes that the body writes in total.
template <class T, class Isa, class Body>
void for_each(Isa isa, Pool& pool, Plane plane, std::int64_t out_bytes, const Body& body) {
  if (plane.rows * plane.cols == 0) return;
  const std::int64_t ahead = bytes_ahead(out_bytes);
  if (out_bytes >= kStreamBytes) {
    for_row_chunks(pool, plane.rows, plane.cols, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
      row_loop<T, true>(isa, body, row, begin, end, ahead);
      simd::stream_fence<Isa>();
    });
  } else {
    for_row_chunks(pool, plane.rows, plane.cols, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
      row_loop<T, false>(isa, body, row, begin, end, ahead);
    });
  }
}

}  // namespace hpcdl::fuse
