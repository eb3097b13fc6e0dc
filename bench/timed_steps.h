#pragma once
// Steps of data-parallel training, each on the same tokens, and their time.

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "hpcdl/rng.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::bench {

class TimedSteps {
 public:
  /// Every rank of `world` draws `tokens` tokens of a vocabulary. `step` must outlive this.
  TimedSteps(train::TrainStep& step, comm::Group world, std::int64_t tokens, std::uint64_t vocab)
      : step_(step), world_(std::move(world)), tokens_(static_cast<std::size_t>(tokens + 1)) {
    const Rng rng{7, static_cast<std::uint64_t>(world_.rank())};
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<std::int32_t>(rng.below(i, vocab));
  }

  /// Returns the loss of this rank in the last of n steps. As in `hpcdl train`, each pass is queued before waiting for the
  /// previous step.
  double run(int n) {
    double loss = 0;
    queue_pass();
    for (int i = 1; i <= n; ++i) {
      step_.queue_update(3e-4, count());
      if (i < n) queue_pass();
      const auto r = step_.result();
      loss = r.loss / static_cast<double>(r.valid_tokens);
    }
    return loss;
  }

  /// {"ms" of a step, "loss", "tokens_per_second" of all ranks} of n steps that start when all ranks are ready.
  nlohmann::json timed(int n) {
    parallel::any_rank(world_, false);
    const auto start = std::chrono::steady_clock::now();
    const double loss = run(n);
    parallel::any_rank(world_, false);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / n;
    return {{"ms", seconds * 1e3},
            {"loss", loss},
            {"tokens_per_second", static_cast<double>(world_.size() * count()) / seconds}};
  }

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(tokens_.size()) - 1; }
  void queue_pass() {
    step_.accumulate({tokens_.data(), tokens_.size() - 1}, {tokens_.data() + 1, tokens_.size() - 1}, number_++, 0);
  }

  train::TrainStep& step_;
  comm::Group world_;
  std::vector<std::int32_t> tokens_;
  std::int64_t number_ = 0;
};

}  // namespace hpcdl::bench
