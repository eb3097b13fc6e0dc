// What 16-bit products gain, and what they cost.

#include <fmt/format.h>

#include "examples/demos/runs.h"
#include "hpcdl/core/units.h"

namespace hpcdl::demos {

namespace {

struct Precision {
  std::string name;
  train::RunSummary summary;
  Log log;
};

}  // namespace

lab::Page mixed_precision(const Options& o) {
  const bool gpu = device_from_name(o.device).is_cuda();
  // A CPU has 16-bit products only for bf16; fp16 would be correct, but slower than f32.
  std::vector<Precision> all;
  std::int64_t batch = 0;
  const auto names = gpu ? std::vector<std::string>{"f32", "bf16", "fp16"} : std::vector<std::string>{"f32", "bf16"};
  for (const auto& name : names) {
    say(o, "train.dtype = " + name);
    train::RunConfig config;
    configure(config, "3_mixed_precision", o,
              {"model.channels=16", "data.procedural=4000", "data.workers=1", "train.epochs=3", "train.batch=64",
               "train.warmup=20"},
              {"train.dtype=" + name});
    config.output = o.out / name;
    batch = config.train.batch;
    auto summary = train_here(config, o.console);
    all.push_back({name, std::move(summary), read_log(config.output)});
  }
  const auto& f32 = all[0];
  lab::Table table{
      .columns = {"", "ms a step", "samples/s", "speed-up", "activations", "accuracy held out", "difference"},
      .rows = {}};
  lab::LineChart accuracy{.x = "epoch", .y = "share of right answers, held out", .series = {}};
  lab::BarChart memory{.bars = {}};
  for (const auto& p : all) {
    const double rate = p.log.samples_per_second(), bytes = static_cast<double>(p.summary.arena_bytes);
    table.rows.push_back({p.name, fmt::format("{:.1f}", 1e3 * static_cast<double>(batch) / rate),
                          fmt::format("{:.0f}", rate), fmt::format("{:.2f}x", rate / f32.log.samples_per_second()),
                          format_bytes(bytes), percent(p.summary.eval_accuracy),
                          fmt::format("{:+.2f} points", 100 * (p.summary.eval_accuracy - f32.summary.eval_accuracy))});
    accuracy.series.push_back(series(p.name, p.log.epochs, &EpochLine::accuracy));
    memory.bars.push_back({p.name, {bytes / (1 << 20)}, format_bytes(bytes)});
  }
  const auto& amp = all[1];
  lab::Page page{.title = "Demo 3: mixed precision",
                 .subtitle = fmt::format("ResNet-18, {} parameters, {} samples a step, on {}", f32.summary.parameters,
                                         batch, o.device),
                 .tiles = {},
                 .cards = {},
                 .footer = "hpcdl demo 3"};
  page.tiles = {
      {"speed-up of bf16", fmt::format("{:.2f}x", amp.log.samples_per_second() / f32.log.samples_per_second())},
      {"memory of activations",
       percent(static_cast<double>(amp.summary.arena_bytes) / static_cast<double>(f32.summary.arena_bytes))},
      {"accuracy in f32", percent(f32.summary.eval_accuracy)},
      {"accuracy in bf16", percent(amp.summary.eval_accuracy)}};
  page.cards.push_back({"Accuracy", accuracy});
  page.cards.push_back({"Precision", table,
                        "Products read 16-bit numbers and add in f32; norms, softmax and loss compute in f32; weights "
                        "and the optimizer stay in f32."});
  page.cards.push_back({"Memory planned for activations, MiB", memory});
  page.cards.push_back({"Machine", machine_facts(o)});
  return page;
}

}  // namespace hpcdl::demos
