#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace hpcdl::infer {

/// How long a pass takes, by its number of tokens, as far as passes have been measured.
class StepCost {
 public:
  /// Later ones count more.
  void add(std::int64_t tokens, double seconds) {
    auto& p = points_[std::min(std::bit_width(static_cast<std::uint64_t>(tokens)), points_.size()) - 1];
    const double share = p.seconds == 0 ? 1 : kShare;
    p.tokens += share * (static_cast<double>(tokens) - p.tokens), p.seconds += share * (seconds - p.seconds);
  }
  /// Between two measured numbers of tokens on the line between them; beyond the largest, in proportion. 0: not known.
  double seconds(std::int64_t tokens) const {
    const auto n = static_cast<double>(tokens);
    Point below;
    for (const auto& p : points_) {
      if (p.seconds == 0) continue;
      if (p.tokens >= n)
        return below.seconds == 0
                   ? p.seconds
                   : below.seconds + (p.seconds - below.seconds) * (n - below.tokens) / (p.tokens - below.tokens);
      below = p;
    }
    return below.seconds == 0 ? 0 : below.seconds * n / below.tokens;
  }
  /// The most tokens up to `most` that take this long.
  std::int64_t tokens_within(double limit, std::int64_t most) const {
    std::int64_t fits = 0;
    for (auto step = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most))); step > 0; step /= 2)
      if (fits + step <= most && seconds(fits + step) <= limit) fits += step;
    return fits;
  }

 private:
  static constexpr double kShare = 0.1;
  struct Point {
    double tokens = 0, seconds = 0;  // means; 0: there are none
  };
  std::array<Point, 21> points_{};  // of passes over 1, 2-3, 4-7, ... tokens
};

}  // namespace hpcdl::infer
