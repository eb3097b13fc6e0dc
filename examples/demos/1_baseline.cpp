// One device, and a run that is stopped half way: the baseline for every larger set-up.

#include <fmt/format.h>

#include <csignal>

#include "examples/demos/runs.h"
#include "hpcdl/core/units.h"
#include "hpcdl/data/images/image_set.h"

namespace hpcdl::demos {

namespace {

/// Samples per second of the steps before an epoch's evaluation.
std::string rate(const Log& log, std::size_t epoch) {
  const double from = epoch > 0 ? log.epochs[epoch - 1].step : 0, to = log.epochs[epoch].step;
  Log of_epoch;
  for (const auto& s : log.steps)
    if (s.step > from && s.step <= to) of_epoch.steps.push_back(s);
  return of_epoch.steps.empty() ? "" : fmt::format("{:.0f}", of_epoch.samples_per_second());
}

}  // namespace

lab::Page baseline(const Options& o) {
  train::RunConfig config;
  configure(config, "1_baseline", o,
            {"data.procedural=6000", "data.workers=1", "train.epochs=5", "train.batch=64", "train.lr=0.03",
             "train.warmup=20"});
  config.output = o.out / "run";
  train::forget_run(config.output);

  // Stops the run half way, like a scheduler: the run saves. Then the same command continues from there.
  const auto images =
      data::open_images(config.data.images, data::Split::train, {.procedural_train = config.data.procedural});
  const std::int64_t half = std::max<std::int64_t>(1, config.train.epochs * images->count() / config.train.batch / 2);
  bool by_us = false;
  const auto stopped =
      train::run(config, {.console = o.console, .speed_of_light = {}, .after_step = [&](std::int64_t step) {
                            if (step == half) by_us = true, std::raise(SIGTERM);
                          }});
  if (!by_us) require_whole(stopped);
  config.checkpoint.resume = "auto";
  const auto done = train::run(config, {.console = o.console, .speed_of_light = {}, .after_step = {}});
  require_whole(done);

  const auto log = read_log(config.output);
  lab::Table table{.columns = {"epoch", "loss held out", "accuracy in training", "accuracy held out", "samples/s"},
                   .rows = {}};
  for (std::size_t i = 0; i < log.epochs.size(); ++i) {
    const auto& e = log.epochs[i];
    table.rows.push_back({fmt::format("{:.0f}", e.epoch), fmt::format("{:.4f}", e.loss), percent(e.train_accuracy),
                          percent(e.accuracy), rate(log, i)});
  }
  lab::Series loss{.name = "training (faint: every line)", .points = {}, .form = lab::Series::Form::smooth};
  for (const auto& s : log.steps) loss.points.push_back({s.step, s.loss});
  lab::Series held_out{.name = "held out", .points = {}, .form = lab::Series::Form::dots};
  for (const auto& e : log.epochs) held_out.points.push_back({e.step, e.loss});

  lab::Page page{.title = "Demo 1: one device",
                 .subtitle = fmt::format("SimpleCNN, {} parameters, on {}", done.parameters, o.device),
                 .tiles = {},
                 .cards = {},
                 .footer = "hpcdl demo 1"};
  page.tiles = {{"accuracy held out", percent(done.eval_accuracy)},
                {"samples per second", fmt::format("{:.0f}", log.samples_per_second())},
                {"waiting for data", percent(log.data_wait_percent() / 100)},
                {"activations planned", format_bytes(static_cast<double>(done.arena_bytes))}};
  page.cards.push_back({"Accuracy", lab::LineChart{.x = "epoch",
                                                   .y = "share of right answers",
                                                   .series = {series("in training, on varied images", log.epochs,
                                                                     &EpochLine::train_accuracy),
                                                              series("held out", log.epochs, &EpochLine::accuracy)}}});
  page.cards.push_back({"Loss", lab::LineChart{.x = "step", .y = "loss", .series = {loss, held_out}},
                        "The training loss uses smoothed labels, and images that are cropped and flipped at random."});
  page.cards.push_back({"Epochs", table});
  page.cards.push_back(
      {"Stopped and resumed",
       std::vector<lab::Fact>{{"SIGTERM at step", fmt::format("{}", half)},
                              {"saved at step", fmt::format("{}", stopped.step)},
                              {"the same command continued at step", fmt::format("{}", done.first_step)},
                              {"and ended at step", fmt::format("{}", done.step)},
                              {"model", done.model.string()}}});
  page.cards.push_back({"Machine", machine_facts(o)});
  return page;
}

}  // namespace hpcdl::demos
