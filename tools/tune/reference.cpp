#include "tools/tune/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/core/tolerance.h"
#include "hpcdl/rng.h"

namespace hpcdl::lab::tune {

std::vector<Sample> samples_of(std::int64_t batch, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kMost = 4096;
  std::vector<Sample> list;
  if (batch * rows * cols <= kMost) {
    for (std::int64_t i = 0; i < batch * rows * cols; ++i)
      list.push_back({i / (rows * cols), i / cols % rows, i % cols});
    return list;
  }
  for (const auto b : {std::int64_t{0}, batch - 1})
    for (const auto r : {std::int64_t{0}, rows - 1})
      for (const auto c : {std::int64_t{0}, cols - 1}) list.push_back({b, r, c});
  const Rng rng{11, 0};
  for (std::uint64_t i = 0; std::ssize(list) < kMost; i += 3) {
    const auto below = [&](std::uint64_t k, std::int64_t n) {
      return static_cast<std::int64_t>(rng.below(i + k, static_cast<std::uint64_t>(n)));
    };
    const auto edge = i / 3 % 8;  // two of eight lie in the last row or column
    list.push_back({below(0, batch), edge == 0 ? rows - 1 : below(1, rows), edge == 1 ? cols - 1 : below(2, cols)});
  }
  return list;
}

std::string difference(const std::vector<Sample>& at, const Wanted& want, const std::vector<double>& got, DType stored,
                       std::int64_t terms, double rounding) {
  std::size_t wrong = 0, worst = 0;
  double most = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    // 1.2: slopes of activations reach 1.13.
    const double allowed = 1.2 * (allowed_error(stored, std::fabs(want.value[i]), static_cast<double>(terms),
                                                want.size[i] + 1) +
                                  rounding * want.size[i]),
                 off = std::fabs(got[i] - want.value[i]);
    if (off <= allowed) continue;
    ++wrong;
    const double over = std::isfinite(off) ? off / allowed : HUGE_VAL;
    if (over > most) most = over, worst = i;
  }
  if (wrong == 0) return "";
  return fmt::format("{} of {} elements are wrong, for example ({}, {}, {}): expected {:.6g}, got {:.6g}", wrong,
                     at.size(), at[worst].batch, at[worst].row, at[worst].col, want.value[worst], got[worst]);
}

}  // namespace hpcdl::lab::tune
