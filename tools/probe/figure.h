#pragma once
// How the lab measures: many quantities in turns, in rounds, so that a slow period of the machine affects every
// quantity in one round and no quantity in all rounds.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::lab {

/// One quantity over its rounds. rounds == 0: not measured.
struct Figure {
  double median = 0, min = 0, max = 0;
  int rounds = 0;

  bool measured() const { return rounds > 0; }
  /// (max - min) / median.
  double spread() const { return median > 0 ? (max - min) / median : 0; }
};

Figure figure_of(std::vector<double> samples);

/// Work per second. Each timing begins with `warm` untimed repeats: between two samples other quantities
/// have used the caches. The first call finds how many repeats take about `seconds`.
class Rate {
 public:
  using Work = std::function<double(std::int64_t repeats)>;
  /// Seconds of a call, by another clock than that of the host.
  using Timer = std::function<double(const std::function<void()>&)>;

  /// `work(repeats)` does the work and returns its amount.
  Rate(Work work, double seconds, std::int64_t warm = 1, Timer timer = {})
      : work_(std::move(work)), timer_(std::move(timer)), seconds_(seconds), warm_(warm) {}
  /// Negative if there is no work.
  double operator()();

 private:
  double once(double& elapsed);
  Work work_;
  Timer timer_;
  double seconds_;
  std::int64_t warm_, repeats_ = 0;
};

/// Called before each sample: the quantity, and the share of the whole that is done, 0 .. 1.
using OnProgress = std::function<void(std::string_view what, double done)>;

/// Quantities that are measured together.
class Rounds {
 public:
  /// `sample` measures once; negative: not possible on this machine, the figure keeps no rounds. `into` must outlive
  /// run().
  void add(std::string what, Figure& into, std::function<double()> sample);
  /// Rounds of all quantities in random order; the first round only warms up: at least `least`, then until `seconds`
  /// are over or `most` are done.
  void run(int least, int most, double seconds, const OnProgress& progress = {});

 private:
  struct Quantity {
    std::string what;
    Figure* into;
    std::function<double()> sample;
    std::vector<double> samples;
  };
  std::vector<Quantity> list_;
};

}  // namespace hpcdl::lab
