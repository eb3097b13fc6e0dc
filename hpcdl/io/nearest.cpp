#include "hpcdl/io/nearest.h"

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl::io {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongest = 200;  // a very long word must not cost quadratic time
  if (word.size() > kLongest) return std::nullopt;
  const std::string* best = nullptr;
  int best_distance = 2 + static_cast<int>(word.size()) / 3;
  for (const auto& c : candidates) {
    if (c.size() > kLongest) continue;
    const int d = edit_distance(word, c);
    if (d < best_distance) best = &c, best_distance = d;
  }
  return best ? std::optional(*best) : std::nullopt;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const auto best = nearest(word, candidates);
  return best ? fmt::format("; did you mean '{}'?", *best) : "";
}

}  // namespace hpcdl::io
