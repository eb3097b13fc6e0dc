// hpcdl train: a config file and overrides in, a model folder out.

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/run_config.h"
#include "cli/self.h"
#include "cli/train.h"
#include "cli/world.h"
#include "hpcdl/core/thread_limit.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/machine/speed_of_light.h"
#include "hpcdl/train/run_table.h"
#include "hpcdl/train/stop.h"
#include "hpcdl/train/trainer.h"
#include "tools/measure_roofs.h"
#include "tools/profile/explain.h"

namespace hpcdl::cli {

std::vector<std::string> overrides(const std::vector<std::string>& words) {
  std::vector<std::string> list;
  for (const auto& word : words) {
    if (!word.starts_with("--") && !list.empty() && list.back().find('=') == std::string::npos)
      list.back() += "=" + word;
    else list.push_back(word);
  }
  return list;
}

namespace {

Json result(const train::RunSummary& s, const std::optional<lab::Explain>& explain) {
  const auto number = [](double x) { return std::isfinite(x) ? Json(x) : Json(); };
  Json j = {{"model", s.model.empty() ? Json() : Json(s.model.string())},
            {"step", s.step},
            {"first_step", s.first_step},
            {"stopped", s.stopped},
            {"loss", s.loss},
            {"eval_loss", number(s.eval_loss)},
            {"seconds", s.seconds},
            {"samples_per_second", s.samples_per_second},
            {"sol_percent", s.sol_percent < 0 ? Json() : Json(s.sol_percent)},
            {"parameters", s.parameters},
            {"arena_bytes", s.arena_bytes}};
  if (s.eval_accuracy >= 0)
    j["accuracy"] = s.accuracy, j["eval_accuracy"] = s.eval_accuracy, j["eval_samples"] = s.eval_tokens;
  else if (!s.images)
    j["eval_perplexity"] = number(std::exp(s.eval_loss)), j["eval_tokens"] = s.eval_tokens,
    j["tokens_per_second"] = s.tokens_per_second;
  if (explain) j["explain"] = lab::advice_json(explain->list());
  return j;
}

/// {"section": {"key": value}}. What TOML writes for numbers, strings and lists is JSON as well, but for non-finite
/// numbers.
Json values(const io::ConfigTable& table) {
  Json out = Json::object();
  for (const auto& field : table.fields()) {
    const auto dot = field.key.find('.');
    auto& section = dot == std::string::npos ? out : out[field.key.substr(0, dot)];
    auto value = Json::parse(field.toml(), nullptr, false);
    section[field.key.substr(dot == std::string::npos ? 0 : dot + 1)] =
        value.is_discarded() ? Json(field.toml()) : std::move(value);
  }
  return out;
}

Json memory_json(const train::MemoryPlan& plan, const train::MemoryAdvice& advice) {
  const auto& l = plan.ledger;
  return {{"change", advice.words(plan.change)},
          {"bytes", l.total()},
          {"fits", advice.fits(l)},
          {"weights", l.weights},
          {"gradients", l.gradients},
          {"optimizer", l.optimizer},
          {"activations", l.activations},
          {"batches", l.staged},
          {"other", l.other},
          {"workspaces", l.workspaces},
          {"saving", l.saving},
          {"process", l.process},
          {"copy", l.copy},
          {"on_host", l.on_host},
          {"peak_record", l.peak}};
}

int show_memory(const TrainOptions& o, train::RunConfig& config, const train::Hooks& hooks) {
  const auto advice = train::plan_run(config, hooks);
  if (hooks.world.rank() > 0) return exit_code::kDone;
  if (!o.json) return print_text(advice.text() + advice.verdict() + "\n"), exit_code::kDone;
  Json out = memory_json(advice.now(), advice);
  out["room"] = {{"bytes", advice.room().bytes}, {"of", advice.room().of}};
  out["alternatives"] = Json::array();
  for (const auto& a : advice.alternatives()) out["alternatives"].push_back(memory_json(a, advice));
  print_json(out);
  return exit_code::kDone;
}

int train_rank(const TrainOptions& o, train::RunConfig& config, const comm::Joined& joined) {
  const bool leads = joined.place().rank == 0;
  Pool pool(config.train.threads);
  const auto device = device_from_name(config.train.device);
  const auto roofs = leads ? lab::roofs(device, pool) : lab::Roofs();
  const auto to = console();
  std::optional<lab::Explain> explain;
  if (o.explain && leads)
    explain.emplace(roofs, lab::Explain::Options{.every = std::max<std::int64_t>(config.train.log_every, 10)},
                    [&](std::string_view text) { say_lines(to, text); });
  auto tuning = start_tuning(o.tune, device, pool);
  train::Hooks hooks{.console = to,
                     .world = joined.world(),
                     .speed_of_light = {},
                     .tuned_ways = [&](const auto& programs) { return tuned_ways(tuning, o.tune, programs); },
                     .after_step = {},
                     .observer = explain ? &*explain : nullptr};
  hooks.facts = program_facts(o.memory ? "train --memory" : "train");
  hooks.facts.push_back({"--tune", o.tune.mode});
  hooks.stops_on_interrupt = true;
  if (joined.place().world == 1 && joined.place().source == comm::Place().source) hooks.command = own_command();
  hooks.host_memory_limit = lab::this_machine().memory_limit;
  if (o.memory) return show_memory(o, config, hooks);
  if (leads) hooks.speed_of_light = [&](const Program& p) { return lab::light(p, roofs).seconds; };
  if (o.plan_first) {
    const auto advice = train::plan_run(config, hooks);
    if (leads) say_lines(to, advice.text());
  }
  const auto summary = train::run(config, hooks);
  if (explain) say_lines(to, explain->text());
  if (leads && o.json) print_json(result(summary, explain));
  else if (leads && !summary.stopped)
    say("{} written to {}", config.adapter.given() ? "adapter" : "model", summary.model.string());
  return !summary.stopped ? exit_code::kDone : summary.interrupted ? exit_code::kInterrupted : exit_code::kRequeue;
}

}  // namespace

int run_training(TrainOptions& o, const Command& sub, const std::function<void(train::RunConfig&)>& defaults,
                 std::vector<std::string> words) {
  if (o.timestamps) stamp_lines();
  train::RunConfig config;
  if (defaults) defaults(config);
  io::ConfigTable table = train::table_of(config);
  std::vector<std::filesystem::path> files(o.configs.begin(), o.configs.end());
  for (auto& word : overrides(sub.rest())) words.push_back(std::move(word));
  if (!o.out.empty()) words.push_back("--output=" + o.out);
  if (!o.device.empty()) words.push_back("--train.device=" + o.device);
  o.threads.checked("train");
  add_override(words, o.threads);
  load(table, files, words, sub);
  const auto given = [&](const char* key) { return table.find(key)->origin != "default"; };
  if (given("train.steps") && !given("train.epochs")) config.train.epochs = 0;  // a default of the verb
  if (o.schema) return print_json(Json::parse(table.schema().dump())), exit_code::kDone;
  if (o.print_config && o.json) return print_json(values(table)), exit_code::kDone;
  if (o.print_config) return print_text(table.print_origins()), exit_code::kDone;

  check_threads(config.train.threads, "config", "train.threads");

  // From here on, a signal that comes while the text is prepared leads to a checkpoint after the first step.
  // Ctrl-C ends the program, as long as there is nothing to lose.
  const train::StopSignals signals;
  auto joined = join_ranks(config.dist, &config.parallel);
  config.train.device = device_of_rank(config.train.device, joined.place());
  if (joined.watch() && device_from_name(config.train.device).is_cuda())
    joined.watch()->limit_work(config.dist.timeout);
  return on_ranks(joined, [&] { return train_rank(o, config, joined); });
}

void add_train_options(const Command& sub, TrainOptions& o) {
  sub.option("-c,--config", o.configs, "TOML file; repeatable, later files override earlier ones");
  sub.option("-o,--out", o.out, "Folder of the run");
  sub.option("--device", o.device, "Where to train: cpu, cuda or cuda:N (the same as --train.device)");
  add_threads_option(sub, o.threads);
  add_tune_option(sub, o.tune);
  sub.flag("--explain", o.explain,
           "Name the records that lose the most time against their roof, from time to time and at the end");
  sub.flag("--memory", o.memory, "Print how much memory the run would take and what would take less, and stop");
  sub.flag("--json", o.json, "One JSON object on stdout at the end");
  sub.flag("--timestamps", o.timestamps, "Start every line with the time; HPCDL_TIMESTAMPS=1 does so for every verb");
  sub.flag("--print-config", o.print_config, "Print the resolved config with the origin of every value, and stop");
  sub.flag("--config-schema", o.schema, "Print the JSON Schema of the config, and stop");
  sub.takes_rest();
  train::RunConfig config;
  sub.footer("Every key may be given as --section.key=value, in the file, or as HPCDL_SECTION_KEY:\n" +
             train::table_of(config).help());
}

void add_train(const Command& program, Run& run) {
  add_verb<TrainOptions>(
      program, run, "train", "Trains a transformer on text, or a classifier on images; the same command again resumes",
      add_train_options, [](TrainOptions& o, const Command& sub) { return run_training(o, sub, {}, {}); });
}

}  // namespace hpcdl::cli
