#include "tools/probe/figure.h"

#include <algorithm>

#include "hpcdl/core/clock.h"
#include "tools/compare/protocol.h"

namespace hpcdl::lab {

Figure figure_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  const auto n = static_cast<int>(samples.size());
  const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
  const double min = *least, max = *most;
  return {compare::median(std::move(samples)), min, max, n};
}

double Rate::once(double& elapsed) {
  if (warm_ > 0) work_(warm_);
  double done = 0;
  if (timer_) {
    elapsed = timer_([&] { done = work_(repeats_); });
  } else {
    const auto start = Clock::now();
    done = work_(repeats_);
    elapsed = seconds_since(start);
  }
  elapsed = std::max(elapsed, 1e-9);
  return done / elapsed;
}

double Rate::operator()() {
  double elapsed = 0;
  if (repeats_ == 0) {
    repeats_ = 1;
    if (!(once(elapsed) > 0)) return repeats_ = 0, -1;  // and page faults
    while (once(elapsed), elapsed < seconds_ / 2 && repeats_ < (std::int64_t{1} << 40)) repeats_ *= 4;
    repeats_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(repeats_) * seconds_ / elapsed));
  }
  const double rate = once(elapsed);
  return rate > 0 ? rate : -1;
}

void Rounds::add(std::string what, Figure& into, std::function<double()> sample) {
  list_.push_back({std::move(what), &into, std::move(sample), {}});
}

void Rounds::run(int least, int most, double seconds, const OnProgress& progress) {
  const auto start = Clock::now();
  double turns = 0;
  const auto more = [&](int round) { return round <= most && (round <= least || seconds_since(start) <= seconds); };
  compare::take_turns(list_.size(), more, [&](int round, std::size_t i) {
    auto& q = list_[i];
    const double rounds = turns++ / static_cast<double>(list_.size());
    if (progress)
      progress(q.what, std::min(1.0, std::max(rounds / (most + 1),
                                              std::min(rounds / (least + 1), seconds_since(start) / seconds))));
    if (const double x = q.sample(); round > 0 && x >= 0) q.samples.push_back(x);
  });
  for (auto& q : list_) *q.into = figure_of(std::move(q.samples));
  list_.clear();
}

}  // namespace hpcdl::lab
