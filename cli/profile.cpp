// hpcdl profile: trains some steps, measures every record of them, and says where the time went.

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/run_config.h"
#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "cli/verb.h"
#include "cli/world.h"
#include "hpcdl/core/thread_limit.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/machine/speed_of_light.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/run_table.h"
#include "tools/measure_roofs.h"
#include "tools/merge/merge.h"
#include "tools/profile/ranks.h"
#include "tools/profile/report.h"
#include "tools/profile/session.h"
#include "tools/profile/trace.h"

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

struct ProfileOptions {
  std::vector<std::string> configs;
  std::string trace, html, out, merged;
  std::vector<std::string> merge;  // files of `profile merge`
  bool by_order = false;
  lab::ProfileOptions profile;
  lab::TextOptions text;
  double limit_mb = 256;
  ThreadsOption threads;
  TuneOption tune;
  bool json = false;
};

void check(const ProfileOptions& o) {
  if (o.out.empty()) return;
  std::error_code ignored;
  if (fs::exists(o.out) && !fs::is_empty(o.out, ignored))
    fail_usage("profile", "--out {}: the folder is not empty; a profiled run needs a new one", o.out);
}

void write_trace(const ProfileOptions& o, const lab::Profiled& done, const lab::Roofs& roofs,
                 const comm::Group& world) {
  if (o.trace.empty()) return;
  const auto text = lab::trace_text(done.profile, roofs,
                                    {.limit = static_cast<std::int64_t>(std::min(o.limit_mb * (1 << 20), 0x1p62)),
                                     .pings = lab::ping_rank_zero(world)});
  if (world.size() > 1) {
    if (const auto merged = lab::merge_ranks(world, text.json)) {
      lab::write_trace(o.trace, merged->json);
      if (!o.json) print_text(lab::merged_text(*merged));
      say("traces of {} ranks on one clock in {}: open it at https://ui.perfetto.dev", world.size(), o.trace);
    }
    return;
  }
  lab::write_trace(o.trace, text.json);
  say("trace of {} step{} in {}: open it at https://ui.perfetto.dev", text.steps, text.steps == 1 ? "" : "s", o.trace);
  if (text.left_out)
    say("{} step{} left out: the trace would have exceeded --trace-limit {:g} MiB", text.left_out,
        text.left_out == 1 ? " was" : "s were", o.limit_mb);
}

std::string page_title(const train::RunConfig& c) {
  if (io::is_image_family(c.model.family))
    return fmt::format("hpcdl profile: {}, {} images of {} x {} in {}", io::enum_name(c.model.family), c.train.batch,
                       c.image.size, c.image.size, io::enum_name(c.train.dtype));
  return fmt::format("hpcdl profile: {} of {} layers, width {}, {} x {} tokens in {}", io::enum_name(c.model.family),
                     c.model.layers, c.model.width, c.train.batch, c.model.context, io::enum_name(c.train.dtype));
}

int merge(const ProfileOptions& o) {
  std::vector<lab::RankTrace> traces;
  for (const auto& file : o.merge) {
    traces.push_back(lab::read_rank_trace(file));
    if (o.by_order) traces.back().rank = static_cast<int>(traces.size()) - 1;
  }
  const auto merged = lab::merge(std::move(traces));
  lab::write_trace(o.merged, merged.json);
  say("{} traces merged into {}: open it at https://ui.perfetto.dev", o.merge.size(), o.merged);
  if (o.json) print_json(lab::merged_json(merged));
  else print_text(lab::merged_text(merged));
  return exit_code::kDone;
}

int profile_rank(const ProfileOptions& o, train::RunConfig& config, const comm::Group& world) {
  const bool leads = world.rank() == 0;
  if (leads)
    for (const auto* file : {&o.trace, &o.html}) check_writable(*file);
  Pool pool(config.train.threads);
  const auto device = device_from_name(config.train.device);
  // Measured once on each host and remembered.
  const auto roofs = parallel::host_by_host(world, [&] { return lab::roofs(device, pool); });
  auto tuning = start_tuning(o.tune, device, pool);
  train::Hooks hooks{.console = console(),
                     .world = world,
                     .speed_of_light = {},
                     .tuned_ways = [&](const auto& programs) { return tuned_ways(tuning, o.tune, programs); },
                     .after_step = {},
                     .steps_only = o.out.empty()};
  hooks.facts = program_facts("profile");
  hooks.facts.push_back({"--steps", std::to_string(o.profile.steps)});
  hooks.facts.push_back({"--warmup", std::to_string(o.profile.warmup)});
  hooks.facts.push_back({"--tune", o.tune.mode});
  if (leads) hooks.speed_of_light = [&](const Program& p) { return lab::light(p, roofs).seconds; };
  const auto done = lab::profile_training(config, o.profile, hooks);
  const bool seen = std::any_of(done.profile.steps.begin(), done.profile.steps.end(),
                                [](const lab::StepTrace& s) { return s.recorded; });
  if (parallel::any_rank(world, !seen)) {
    if (leads) say("stopped before a step was measured");
    return exit_code::kRequeue;
  }
  write_trace(o, done, roofs, world);
  if (!leads) return exit_code::kDone;
  const auto report = lab::report(done.profile, roofs);
  if (!o.html.empty()) {
    io::write_file_atomic(o.html, lab::report_html(report, done.profile, page_title(config)));
    say("report in {}", o.html);
  }
  if (o.json) {
    auto j = lab::report_json(report);
    j["loss"] = done.summary.loss;
    if (done.summary.images) j["samples_per_second"] = done.summary.samples_per_second;
    else j["tokens_per_second"] = done.summary.tokens_per_second;
    print_json(j);
  } else {
    print_text(lab::report_text(report, o.text));
  }
  return exit_code::kDone;
}

int profile(ProfileOptions& o, const Command& sub) {
  if (!o.merge.empty()) return merge(o);
  train::RunConfig config;
  io::ConfigTable table = train::table_of(config);
  const std::vector<fs::path> files(o.configs.begin(), o.configs.end());
  o.threads.checked("profile");
  auto words = overrides(sub.rest());
  add_override(words, o.threads);
  load(table, files, words, sub);
  check_threads(config.train.threads, "config", "train.threads");
  check(o);
  config.output = o.out;
  config.checkpoint.resume = "none";
  config.train.log_every = std::max<std::int64_t>(config.train.log_every, 1);

  auto joined = join_ranks(config.dist, &config.parallel);
  config.train.device = device_of_rank(config.train.device, joined.place());
  return on_ranks(joined, [&] { return profile_rank(o, config, joined.world()); });
}

}  // namespace

void add_profile(const Command& program, Run& run) {
  add_verb<ProfileOptions>(
      program, run, "profile",
      "Trains some steps and shows where their time goes: ranked records, trace, memory, idle time",
      [](const Command& sub, ProfileOptions& o) {
        sub.option("-c,--config", o.configs,
                   "TOML file of a training run; repeatable, later files override earlier ones");
        sub.option("--steps", o.profile.steps,
                   "Steps to measure; as many plain steps run between them, to measure what measuring costs")
            .positive()
            .shows_default();
        sub.option("--warmup", o.profile.warmup, "Steps before the first one that is measured")
            .not_negative()
            .shows_default();
        add_tune_option(sub, o.tune);
        sub.option("--trace", o.trace, "Write a Chrome trace for Perfetto; compressed when the name ends in .gz");
        sub.option("--html", o.html, "Write a page with ranked bars, timeline and memory");
        sub.option("--trace-limit", o.limit_mb, "Largest trace, in MiB of text; steps that do not fit are left out")
            .positive()
            .shows_default();
        sub.option("--rank", o.profile.rank, "Rank of the trace").shows_default();
        sub.option("--world-size", o.profile.world, "Number of ranks that write traces").shows_default();
        sub.option("-o,--out", o.out,
                   "Also write the results of a training run into this new folder; default: write nothing");
        sub.option("--rows", o.text.rows, "Rows of the table; 0: all").shows_default();
        sub.flag("--by-record", o.text.by_record,
                 "Rank every record separately instead of the same records of all layers together");
        sub.flag("--explain", o.text.advice, "Also say what to try for the five records that lose the most time");
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "One JSON object on stdout");
        const auto merge = sub.subcommand(
            "merge",
            "Merges the traces of several ranks into one file on one clock, and names the rank that made others wait");
        merge.option("files", o.merge, "Traces, one per rank").required();
        merge.option("-o,--out", o.merged, "The merged trace; compressed when the name ends in .gz").required();
        merge.flag("--by-order", o.by_order,
                   "Take the first file as that of rank 0, and so on, and ignore the ranks in the files");
        merge.flag("--json", o.json, "One JSON object on stdout");
        sub.takes_rest();
        sub.footer("Every key of a training run may be given as --section.key=value; see hpcdl train --help.");
      },
      profile);
}

}  // namespace hpcdl::cli
