#pragma once
// The protocol of every comparison in C++: sides take turns within a round, each repeats its call for about `target`
// seconds after one call that is not measured, and a claim is the median of the round-by-round ratios.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace hpcdl::bench {

struct Side {
  std::string name;
  std::function<void()> call;
  double units = 1;  // of work in one call; times are reported per unit
  std::function<void()> before_round = {}, after_round = {};
};

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds per unit, one for each round, by side.
inline std::map<std::string, std::vector<double>> interleave(const std::vector<Side>& sides, int rounds, double target) {
  std::map<std::string, std::vector<double>> seconds;
  const auto n = static_cast<int>(sides.size());
  for (int r = 0; r < rounds; ++r)
    for (int k = 0; k < n; ++k) {
      const Side& side = sides[static_cast<std::size_t>((r + k) % n)];
      if (side.before_round) side.before_round();
      side.call();
      const double start = now();
      int calls = 0;
      do side.call(), ++calls;
      while (now() - start < target);
      seconds[side.name].push_back((now() - start) / calls / side.units);
      if (side.after_round) side.after_round();
    }
  return seconds;
}

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : (v[v.size() / 2] + v[(v.size() - 1) / 2]) / 2;
}

inline nlohmann::json spread(const std::vector<double>& v, double scale, const char* unit) {
  const auto [lo, hi] = std::minmax_element(v.begin(), v.end());
  const std::string u = unit;
  return {{"median" + u, median(v) * scale}, {"min" + u, *lo * scale}, {"max" + u, *hi * scale}};
}

inline nlohmann::json ratio(const std::vector<double>& peer, const std::vector<double>& ours) {
  std::vector<double> r;
  for (std::size_t i = 0; i < std::min(peer.size(), ours.size()); ++i) r.push_back(peer[i] / ours[i]);
  return spread(r, 1, "");
}

/// One result, as a line that bench/peers/collect.py puts into the machine's file.
inline void emit(const std::string& key, const nlohmann::json& row) {
  std::printf("%s\n", nlohmann::json({{"key", key}, {"row", row}}).dump().c_str());
  std::fflush(stdout);
}

}  // namespace hpcdl::bench
