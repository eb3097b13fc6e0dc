#pragma once
// Rows of a matrix (out, in) in f32, from any layout and type in which it is stored.

#include <string_view>
#include <vector>

#include "hpcdl/pool.h"
#include "hpcdl/tensor.h"

namespace hpcdl::quant {

/// w: (N, K), or (K, N) when `transposed`; f32, bf16 or f16, dense rows.
class FloatRows {
 public:
  /// Throws Error that names `name` if w is not such a matrix.
  FloatRows(const View& w, bool transposed, std::string_view name);

  std::string_view name() const { return name_; }
  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  /// Writes row r, k() numbers; the position of the first that is NaN or infinite, or -1.
  std::int64_t read(std::int64_t r, float* to) const;
  /// Throws Error: the number at [row, column] is not finite.
  [[noreturn]] void refuse(std::int64_t row, std::int64_t column) const;

 private:
  View w_;
  bool transposed_;
  std::string_view name_;
  std::int64_t n_, k_;
};

/// Calls f(row, its numbers) for all rows in parallel. Throws Error for the first number, by
/// rows, that is not finite.
template <class F> void for_each_row(Pool& pool, const FloatRows& rows, F&& f) {
  std::vector<std::int64_t> bad(static_cast<std::size_t>(rows.n()), -1);
  parallel_for(pool, rows.n(), 1 + 8192 / (rows.k() + 1), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(rows.k()));
    for (auto r = begin; r < end; ++r) {
      const auto position = rows.read(r, row.data());
      bad[static_cast<std::size_t>(r)] = position;
      if (position < 0) f(r, row.data());
    }
  });
  for (std::int64_t r = 0; r < rows.n(); ++r)
    if (bad[static_cast<std::size_t>(r)] >= 0) rows.refuse(r, bad[static_cast<std::size_t>(r)]);
}

}  // namespace hpcdl::quant
