#include "hpcdl/lab/ddp/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/core/units.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::lab {

namespace {

std::int64_t mib(double n) { return static_cast<std::int64_t>(n * (1 << 20)); }

/// One form with its model, its programs, and the results of its steps.
struct Side {
  Side(const comm::Group& world, Pool& pool, const io::ModelConfig& config, const DdpForm& form, const DdpOptions& o)
      : model(models::LanguageModel::create(config, 1, true)), step(model, pool, step_options(world, config, form, o)) {
    result.form = form;
    if (step.gradients()) result.buckets = static_cast<int>(step.gradients()->plan().buckets.size());
  }
  static train::StepOptions step_options(const comm::Group& world, const io::ModelConfig& config, const DdpForm& form,
                                         const DdpOptions& o) {
    train::StepOptions s;
    s.batch = o.batch, s.length = config.context;
    if (form.exchange) s.data = world;
    s.reduce = {.buckets = {.cap = mib(form.bucket_mb), .first = std::min(mib(form.bucket_mb), mib(o.first_mb))},
                .overlap = form.overlap};
    return s;
  }
  void take(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t n) {
    step.accumulate(tokens, targets, n, 0);
    step.update(1e-4, std::ssize(targets));
  }
  parallel::ExchangeTimes times() const {
    return step.gradients() ? step.gradients()->times() : parallel::ExchangeTimes{};
  }

  models::LanguageModel model;
  train::TrainStep step;
  DdpResult result;
};

/// The value of the slowest rank.
double slowest(const comm::Group& world, double mine) {
  std::vector<double> all(static_cast<std::size_t>(world.size()));
  all[static_cast<std::size_t>(world.rank())] = mine;
  all = parallel::sum_over_ranks(world, all);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace

double DdpResult::seconds() const {
  auto sorted = steps;
  std::sort(sorted.begin(), sorted.end());
  const auto n = sorted.size();
  return n == 0 ? 0 : n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

const DdpResult* DdpReport::find(std::string_view name) const {
  for (const auto& r : results)
    if (r.form.name == name) return &r;
  return nullptr;
}

std::vector<DdpForm> ddp_forms(const std::vector<double>& bucket_mb) {
  std::vector<DdpForm> forms{{.name = "compute", .exchange = false}, {.name = "blocking", .overlap = false}};
  for (const double mb : bucket_mb) forms.push_back({.name = fmt::format("{:g} MB", mb), .bucket_mb = mb});
  return forms;
}

DdpReport bench_ddp(const comm::Group& world, Pool& pool, const io::ModelConfig& model,
                    const std::vector<DdpForm>& forms, const DdpOptions& options,
                    const std::function<void(const std::string&)>& tell) {
  DdpReport report{.model = model,
                   .options = options,
                   .ranks = world.size(),
                   .threads = pool.threads(),
                   .transport = std::string(world.transport()),
                   .results = {}};
  std::set<int> hosts;
  for (int r = 0; r < world.size(); ++r) hosts.insert(world.host(r));
  report.hosts = static_cast<int>(hosts.size());
  report.tokens = options.batch * model.context * world.size();

  std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.batch * model.context + 1));
  const Rng rng{3, static_cast<std::uint64_t>(world.rank())};
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(rng.below(i, static_cast<std::uint64_t>(model.vocab)));
  const std::span<const std::int32_t> all(tokens);

  std::vector<std::unique_ptr<Side>> sides;
  for (const auto& form : forms) sides.push_back(std::make_unique<Side>(world, pool, model, form, options));
  report.parameters = sides[0]->model.parameter_count();
  for (int round = 0; round <= options.rounds; ++round) {
    for (auto& side : sides) {
      if (tell) tell(fmt::format("round {} of {}: {}", round, options.rounds, side->result.form.name));
      parallel::any_rank(world, false);
      const auto before = side->times();
      const auto begin = Clock::now();
      side->take(all.first(tokens.size() - 1), all.last(tokens.size() - 1), round);
      const double seconds = slowest(world, seconds_since(begin));
      if (round == 0) continue;  // memory is touched for the first time
      const auto after = side->times();
      side->result.steps.push_back(seconds);
      const double mine[] = {after.seconds - before.seconds, after.waited_seconds - before.waited_seconds};
      const auto sum = parallel::sum_over_ranks(world, mine);
      const double share = 1.0 / (world.size() * options.rounds);
      side->result.comm_seconds += sum[0] * share, side->result.waited_seconds += sum[1] * share;
    }
  }
  for (auto& side : sides) report.results.push_back(side->result);
  return report;
}

std::string ddp_duration(double s) {
  return s >= 1      ? fmt::format("{:.2f} s", s)
         : s >= 1e-3 ? fmt::format("{:.1f} ms", s * 1e3)
                     : fmt::format("{:.0f} us", s * 1e6);
}

std::string ddp_table(const DdpReport& r) {
  std::string text = fmt::format(
      "{} ranks on {} host{} over {}, {} thread{} each; {} parameters ({} of gradients), {} tokens a step\n", r.ranks,
      r.hosts, r.hosts > 1 ? "s" : "", r.transport, r.threads, r.threads > 1 ? "s" : "",
      format_count(static_cast<double>(r.parameters)), format_bytes(4.0 * static_cast<double>(r.parameters)), r.tokens);
  text += fmt::format("{:<12} {:>8} {:>10} {:>12} {:>10} {:>8}\n", "form", "buckets", "step", "vs blocking", "exchange",
                      "hidden");
  const auto* blocking = r.find("blocking");
  for (const auto& x : r.results) {
    const auto ratio = blocking && x.form.exchange ? fmt::format("{:.2f}x", blocking->seconds() / x.seconds()) : "";
    text += fmt::format("{:<12} {:>8} {:>10} {:>12} {:>10} {:>8}\n", x.form.name,
                        x.form.exchange ? std::to_string(x.buckets) : "", ddp_duration(x.seconds()), ratio,
                        x.form.exchange ? ddp_duration(x.comm_seconds) : "",
                        x.form.exchange ? fmt::format("{:.0f} %", 100 * x.hidden()) : "");
  }
  return text;
}

nlohmann::ordered_json ddp_json(const DdpReport& r) {
  nlohmann::ordered_json j = {{"ranks", r.ranks},           {"hosts", r.hosts},
                              {"transport", r.transport},   {"threads", r.threads},
                              {"parameters", r.parameters}, {"gradient_bytes", 4 * r.parameters},
                              {"batch", r.options.batch},   {"context", r.model.context},
                              {"rounds", r.options.rounds}, {"forms", nlohmann::ordered_json::array()}};
  const auto* blocking = r.find("blocking");
  for (const auto& x : r.results) {
    nlohmann::ordered_json f = {{"form", x.form.name}, {"step_seconds", x.seconds()}, {"steps", x.steps}};
    if (x.form.exchange) {
      f["bucket_mb"] = x.form.bucket_mb, f["buckets"] = x.buckets, f["overlap"] = x.form.overlap;
      f["exchange_seconds"] = x.comm_seconds, f["waited_seconds"] = x.waited_seconds, f["hidden"] = x.hidden();
      if (blocking) f["speedup_vs_blocking"] = blocking->seconds() / x.seconds();
    }
    j["forms"].push_back(f);
  }
  return j;
}

}  // namespace hpcdl::lab
