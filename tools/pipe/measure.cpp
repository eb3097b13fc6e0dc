#include "tools/pipe/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/synthetic_run.h"
#include "hpcdl/train/train_step.h"
#include "hpcdl/train/trainer.h"
#include "tools/compare/statistics.h"
#include "tools/pipe/layer_timer.h"

namespace hpcdl::lab::pipe {
namespace {

constexpr int kRoundsBeforeCut = 3;

/// Collective. The least value of any rank, of each.
std::vector<double> least_of_ranks(const comm::Group& world, const std::vector<double>& mine) {
  std::vector<double> all(mine.size() * static_cast<std::size_t>(world.size()));
  std::copy(mine.begin(), mine.end(), all.begin() + world.rank() * std::ssize(mine));
  all = parallel::sum_over_ranks(world, all);
  auto least = mine;
  for (std::size_t i = 0; i < all.size(); ++i) least[i % mine.size()] = std::min(least[i % mine.size()], all[i]);
  return least;
}

std::vector<engine::PartCost> least_of_ranks(const comm::Group& world, std::vector<engine::PartCost> layers) {
  std::vector<double> times;
  for (const auto& l : layers) times.insert(times.end(), {l.forward, l.input_gradient, l.weight_gradient});
  times = least_of_ranks(world, times);
  for (std::size_t i = 0; i < layers.size(); ++i)
    layers[i].forward = times[3 * i], layers[i].input_gradient = times[3 * i + 1],
    layers[i].weight_gradient = times[3 * i + 2];
  return layers;
}

/// Messages that the first two ranks send each other in turns.
class LinkTimer {
 public:
  LinkTimer(const comm::Group& world, Pool& pool, std::int64_t bytes)
      : world_(world.blocking()), stream_(pool), large_({{bytes}, DType::u8}), small_({{1}, DType::u8}) {}

  void round() {
    if (world_.rank() > 1) return;
    least_small_ = std::min(least_small_, there_and_back(small_.tensor));
    least_large_ = std::min(least_large_, there_and_back(large_.tensor));
  }
  engine::LinkRate rate() const {
    // Where the larger message takes no longer, bytes take next to no time.
    const double more = std::max(1e-9, (least_large_ - least_small_) / 2);
    return {.latency = least_small_ / 2,
            .bytes_per_second = static_cast<double>(large_.tensor.bytes() - small_.tensor.bytes()) / more};
  }

 private:
  double there_and_back(const Tensor& x) {
    const auto begin = Clock::now();
    const int other = 1 - world_.rank();
    for (const bool sends : {world_.rank() == 0, world_.rank() == 1})
      (sends ? world_.send(stream_, x, other) : world_.receive(stream_, x, other)).wait();
    return seconds_since(begin);
  }

  comm::Group world_;
  Stream stream_;
  OwnedTensor large_, small_;
  double least_small_ = std::numeric_limits<double>::infinity(), least_large_ = least_small_;
};

/// A training step of the pipeline, with random inputs.
class PipelineTimer {
 public:
  PipelineTimer(const comm::Group& world, Pool& pool, train::RunConfig& config)
      : world_(world), micros_(config.train.accumulate), model_(train::model_without_data(config, 1)) {
    auto options = train::step_options(config);
    options.stages.group = options.stages.world = world;
    step_.emplace(*model_, pool, options);
    batch_.emplace(config, step_->inputs());
  }

  /// Collective. Seconds of the slowest rank.
  double round(std::int64_t number) {
    const auto views = batch_->views();
    parallel::any_rank(world_, false);  // all begin together
    const auto begin = Clock::now();
    for (std::int64_t m = 0; m < micros_; ++m) step_->accumulate(views, number, m, m + 1 == micros_);
    const double mine = seconds_since(begin);
    step_->update(1e-4, batch_->targets * micros_);
    return -least_of_ranks(world_, std::vector{-mine}).front();
  }

 private:
  const comm::Group& world_;
  std::int64_t micros_;
  std::unique_ptr<models::Trainable> model_;
  std::optional<train::TrainStep> step_;
  std::optional<train::DrawnBatch> batch_;
};

/// The pipeline of the config, on these ranks alone.
train::StageOptions take_shape(train::RunConfig& config, const comm::Group& world) {
  auto& p = config.parallel;
  if (config.train.device != "cpu")
    fail_usage("pipe", "hpcdl pipe measure times a CPU, but train.device = \"{}\": set it to \"cpu\"",
               config.train.device);
  if (p.vocabulary != VocabularyPlace::stage)
    fail_usage("pipe",
               "hpcdl pipe measure times layers, and no shares of a vocabulary: set parallel.vocabulary = \"stage\"; "
               "hpcdl pipe simulate knows both");
  p.pp = world.size(), p.dp = p.cp = p.tp = 1, p.zero = 0;
  auto stages = train::step_options(config).stages;
  stages.group = stages.world = world;
  return stages;
}

bool has_halves(const engine::Schedule& s) {
  return std::ranges::any_of(s.of_rank, [](const auto& list) {
    return std::ranges::any_of(list, [](const auto& a) { return a.act == engine::Act::weight_gradient; });
  });
}

std::int64_t largest_message(const std::vector<engine::PartCost>& layers) {
  std::int64_t most = 2;
  for (const auto& l : layers) most = std::max({most, l.activation_bytes, l.gradient_bytes});
  return most;
}

}  // namespace

double Measured::least() const { return *std::min_element(steps.begin(), steps.end()); }
double Measured::ratio() const { return simulated.best.simulation.makespan / least(); }

Measured measure(const comm::Group& world, Pool& pool, train::RunConfig& config, int rounds) {
  const auto stages = take_shape(config, world);
  const auto orders = train::stage_orders(stages);
  const auto parallel = std::exchange(config.parallel, {});  // the timer is one rank
  LayerTimer layers(config, pool, has_halves(orders) ? engine::Backward::halves : engine::Backward::whole);
  config.parallel = parallel;
  LinkTimer link(world, pool, largest_message(layers.layers()));
  const auto time_parts = [&] {
    parallel::any_rank(world, false);  // all begin together
    layers.round();
    link.round();
  };
  for (int i = 0; i < kRoundsBeforeCut; ++i) time_parts();
  if (config.parallel.layers.empty()) {
    const auto cut = engine::best_partition(least_of_ranks(world, layers.layers()), orders.stages());
    config.parallel.layers.assign(cut.begin(), cut.end());
  }
  PipelineTimer pipeline(world, pool, config);
  Measured m;
  pipeline.round(0);  // memory is touched for the first time
  for (int i = 0; i < rounds; ++i) {
    time_parts();
    m.steps.push_back(pipeline.round(i + 1));
  }
  const engine::Costs costs{.layers = least_of_ranks(world, layers.layers()), .link = link.rate()};
  const engine::Partition cut(config.parallel.layers.begin(), config.parallel.layers.end());
  m.simulated =
      examine(config.parallel.order.empty() ? config.parallel.schedule : config.parallel.order, orders, &costs, 0, cut);
  return m;
}

std::string to_text(const Measured& m) {
  const auto ms = [](double seconds) { return fmt::format("{:.2f} ms", 1e3 * seconds); };
  return to_text(m.simulated) +
         fmt::format(
             "\nmeasured: {} (the least of {} steps; median {}), without the update\nsimulated over measured: {:.3f}\n",
             ms(m.least()), m.steps.size(), ms(compare::median(m.steps)), m.ratio());
}

nlohmann::ordered_json to_json(const Measured& m) {
  auto json = to_json(m.simulated);
  json["measured"] = {{"steps", m.steps}, {"least", m.least()}, {"simulated_over_measured", m.ratio()}};
  return json;
}

}  // namespace hpcdl::lab::pipe
