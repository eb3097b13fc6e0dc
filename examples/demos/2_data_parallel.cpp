// The same model on 1, 2, 4, ... ranks, and the way that does not scale.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "examples/demos/replicas.h"
#include "examples/demos/runs.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"

namespace hpcdl::demos {

namespace {

constexpr int kReplicaSteps = 12, kWarmSteps = 3;

/// The median step of `count` replicas in this process.
ReplicaSeconds replica_loop(const train::RunConfig& config, int count, const Options& o) {
  auto model = config.image;
  const auto set =
      data::open_images(config.data.images, data::Split::train, {.procedural_train = config.data.procedural});
  model.classes = set->classes();
  model.resolve();
  const bool gpu = device_from_name(o.device).is_cuda();
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(gpu ? device_from_name(fmt::format("cuda:{}", i)) : Device());
  Replicas replicas(model, train::step_options(config), devices, config.train.seed);
  std::vector<std::unique_ptr<data::ImageLoader>> loaders;
  for (int i = 0; i < count; ++i)
    loaders.push_back(
        std::make_unique<data::ImageLoader>(set, data::ImageLoaderOptions{.batch = config.train.batch,
                                                                          .seed = config.train.seed,
                                                                          .rank = i,
                                                                          .world = count,
                                                                          .workers = config.data.workers}));
  std::vector<ReplicaSeconds> steps;
  for (int s = 0; s < kWarmSteps + kReplicaSteps; ++s) {
    std::vector<data::ImageBatch> batches;
    for (auto& l : loaders) batches.push_back(l->next());
    double loss = 0;
    const auto t = replicas.step(batches, config.train.lr / 10, loss);
    require(std::isfinite(loss), "demo", "the replicas diverged");
    if (s >= kWarmSteps) steps.push_back(t);
  }
  std::nth_element(steps.begin(), steps.begin() + std::ssize(steps) / 2, steps.end(),
                   [](const auto& a, const auto& b) { return a.step() < b.step(); });
  return steps[steps.size() / 2];
}

struct Scaled {
  int ranks;
  double rate;          // samples per second, all ranks
  double comm, hidden;  // percent of the time; of that. < 0: not known
};

}  // namespace

lab::Page data_parallel(const Options& o) {
  const std::vector<std::string> smaller{"data.procedural=4000", "data.workers=1",  "train.steps=40",
                                         "train.batch=64",       "train.warmup=10", "train.eval_batches=4"};
  std::vector<Scaled> ranks;
  for (const int n : rank_counts(o)) {
    train::RunConfig config;
    configure(config, "2_data_parallel", o, smaller, {"train.threads=1"});
    config.output = o.out / fmt::format("ranks{}", n);
    const auto log = train_on_ranks(config, n, o);
    ranks.push_back({n, log.samples_per_second(), n > 1 ? log.comm_percent() : -1, n > 1 ? log.hidden_percent() : -1});
    say(o, fmt::format("{} rank{}: {:.0f} samples/s", n, n > 1 ? "s" : "", ranks.back().rate));
  }
  train::RunConfig config;
  configure(config, "2_data_parallel", o, smaller, {"train.threads=1"});
  const double batch = static_cast<double>(config.train.batch), one = ranks[0].rate;

  lab::Table table{.columns = {"", "samples/s", "speed-up", "efficiency", "exchanging gradients", "of that hidden"},
                   .rows = {}};
  lab::Series measured{.name = "one process per device", .points = {}}, ideal{.name = "ideal", .points = {}},
      loop{.name = "replicas of one process", .points = {}};
  lab::BarChart parts{.parts = {"copy weights out", "compute", "bring gradients back", "update"}, .bars = {}};
  for (const auto& r : ranks) {
    const double up = r.rate / one;
    table.rows.push_back({fmt::format("{} rank{}", r.ranks, r.ranks > 1 ? "s" : ""), fmt::format("{:.0f}", r.rate),
                          fmt::format("{:.2f}x", up), percent(up / r.ranks), r.comm >= 0 ? percent(r.comm / 100) : "",
                          r.hidden >= 0 ? percent(r.hidden / 100) : ""});
    measured.points.push_back({r.ranks, up}), ideal.points.push_back({r.ranks, r.ranks});
  }
  double loop_up = 1;
  for (const int n : rank_counts(o)) {
    const auto t = replica_loop(config, n, o);
    const double rate = n * batch / t.step();
    loop_up = rate / one;
    table.rows.push_back({fmt::format("{} replica{} of one process", n, n > 1 ? "s" : ""), fmt::format("{:.0f}", rate),
                          fmt::format("{:.2f}x", loop_up), percent(loop_up / n),
                          percent((t.replicate + t.gather) / t.step()), percent(0)});
    loop.points.push_back({n, loop_up});
    parts.bars.push_back({fmt::format("{} replica{}", n, n > 1 ? "s" : ""),
                          {1e3 * t.replicate, 1e3 * t.compute, 1e3 * t.gather, 1e3 * t.update},
                          fmt::format("{:.1f} ms", 1e3 * t.step())});
    say(o, fmt::format("{} replica{} of one process: {:.0f} samples/s", n, n > 1 ? "s" : "", rate));
  }

  const auto& last = ranks.back();
  lab::Page page{.title = "Demo 2: data parallel",
                 .subtitle = fmt::format("SimpleCNN, {} samples a step and rank, on {}", config.train.batch, o.device),
                 .tiles = {},
                 .cards = {},
                 .footer = "hpcdl demo 2"};
  const bool alone = last.ranks == 1;
  page.tiles = {{"samples per second", fmt::format("{:.0f}", last.rate)}};
  if (!alone)
    page.tiles.insert(page.tiles.begin(),
                      {{fmt::format("speed-up of {} ranks", last.ranks), fmt::format("{:.2f}x", last.rate / one)},
                       {"efficiency", percent(last.rate / one / last.ranks)},
                       {"speed-up of as many replicas", fmt::format("{:.2f}x", loop_up)}});
  page.cards.push_back({"Speed-up", lab::LineChart{.x = "ranks or replicas",
                                                   .y = "times the speed of one rank",
                                                   .series = {measured, loop, ideal},
                                                   .from_zero = true}});
  page.cards.push_back(
      {"Ranks and replicas", table,
       "A rank uses one core or one GPU, and exchanges gradients in buckets while the backward pass still runs. The "
       "single process copies the weights to its replicas and their gradients back, while nothing computes, and its "
       "first device updates the weights for all. This costs least on a CPU, where the replicas share one memory." +
           std::string(alone ? " This machine has only one GPU; the comparison needs several." : "")});
  page.cards.push_back({"A step of the replicas", parts, "Milliseconds of the median step."});
  page.cards.push_back({"Machine", machine_facts(o)});
  return page;
}

}  // namespace hpcdl::demos
