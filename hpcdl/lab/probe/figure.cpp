#include "hpcdl/lab/probe/figure.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "hpcdl/core/clock.h"

namespace hpcdl::lab {

Figure figure_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto n = samples.size();
  return {(samples[(n - 1) / 2] + samples[n / 2]) / 2, samples.front(), samples.back(), static_cast<int>(n)};
}

double Rate::once(double& elapsed) {
  if (warm_ > 0) work_(warm_);
  const auto start = Clock::now();
  const double done = work_(repeats_);
  elapsed = std::max(seconds_since(start), 1e-9);
  return done / elapsed;
}

double Rate::operator()() {
  double elapsed = 0;
  if (repeats_ == 0) {
    repeats_ = 1;
    work_(1);  // page faults
    while (once(elapsed), elapsed < seconds_ / 2 && repeats_ < (std::int64_t{1} << 40)) repeats_ *= 4;
    repeats_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(repeats_) * seconds_ / elapsed));
  }
  return once(elapsed);
}

void Rounds::add(std::string what, Figure& into, std::function<double()> sample) {
  list_.push_back({std::move(what), &into, std::move(sample), {}});
}

void Rounds::run(int least, int most, double seconds, const OnProgress& progress) {
  std::vector<std::size_t> order(list_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random(1);
  const auto start = Clock::now();
  for (int round = -1; round < most; ++round) {
    if (round >= least && seconds_since(start) > seconds) break;
    for (std::size_t i = 0; i < order.size(); ++i) {
      auto& q = list_[order[i]];
      const double by_rounds = (round + 1 + static_cast<double>(i) / static_cast<double>(order.size())) / (most + 1);
      const double by_least = by_rounds * (most + 1) / (least + 1);
      if (progress)
        progress(q.what, std::min(1.0, std::max(by_rounds, std::min(by_least, seconds_since(start) / seconds))));
      if (const double x = q.sample(); round >= 0 && x >= 0) q.samples.push_back(x);
    }
    std::shuffle(order.begin(), order.end(), random);
  }
  for (auto& q : list_) *q.into = figure_of(std::move(q.samples));
  list_.clear();
}

}  // namespace hpcdl::lab
