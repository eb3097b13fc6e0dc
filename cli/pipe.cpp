// hpcdl pipe: schedules of pipelines, shown and simulated. It needs no ranks and runs no model.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_ranks.h"
#include "cli/parsed.h"
#include "cli/run_config.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "cli/wrap.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/pipe/costs_file.h"
#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/order_file.h"
#include "hpcdl/pipe/vocabulary.h"
#include "hpcdl/train/run_table.h"
#include "tools/measure_roofs.h"
#include "tools/pipe/measure.h"
#include "tools/pipe/report.h"
#include "tools/pipe/run_costs.h"

namespace hpcdl::cli {

namespace {

struct PipeOptions {
  std::string schedule, order, costs, svg, memory;
  std::vector<std::string> configs;
  pipe::Partition layers;  // of a run
  int stages = 2, chunks = 1, micros = 4;
  std::string vocabulary = "stage";
  int barriers = 2;
  bool tied = false;  // of a run
  bool json = false;

  bool divides_vocabulary() const { return vocabulary == "pipeline"; }
};

/// What a run says about its pipeline holds where no option says something else.
void take_schedule(const train::RunConfig& config, PipeOptions& o, const Command& verb) {
  const auto& p = config.parallel;
  if (o.schedule.empty() && o.order.empty() && p.pp > 1) {
    o.order = p.order;
    if (o.order.empty()) o.schedule = p.schedule;
    if (!verb.given("--stages")) o.stages = static_cast<int>(p.pp);
    if (!verb.given("--chunks")) o.chunks = static_cast<int>(p.chunks);
    o.layers.assign(p.layers.begin(), p.layers.end());
  }
  o.vocabulary = io::enum_name(p.vocabulary), o.barriers = static_cast<int>(p.barriers);
  o.tied = config.model.tied;
  if (!verb.given("--micros") && o.order.empty()) o.micros = static_cast<int>(config.train.accumulate);
}

/// What options say about the vocabulary holds for the run, too.
void take_vocabulary(train::RunConfig& config, const PipeOptions& o, const Command& verb) {
  auto& p = config.parallel;
  if (verb.given("--vocabulary"))
    p.vocabulary = o.divides_vocabulary() ? VocabularyPlace::pipeline : VocabularyPlace::stage;
  if (verb.given("--barriers")) p.barriers = o.barriers;
  if (verb.given("--stages") && p.vocabulary == VocabularyPlace::pipeline) p.pp = o.stages;
}

/// The costs of layers, of a file or of a run; none: units. With a run, its micro-batches are those of the schedule
/// unless --micros is given.
std::optional<pipe::Costs> costs_of(PipeOptions& o, const Command& verb) {
  const auto keys = verb.rest();
  if (o.configs.empty() && !keys.empty()) refuse_keys("pipe", keys.front(), verb);
  if (!o.costs.empty() && !o.configs.empty()) fail_usage("pipe", "give the costs by --costs or by -c, not by both");
  if (!o.costs.empty()) {
    auto costs = pipe::read_costs(o.costs);
    if (costs.vocabulary && !verb.given("--vocabulary")) o.vocabulary = "pipeline";
    return costs;
  }
  if (o.configs.empty()) return std::nullopt;
  train::RunConfig config;
  auto table = train::table_of(config);
  load(table, {o.configs.begin(), o.configs.end()}, keys, verb);
  take_vocabulary(config, o, verb);
  take_schedule(config, o, verb);
  Pool pool;
  return lab::pipe::costs_of_run(config, lab::roofs(device_from_name(config.train.device), pool));
}

/// What the options say about a file with an order must be true of it.
pipe::Schedule order_of(const PipeOptions& o, const Command& verb) {
  const auto s = pipe::read_order(o.order);
  const auto expect = [&](const char* option, int given, int found, const char* what) {
    if (verb.given(option) && given != found)
      fail_usage("pipe", "{} {}, but {} has {} {}: leave the option out", option, given, o.order, found, what);
  };
  if (verb.given("--schedule")) fail_usage("pipe", "give --schedule or --order, not both");
  expect("--stages", o.stages, s.ranks(), "ranks");
  expect("--chunks", o.chunks * s.ranks(), s.stages(), "stages");
  expect("--micros", o.micros, s.micros, "micro-batches");
  return s;
}

pipe::Schedule orders_of(const PipeOptions& o, const Command& verb) {
  const pipe::VocabularyPasses passes{.barriers = o.barriers, .tied = o.tied};
  if (!o.order.empty()) {
    auto orders = order_of(o, verb);
    return o.divides_vocabulary() ? pipe::with_vocabulary(orders, passes) : orders;
  }
  const auto& kind = pipe::schedule_kind(o.schedule);
  const pipe::PipeShape shape{.ranks = o.stages, .chunks = o.chunks, .micros = o.micros};
  return o.divides_vocabulary() ? pipe::make_schedule(kind, shape, passes) : pipe::make_schedule(kind, shape);
}

/// 0: no limit.
std::int64_t memory_of(const PipeOptions& o) {
  if (o.memory.empty()) return 0;
  if (o.costs.empty() && o.configs.empty())
    fail_usage("pipe", "--memory limits what layers take, but no layers are given: add -c run.toml or --costs");
  return parsed<std::int64_t>("pipe", "--memory", o.memory, {.min = 1, .max = 1e18, .unit = io::Unit::bytes});
}

bool wants_colour() { return isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR"); }

int pipe_verb(PipeOptions& o, const Command& verb, bool show) {
  check_writable(o.svg);
  const auto costs = costs_of(o, verb);
  if (o.schedule.empty() && o.order.empty())
    fail_usage(
        "pipe",
        "expected --schedule NAME, --order FILE, or a run with parallel.pp above 1; hpcdl pipe {} --help lists the "
        "schedules",
        show ? "show" : "simulate");
  if (verb.given("--barriers") && !o.divides_vocabulary())
    fail_usage("pipe", "--barriers is for ranks that divide the vocabulary: add --vocabulary pipeline");
  const auto orders = orders_of(o, verb);
  const auto report = lab::pipe::examine(o.order.empty() ? o.schedule : o.order, orders, costs ? &*costs : nullptr,
                                         memory_of(o), o.layers);
  if (!o.svg.empty() && report.deadlock.empty()) io::write_file_atomic(o.svg, lab::pipe::to_svg(report));
  if (o.json) {
    print_json(lab::pipe::to_json(report));
  } else {
    for (const auto& note : report.notes) say("note: {}", note);
    auto text = lab::pipe::to_text(report);
    if (show && report.deadlock.empty())
      text += "\n" + lab::pipe::timeline_text(report, columns_of(STDOUT_FILENO, 100), wants_colour());
    print_text(text);
  }
  return report.deadlock.empty() ? exit_code::kDone : 1;
}

void add(const Command& group, Run& run, bool show) {
  add_verb<PipeOptions>(
      group, run, show ? "show" : "simulate",
      show ? "Draws what every rank does at which time, and counts what it needs"
           : "Computes the makespan, the bubble and what every rank needs",
      [](const Command& sub, PipeOptions& o) {
        std::vector<std::string> names;
        std::string list = "Schedules:\n";
        for (const auto& kind : pipe::schedule_kinds()) {
          names.emplace_back(kind.name);
          list += fmt::format("  {:<13}{}\n", kind.name, kind.summary);
        }
        sub.option("--schedule", o.schedule, "Order of forwards and backwards").one_of(names);
        sub.option("--order", o.order, "Take the order from this file: a line for each rank, with actions such as 1F0");
        sub.option("--stages", o.stages, "Stages of the pipeline, one rank each").shows_default();
        sub.option("--chunks", o.chunks, "Chunks into which the part of each rank is cut").shows_default();
        sub.option("--micros", o.micros, "Micro-batches of a step; default: 4, with -c train.accumulate");
        sub.option(
               "--vocabulary", o.vocabulary,
               "stage: the embedding is in the first stage and the head in the last one; pipeline: all ranks divide "
               "both; with -c that of the run")
            .one_of({"stage", "pipeline"});
        sub.option("--barriers", o.barriers,
                   "With --vocabulary pipeline: how often all ranks wait for each other in a micro-batch; default: 2")
            .range(1, 2);
        sub.option("--costs", o.costs, "JSON file with what each layer costs, as --json writes it with -c");
        sub.option("-c,--config", o.configs,
                   "TOML file of a run, whose layers are taken at the speed of light; --section.key=value overrides")
            .one_each();
        sub.option("--memory", o.memory, "Cut the layers so that a rank's state and frames fit, e.g. 24G").kind("SIZE");
        sub.option("--svg", o.svg, "Write the timeline as a picture to this file");
        sub.flag("--json", o.json, "One JSON object on stdout");
        sub.takes_rest();
        sub.footer(list +
                   "\nWithout --costs and -c each rank takes one unit for a forward and for each half of a "
                   "backward. Exit code 1: the order is a deadlock. hpcdl train runs these schedules with "
                   "parallel.pp and parallel.schedule or parallel.order, which hold here, too, with -c.");
      },
      [show](PipeOptions& o, const Command& verb) { return pipe_verb(o, verb, show); });
}

struct MeasureOptions {
  std::vector<std::string> configs;
  int ranks = 0, rounds = 30;
  ThreadsOption threads;
  bool json = false;
};

int measure_verb(const MeasureOptions& o, const Command& verb) {
  o.threads.checked("pipe");
  const auto keys = verb.rest();
  return on_launched_ranks("pipe measure", o.ranks, "cpu", [&](const comm::Group& world, Device) {
    train::RunConfig config;
    auto table = train::table_of(config);
    load(table, {o.configs.begin(), o.configs.end()}, keys, verb);
    Pool pool(o.threads.count > 0 ? o.threads.count : parallel::threads_per_rank(world));
    const auto measured = lab::pipe::measure(world, pool, config, o.rounds);
    if (world.rank() > 0) return;
    if (o.json) print_json(lab::pipe::to_json(measured));
    else print_text(lab::pipe::to_text(measured));
  });
}

void add_measure(const Command& group, Run& run) {
  add_verb<MeasureOptions>(
      group, run, "measure",
      "Measures the layers of a run on ranks of this machine, simulates its step, and compares that with the step",
      [](const Command& sub, MeasureOptions& o) {
        sub.option("-c,--config", o.configs, "TOML file of a run; --section.key=value overrides").one_each();
        sub.option("-n,--ranks", o.ranks,
                   "Run this many ranks as threads of this process, instead of those that a launcher has started")
            .range(2, 64);
        sub.option("--rounds", o.rounds, "Measured steps; the least disturbed counts").range(1, 10000).shows_default();
        add_threads_option(sub, o.threads,
                           "Threads of each rank; default: the processors of its host divided among its ranks");
        sub.flag("--json", o.json, "One JSON object on stdout; hpcdl pipe simulate --costs reads it");
        sub.takes_rest();
        sub.footer(
            "The schedule is that of parallel.schedule or parallel.order, with a rank for each of parallel.pp; other "
            "axes count as 1. Times are of a CPU, without the update. Other programs on the machine only make a step "
            "longer: give more --rounds where there are some.");
      },
      [](const MeasureOptions& o, const Command& verb) { return measure_verb(o, verb); });
}

}  // namespace

void add_pipe(const Command& program, Run& run) {
  const auto group = program.subcommand("pipe", "Shows and simulates schedules of pipelines, without ranks");
  group.needs_subcommand();
  add(group, run, true);
  add(group, run, false);
  add_measure(group, run);
}

}  // namespace hpcdl::cli
