// hpcdl tune: candidates of a GPU's kernels, checked and timed; the fastest are remembered.

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/run_config.h"
#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "cli/verb.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/ops/int4_linear/int4_layout.h"
#include "hpcdl/ops/way_names.h"
#include "hpcdl/train/run_table.h"
#include "tools/measure_roofs.h"
#include "tools/tune/programs.h"

namespace hpcdl::cli {

namespace tune = lab::tune;

namespace {

/// Version and build: in another build, the kernel of a name may have another speed.
std::string build_name() {
  std::error_code unknown;
  const auto file = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(file, unknown));
  const auto written =
      static_cast<std::int64_t>(std::filesystem::last_write_time(file, unknown).time_since_epoch().count());
  return fmt::format("{}-{:08x}", HPCDL_VERSION, hash_of("build", std::array{bytes, written}) >> 32);
}

}  // namespace

void add_tune_option(const Command& sub, TuneOption& o) {
  sub.option("--tune", o.mode,
             "On a GPU: off uses the built-in choice of kernels, cached the choices that hpcdl tune remembers, full "
             "first measures what is missing")
      .one_of({"off", "cached", "full"})
      .shows_default();
  sub.option("--tune-seconds", o.seconds, "Time that --tune full may take").range(0.0, 86400.0).shows_default();
}

void add_ways_option(const Command& sub, TuneOption& o) {
  sub.option("--ways", o.ways,
             "On a GPU: ways of computing to use wherever they are possible, such as \"attention=cudnn conv2d=own\"");
}

std::optional<tune::Session> start_tuning(const TuneOption& o, Device device, Pool& pool) {
  check_preferred_ways(parse_preferred_ways(o.ways, "--ways"), "--ways");
  if (!o.ways.empty() && !device.is_cuda())
    fail_usage("ways", "--ways is for GPUs: on a CPU, the instruction set and the shape determine the kernel");
  const auto mode = tune::mode_from_name(o.mode);
  if (!device.is_cuda() || mode == tune::Mode::off) return std::nullopt;
  return std::optional<tune::Session>(std::in_place, device, pool, mode, build_name(),
                                      [](std::string_view text) { say("{}", text); });
}

std::shared_ptr<const Ways> tuned_ways(std::optional<tune::Session>& session, const TuneOption& o,
                                       const std::vector<const Instance*>& programs) {
  WayNames names{.calls = {}, .preferred = parse_preferred_ways(o.ways, "--ways")};
  if (session) {
    const auto report = session->prepare(programs, o.seconds);
    const auto changed = std::count_if(report.outcomes.begin(), report.outcomes.end(),
                                       [](const auto& r) { return r.chosen != r.built_in; });
    if (!report.outcomes.empty() || !report.skipped.empty())
      say("tuned {} shapes, {} of them to another kernel than the built-in choice; {} were known{}",
          report.outcomes.size(), changed, report.remembered,
          report.skipped.empty() ? ""
                                 : fmt::format("; {} not tuned: {}", report.skipped.size(), report.skipped.front()));
    names.calls = session->cache().choices();
  }
  return names.empty() ? nullptr : std::make_shared<const Ways>(std::move(names));
}

namespace {

struct TuneOptions {
  std::vector<std::string> configs, int4, ops;
  std::string model, device;
  double seconds = 60;
  bool json = false, list = false, anew = false;
  ThreadsOption threads;
};

/// "1x4096x4096" or "1x4096x4096x64".
void wish_int4(tune::Wishes& to, const std::string& text) {
  std::vector<std::int64_t> n;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = std::min(text.find('x', at), text.size());
    const auto word = text.substr(at, end - at);
    const bool digits = !word.empty() && word.size() < 10 &&
                        std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
    n.push_back(digits ? std::stoll(word) : 0);
    at = end + 1;
  }
  if (n.size() == 3) n.push_back(32);
  const bool right =
      n.size() == 4 && *std::min_element(n.begin(), n.end()) > 0 && int4::is_group(n[3]) && n[2] % n[3] == 0;
  if (!right)
    fail_usage("tune", "--int4: expected ROWSxNxK or ROWSxNxKxGROUP (32, 64 or 128, dividing K), got \"{}\"", text);
  tune::wish_int4(to, n[0], n[1], n[2], n[3]);
}

/// Checks the names of the command line before looking for a GPU, so that a wrong name is reported on every machine.
struct Named {
  std::optional<train::RunConfig> config;
  std::filesystem::path model;
  tune::Wishes int4;

  Named(const TuneOptions& o, const Command& sub) {
    for (const auto& text : o.int4) wish_int4(int4, text);
    if (!o.configs.empty()) {
      auto table = train::table_of(config.emplace());
      load(table, {o.configs.begin(), o.configs.end()}, overrides(sub.rest()), sub);
    }
    if (!o.model.empty()) model = io::find_model_folder(o.model);
  }

  tune::Wishes wishes(Pool& pool, Device device) {
    tune::Wishes all = int4;
    if (config) all.merge(tune::wishes_of_training(*config, pool, device));
    if (!model.empty()) all.merge(tune::wishes_of_generation(model, pool, device));
    return all;
  }
};

int list_choices(const tune::Session& session, const TuneOptions& o) {
  if (o.json)
    return print_json({{"file", session.file().string()}, {"tuned", Json::parse(to_text(session.cache()))}}),
           exit_code::kDone;
  std::string text;
  for (const auto& e : session.cache().entries)
    text +=
        fmt::format("{:<12} {:<5} {:<40} {:<34} {:>10}  {:.2f}x built in\n", e.key.op, e.dtype, e.shape, e.candidate,
                    fmt::format("{:.2f} us", 1e6 * e.seconds), e.seconds > 0 ? e.built_in_seconds / e.seconds : 1.0);
  print_text(text.empty() ? "nothing is tuned yet\n" : text);
  say("{}", session.file().string());
  return exit_code::kDone;
}

int report(const tune::Report& r, const tune::Session& session, const TuneOptions& o, const tune::LightOf& light) {
  if (o.json) {
    Json j{{"file", session.file().string()},
           {"remembered", r.remembered},
           {"tuned", Json::array()},
           {"skipped", r.skipped}};
    for (const auto& outcome : r.outcomes) j["tuned"].push_back(tune::to_json(outcome, light));
    return print_json(j), exit_code::kDone;
  }
  for (const auto& outcome : r.outcomes) print_text(tune::to_text(outcome, light) + "\n");
  for (const auto& text : r.skipped) say("not tuned: {}", text);
  say("{} shapes tuned, {} were already known; the choices are in {}", r.outcomes.size(), r.remembered,
      session.file().string());
  return exit_code::kDone;
}

int tune_verb(TuneOptions& o, const Command& sub) {
  const auto words = overrides(sub.rest());
  if (o.configs.empty() && !words.empty()) refuse_keys("tune", words.front(), sub);
  Named named(o, sub);
  const auto device =
      o.device.empty() ? (cuda_devices() > 0 ? Device::cuda(0) : Device::cpu()) : device_from_name(o.device);
  if (!device.is_cuda()) {
    fail("tune", "{}, so there is nothing to tune: on a CPU, the instruction set and the shape determine the kernel",
         o.device.empty() ? "this machine has no GPU" : fmt::format("{} is not a GPU", o.device));
  }
  if (!o.list && o.configs.empty() && o.model.empty() && o.int4.empty())
    fail_usage("tune",
               "nothing to tune: give -c run.toml (the products of its training step), --model FOLDER (those of "
               "generating with it) or --int4 1x4096x4096");
  Pool pool(o.threads.checked("tune"));
  const auto budget = tune::budget_of(o.seconds);
  tune::Session session(device, pool, tune::Mode::full, build_name(), [](std::string_view text) { say("{}", text); });
  if (o.list) return list_choices(session, o);
  const auto result = session.tune(named.wishes(pool, device), budget, o.anew);
  const auto roofs = lab::roofs(device, pool);
  return report(result, session, o, [&](const Cost& c) { return lab::light(c, roofs).seconds; });
}

}  // namespace

void add_tune(const Command& program, Run& run) {
  add_verb<TuneOptions>(
      program, run, "tune",
      "Checks and times the ways in which this GPU can compute what a run needs, and remembers the fastest",
      [](const Command& sub, TuneOptions& o) {
        sub.option("-c,--config", o.configs,
                   "TOML file of a training run whose step is tuned; --section.key=value overrides")
            .one_each();
        sub.option("--model", o.model, "Model folder; tunes what generating with it needs");
        sub.option("--int4", o.int4, "A product with 4-bit weights: ROWSxNxK or ROWSxNxKxGROUP; repeatable").one_each();
        sub.option("--device", o.device, "cuda or cuda:N; default: the first GPU");
        sub.option("--seconds", o.seconds,
                   "Seconds that tuning may take; shapes that are not reached keep the built-in choice")
            .range(0.0, 86400.0)
            .shows_default();
        add_threads_option(sub, o.threads);
        sub.flag("--anew", o.anew, "Measure again what is remembered");
        sub.flag("--list", o.list, "Print what is remembered for this GPU without measuring");
        sub.flag("--json", o.json, "One JSON object on stdout: every candidate of every shape");
        sub.takes_rest();
      },
      tune_verb);
}

}  // namespace hpcdl::cli
