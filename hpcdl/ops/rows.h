#pragma once
// How row-wise and element-wise kernels divide their work over the pool.

#include "hpcdl/pool.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

/// Elements below which a second thread costs more than it gains (a hand-over takes about a microsecond).
inline constexpr std::int64_t kGrainElements = 8192;

/// Half of an L3 shared by two cores: the part of it that an output may take.
inline constexpr std::int64_t kCacheBytes = std::int64_t{16} << 20;

/// True for an output too large to stay in the cache, for which non-temporal stores are best. Cache lines shared by two
/// rows cost more than that saves, so short rows must consist of whole lines.
inline bool goes_past_cache(const Tensor& y) {
  const auto row = y.cols() * dtype_bytes(y.dtype());
  return y.bytes() >= kCacheBytes && (row >= 4096 || row % 64 == 0);
}

/// The number of rows to prefetch ahead: memory latency is the time in which a core receives some 4 KiB, and rows are
/// requested in bursts.
inline std::int64_t rows_ahead(std::int64_t row_bytes) {
  constexpr std::int64_t kAhead = 8192;
  return row_bytes < kAhead && row_bytes > 0 ? (kAhead + row_bytes - 1) / row_bytes : 1;
}

/// f(begin row, end row): whole rows, one contiguous share per thread.
template <class F> void for_rows(Pool& pool, std::int64_t rows, std::int64_t cols, F&& f) {
  parallel_for(pool, rows, kGrainElements / (cols > 0 ? cols : 1) + 1, f);
}

/// f(thread, begin row, end row): the same for kernels that need per-thread memory (Pool::scratch).
template <class F> void for_rows_on_threads(Pool& pool, std::int64_t rows, std::int64_t cols, F&& f) {
  const std::int64_t grain = kGrainElements / (cols > 0 ? cols : 1) + 1, parts = (rows + grain - 1) / grain;
  const std::int64_t threads = parts < pool.threads() ? parts : pool.threads();
  if (threads <= 1) return f(0, std::int64_t{0}, rows);
  pool.run([&](int t) {
    if (t < threads) f(t, rows * t / threads, rows * (t + 1) / threads);
  });
}

/// f(row, begin, end): element-wise work; rows are divided too, in pieces of multiples of 64 elements, if there are few
/// of them.
template <class F> void for_row_chunks(Pool& pool, std::int64_t rows, std::int64_t cols, F&& f) {
  if (rows == 1) {
    const std::int64_t blocks = (cols + 63) / 64;
    parallel_for(pool, blocks, kGrainElements / 64,
                 [&](std::int64_t b, std::int64_t e) { f(std::int64_t{0}, b * 64, e * 64 < cols ? e * 64 : cols); });
    return;
  }
  for_rows(pool, rows, cols, [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t r = b; r < e; ++r) f(r, std::int64_t{0}, cols);
  });
}

}  // namespace hpcdl
