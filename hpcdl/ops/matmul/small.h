#pragma once
// Products of a few rows with an unpacked matrix: B is read once, in place, at the speed of memory. Packing would cost
// more than the product. Included only by the .simd.cpp files of this folder.

#include "hpcdl/ops/matmul/packing.h"

namespace hpcdl::gemm {

template <class D, class W, class T> void to_words(std::uint32_t* dst, const T* src, std::int64_t k) {
  constexpr int kFull = D::kLanes * D::kGroup;
  for (std::int64_t i = 0; i < k; i += kFull, dst += D::kLanes)
    W::store(dst, W::along_k(src + i, static_cast<int>(k - i < kFull ? k - i : kFull)), D::kLanes);
}

/// Rows of B are dense along k: dot products, several rows of B at a time so that the sums are independent.
template <class D, class W, class T, int M> void small_dots(const SmallArgs& s) {
  constexpr int kRows = M <= 4 ? 4 : 2, kFull = D::kLanes * D::kGroup;
  for (int j0 = 0; j0 < s.cols; j0 += kRows) {
    const int rows = s.cols - j0 < kRows ? s.cols - j0 : kRows;
    const T* row[kRows];
    for (int r = 0; r < kRows; ++r) row[r] = static_cast<const T*>(s.b) + (j0 + (r < rows ? r : 0)) * s.ld;
    typename D::Acc acc[kRows][M];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) acc[r][m] = D::zero();
    const auto step = [&](std::int64_t k, int n) __attribute__((always_inline)) {
      typename D::Word x[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) x[m] = D::load(s.x + m * s.x_stride + k / D::kGroup * 4);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const auto w = D::word(W::along_k(row[r] + k, n));
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) acc[r][m] = D::mad(acc[r][m], x[m], w);
      }
    };
    std::int64_t k = 0;
    for (; k + kFull <= s.k; k += kFull) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(row[r] + k + kRows * s.ld, 0, 3);
      step(k, kFull);
    }
    if (k < s.k) step(k, static_cast<int>(s.k - k));
    for (int r = 0; r < rows; ++r)
      for (int m = 0; m < M; ++m) D::store_sum(static_cast<std::byte*>(s.out) + (m * s.out_ld + j0 + r) * 4, acc[r][m]);
  }
}

/// Rows of B are dense along n: a strip of columns stays in registers over all of k.
template <class D, class W, class T, int M> void small_strip(const SmallArgs& s) {
  constexpr int L = D::kLanes, kAhead = 8;
  constexpr int kVectors = L == 1 ? (M <= 3 ? 4 : 2) : M == 1 ? 8 : M <= 3 ? 6 : 4;
  const std::int64_t words = (s.k + D::kGroup - 1) / D::kGroup;
  for (int j0 = 0; j0 < s.cols; j0 += kVectors * L) {
    const int cols = s.cols - j0 < kVectors * L ? s.cols - j0 : kVectors * L;
    typename D::Acc acc[M][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[m][v] = D::zero();
    const T* p = static_cast<const T*>(s.b) + j0;
    const auto step = [&](std::int64_t k, int kn, bool full) __attribute__((always_inline)) {
      typename D::Word x[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) x[m] = D::broadcast(s.x + m * s.x_stride + k * 4);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if (!full && v * L >= cols) continue;
        if (full) __builtin_prefetch(p + v * L + kAhead * D::kGroup * s.ld, 0, 3);
        const auto w = D::word(W::across(p + v * L, s.ld, kn, full || cols - v * L >= L ? L : cols - v * L));
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) acc[m][v] = D::mad(acc[m][v], x[m], w);
      }
      p += D::kGroup * s.ld;
    };
    const std::int64_t whole = s.k / D::kGroup;
    if (cols == kVectors * L)
      for (std::int64_t k = 0; k < whole; ++k) step(k, D::kGroup, true);
    else
      for (std::int64_t k = 0; k < whole; ++k) step(k, D::kGroup, false);
    if (whole < words) step(whole, static_cast<int>(s.k % D::kGroup), false);
    alignas(64) std::uint32_t t[L];
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < kVectors && v * L < cols; ++v) {
        D::store_acc(t, acc[m][v]);
        std::memcpy(static_cast<std::byte*>(s.out) + (m * s.out_ld + j0 + v * L) * 4, t,
                    sizeof(t[0]) * static_cast<unsigned>(cols - v * L < L ? cols - v * L : L));
      }
  }
}

template <class D, class W, class T> void small_rows(const SmallArgs& s) {
  const auto at = [&]<int... m>(std::integer_sequence<int, m...>) {
    ((s.rows == m + 1 ? (s.k_dense ? small_dots<D, W, T, m + 1>(s) : small_strip<D, W, T, m + 1>(s)) : void()), ...);
  };
  at(std::make_integer_sequence<int, KernelSet::kSmallRows>{});
}

}  // namespace hpcdl::gemm
