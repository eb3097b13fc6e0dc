// Where time and memory go: varies one thing at a time, then combines all that helped.

#include <fmt/format.h>

#include "examples/demos/runs.h"
#include "hpcdl/core/units.h"

namespace hpcdl::demos {

namespace {

struct Run {
  double rate = 0, waited = 0, bytes = 0;  // samples per second; percent of the time; planned for activations
};

const std::vector<std::string> kSmaller{"data.procedural=4000", "data.workers=1", "train.steps=16",
                                        "train.batch=64",       "train.warmup=4", "train.log_every=1"};

class Sweeps {
 public:
  explicit Sweeps(const Options& o) : o_(o) {}

  Run run(const std::string& name, const std::vector<std::string>& words) const {
    train::RunConfig config;
    configure(config, "4_profiling", o_, kSmaller, words);
    config.output = o_.out / name;
    const auto summary = train_here(config, {});
    const auto log = read_log(config.output);
    const Run r{log.samples_per_second(), log.data_wait_percent(), static_cast<double>(summary.arena_bytes)};
    say(o_, fmt::format("{:<24} {:>8.0f} samples/s, {:4.1f} % of the time waiting for data, {} of activations", name,
                        r.rate, r.waited, format_bytes(r.bytes)));
    return r;
  }
  double on_ranks(const std::string& name, int ranks, const std::string& dtype) const {
    train::RunConfig config;
    configure(config, "4_profiling", o_, kSmaller, {"train.threads=1", "train.dtype=" + dtype});
    config.output = o_.out / name;
    const double rate = train_on_ranks(config, ranks, o_).samples_per_second();
    say(o_, fmt::format("{:<24} {:>8.0f} samples/s", name, rate));
    return rate;
  }

 private:
  const Options& o_;
};

void loading(const Sweeps& sweeps, bool gpu, lab::Page& page) {
  lab::Table table{.columns = {"workers", "samples/s", "waiting for data"}, .rows = {}};
  lab::BarChart chart{.parts = {"training", "waiting for data"}, .bars = {}};
  for (const int workers : {0, 2, 4, 8}) {
    const auto r = sweeps.run(
        fmt::format("workers{}", workers),
        {fmt::format("data.workers={}", workers), "data.mixup=0.2", gpu ? "train.dtype=bf16" : "train.dtype=f32"});
    table.rows.push_back({fmt::format("{}", workers), fmt::format("{:.0f}", r.rate), percent(r.waited / 100)});
    const double ms = 1e6 / r.rate;
    chart.bars.push_back({fmt::format("{} workers", workers),
                          {ms * (1 - r.waited / 100), ms * r.waited / 100},
                          fmt::format("{:.1f} us a sample", ms)});
    if (workers == 0) page.tiles.push_back({"waiting for data, no workers", percent(r.waited / 100)});
    if (workers == 4) page.tiles.push_back({"waiting for data, 4 workers", percent(r.waited / 100)});
  }
  page.cards.push_back({"Loading: microseconds a sample", chart});
  page.cards.push_back(
      {"Loading", table,
       std::string(gpu ? "In bf16. " : "") +
           "Images are cropped, flipped and mixed in pairs. Without workers, the training thread does this itself; on "
           "a GPU, it does so while the GPU computes the previous step. The waiting time is that of the device: on a "
           "GPU, the time between the end of a step and the arrival of the next batch. Workers use cores, so on a CPU "
           "whose cores all train, more than one worker gains nothing."});
}

void batches(const Sweeps& sweeps, lab::Page& page) {
  lab::Table table{.columns = {"samples a step", "samples/s in f32", "in bf16", "activations in f32", "in bf16"},
                   .rows = {}};
  lab::LineChart rates{.x = "samples a step",
                       .y = "samples per second",
                       .series = {{"f32", {}}, {"bf16", {}}},
                       .from_zero = true,
                       .log_x = true};
  lab::LineChart memory{.x = "samples a step",
                        .y = "activations, MiB",
                        .series = {{"f32", {}}, {"bf16", {}}},
                        .from_zero = true,
                        .log_x = true};
  for (const int batch : {16, 32, 64, 128, 256}) {
    const auto size = fmt::format("train.batch={}", batch);
    const auto f32 = sweeps.run(fmt::format("batch{}", batch), {size}),
               bf16 = sweeps.run(fmt::format("batch{}-bf16", batch), {size, "train.dtype=bf16"});
    table.rows.push_back({fmt::format("{}", batch), fmt::format("{:.0f}", f32.rate), fmt::format("{:.0f}", bf16.rate),
                          format_bytes(f32.bytes), format_bytes(bf16.bytes)});
    for (const auto& [i, r] : {std::pair(0, f32), std::pair(1, bf16)}) {
      rates.series[static_cast<std::size_t>(i)].points.push_back({batch, r.rate});
      memory.series[static_cast<std::size_t>(i)].points.push_back({batch, r.bytes / (1 << 20)});
    }
  }
  page.cards.push_back({"Throughput by batch and precision", rates});
  page.cards.push_back({"Memory by batch and precision", memory});
  page.cards.push_back({"Batch size and precision", table});
}

/// Baseline x scaling x mixed precision.
void together(const Sweeps& sweeps, const Options& o, lab::Page& page) {
  const int most = rank_counts(o).back();
  const double base = sweeps.on_ranks("1-rank-f32", 1, "f32");
  lab::Table table{.columns = {"", "samples/s", "times the baseline"},
                   .rows = {{"baseline: 1 rank, f32", fmt::format("{:.0f}", base), "1.00x"}}};
  lab::BarChart chart{.bars = {{"baseline", {1}, "1.00x"}}};
  const auto add = [&](const std::string& name, double rate) {
    table.rows.push_back({name, fmt::format("{:.0f}", rate), fmt::format("{:.2f}x", rate / base)});
    chart.bars.push_back({name, {rate / base}, fmt::format("{:.2f}x", rate / base)});
  };
  double all = sweeps.on_ranks("1-rank-bf16", 1, "bf16");
  add("1 rank, bf16", all);
  if (most > 1) {
    add(fmt::format("{} ranks, f32", most), sweeps.on_ranks(fmt::format("{}-ranks-f32", most), most, "f32"));
    all = sweeps.on_ranks(fmt::format("{}-ranks-bf16", most), most, "bf16");
    add(fmt::format("{} ranks, bf16", most), all);
  }
  page.tiles.push_back(
      {fmt::format("{} and bf16 over the baseline", most > 1 ? fmt::format("{} ranks", most) : "1 rank"),
       fmt::format("{:.2f}x", all / base)});
  page.tiles.push_back({"samples per second then", fmt::format("{:.0f}", all)});
  page.cards.push_back({"Baseline x scaling x mixed precision", chart});
  page.cards.push_back(
      {"All together", table,
       most > 1
           ? "Each rank has one core or one GPU, and takes as many samples in a step as the baseline."
           : "This machine has only one GPU, so scaling is left out; with several GPUs, it is measured with ranks."});
}

}  // namespace

lab::Page profiling(const Options& o) {
  lab::Page page{.title = "Demo 4: where time and memory go",
                 .subtitle = "SimpleCNN on " + o.device,
                 .tiles = {},
                 .cards = {},
                 .footer = "hpcdl demo 4"};
  const Sweeps sweeps(o);
  loading(sweeps, device_from_name(o.device).is_cuda(), page);
  batches(sweeps, page);
  together(sweeps, o, page);
  page.cards.push_back({"Machine", machine_facts(o)});
  return page;
}

}  // namespace hpcdl::demos
