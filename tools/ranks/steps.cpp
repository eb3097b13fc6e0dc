#include "tools/ranks/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/units.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/span.h"
#include "hpcdl/rng.h"
#include "hpcdl/train/train_step.h"
#include "tools/compare/protocol.h"
#include "tools/page/page.h"
#include "tools/words.h"

namespace hpcdl::lab {

namespace {

using parallel::TensorParallel;

std::int64_t mib(double n) { return static_cast<std::int64_t>(n * (1 << 20)); }

/// The value of the slowest rank.
double slowest(const comm::Group& world, double mine) {
  std::vector<double> all(static_cast<std::size_t>(world.size()));
  all[static_cast<std::size_t>(world.rank())] = mine;
  all = parallel::sum_over_ranks(world, all);
  return *std::max_element(all.begin(), all.end());
}

/// One variant with its model, its programs, and the results of its steps.
class Side {
 public:
  Side(const comm::Group& world, Pool& pool, const io::ModelConfig& config, const StepVariant& v, const StepsOptions& o)
      : world_(world),
        sharing_(sharing_of(world, v, o)),
        model_(sharing_ ? models::LanguageModel::create(config, 1, true, sharing_)
                        : models::LanguageModel::create(config, 1, true)),
        step_(model_, pool, options_of(world, config, v, o), o.device),
        tokens_(static_cast<std::size_t>(o.batch * config.context + 1)),
        share_(1.0 / (world.size() * o.rounds)) {
    // Ranks that share the layers need the same tokens.
    const Rng rng{3, sharing_ ? 0 : static_cast<std::uint64_t>(world.rank())};
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = static_cast<std::int32_t>(rng.below(i, static_cast<std::uint64_t>(config.vocab)));
    result_.variant = v;
    if (step_.ranks()) result_.buckets = static_cast<int>(step_.ranks()->plan().units.size());
    model_.state().for_each([&](const StateEntry& e) { result_.state_bytes += e.counted ? e.memory.bytes() : 0; });
    for (const auto* program : step_.programs(1)) result_.declared_bytes += wire_bytes(program->program());
  }

  void step(std::int64_t number) {
    const std::span<const std::int32_t> all(tokens_);
    const auto n = tokens_.size() - 1;
    const auto& group = sharing_ ? sharing_->group() : world_;
    parallel::any_rank(world_, false);  // all begin together
    const auto before = times();
    const auto bytes = group.counters().wire_bytes;
    const auto begin = Clock::now();
    step_.accumulate(all.first(n), all.last(n), number, 0);
    const double loss = step_.update(1e-4, static_cast<std::int64_t>(n)).loss / static_cast<double>(n);
    const double mine = seconds_since(begin), sent = static_cast<double>(group.counters().wire_bytes - bytes);
    const double seconds = slowest(world_, mine);
    if (number == 0) result_.loss = loss;
    if (number == 0) return;  // memory is touched for the first time
    const auto after = times();
    const double counts[] = {after.seconds - before.seconds, after.waited_seconds - before.waited_seconds, sent};
    const auto sum = parallel::sum_over_ranks(world_, counts);
    result_.steps.push_back(seconds);
    result_.comm_seconds += sum[0] * share_, result_.waited_seconds += sum[1] * share_;
    result_.wire_bytes += sum[2] * share_;
    result_.arena_bytes = step_.arena_bytes();
  }

  const StepsResult& result() const { return result_; }
  std::int64_t parameters() const { return model_.parameter_count(); }

 private:
  static std::shared_ptr<TensorParallel> sharing_of(const comm::Group& world, const StepVariant& v,
                                                    const StepsOptions& o) {
    if (!v.scheme) return nullptr;
    return std::make_shared<TensorParallel>(world, *v.scheme,
                                            o.device.is_cuda() ? comm::Algorithm::automatic : comm::Algorithm::ring);
  }
  static train::StepOptions options_of(const comm::Group& world, const io::ModelConfig& config, const StepVariant& v,
                                       const StepsOptions& o) {
    train::StepOptions s{.batch = o.batch, .length = config.context, .forward = {.compute = o.compute}};
    if (v.scheme || !v.exchange) return s;
    s.data = world;
    s.reduce = {.buckets = {.cap = mib(v.bucket_mb), .first = std::min(mib(v.bucket_mb), mib(o.first_mb))},
                .overlap = v.overlap};
    s.zero = v.zero;
    s.wire_weights = v.weights, s.wire_gradients = v.gradients;
    if (v.copies) s.copies = true;
    if (v.span_of_host) s.span = parallel::ranks_of_each_host(world);
    return s;
  }
  parallel::ExchangeTimes times() const { return step_.ranks() ? step_.ranks()->times() : parallel::ExchangeTimes{}; }

  const comm::Group& world_;
  std::shared_ptr<TensorParallel> sharing_;
  models::LanguageModel model_;
  train::TrainStep step_;
  std::vector<std::int32_t> tokens_;
  double share_;
  StepsResult result_;
};

/// Three significant digits.
std::string duration(double s) {
  return s >= 1      ? fmt::format("{:.2f} s", s)
         : s >= 1e-3 ? fmt::format("{:.1f} ms", s * 1e3)
                     : fmt::format("{:.0f} us", s * 1e6);
}

std::string bytes(double n) { return format_bytes(n); }
std::string gradient_bytes(const StepsReport& r) { return bytes(4.0 * static_cast<double>(r.parameters)); }
/// Nothing counts what a GPU sends: its steps are captured, and NCCL does not tell.
bool counts_bytes(const StepsReport& r) { return !r.options.device.is_cuda(); }
std::string parameter_count(const StepsReport& r) { return format_count(static_cast<double>(r.parameters)); }

}  // namespace

std::vector<StepVariant> ddp_variants(const std::vector<double>& bucket_mb) {
  std::vector<StepVariant> list{{.name = "compute", .exchange = false}, {.name = "blocking", .overlap = false}};
  for (const double mb : bucket_mb) list.push_back({.name = fmt::format("{:g} MB", mb), .bucket_mb = mb});
  return list;
}

std::vector<StepVariant> tensor_variants() {
  std::vector<StepVariant> list;
  for (const auto scheme : {TensorParallel::conjugate, TensorParallel::sequence, TensorParallel::naive})
    list.push_back({.name = std::string(nn::scheme_name(scheme)), .scheme = scheme});
  return list;
}

std::vector<StepVariant> zero_variants(const std::vector<int>& stages) {
  std::vector<StepVariant> list;
  for (const int stage : stages)
    list.push_back({.name = fmt::format("zero {}", stage), .bucket_mb = 25, .zero = stage});
  return list;
}

std::vector<StepVariant> wire_variants() {
  const StepVariant all{.name = "bf16 wires", .bucket_mb = 25, .zero = 3, .gradients = WireCode::bf16, .copies = true};
  auto few = all;
  few.name = "int8, int4", few.weights = WireCode::int8, few.gradients = WireCode::int4;
  auto host = few;
  host.name += ", host", host.span_of_host = true;
  return {all, few, host};
}

double StepsResult::seconds() const { return compare::median(steps); }

const StepsResult* StepsReport::find(std::string_view name) const {
  for (const auto& r : results)
    if (r.variant.name == name) return &r;
  return nullptr;
}

StepsReport bench_steps(const comm::Group& world, Pool& pool, const io::ModelConfig& model,
                        const std::vector<StepVariant>& variants, const StepsOptions& options,
                        const std::function<void(const std::string&)>& tell) {
  StepsReport report{.model = model,
                     .options = options,
                     .ranks = world.size(),
                     .threads = pool.threads(),
                     .transport = std::string(world.transport()),
                     .results = {}};
  std::set<int> hosts;
  for (int r = 0; r < world.size(); ++r) hosts.insert(world.host(r));
  report.hosts = static_cast<int>(hosts.size());
  std::vector<std::unique_ptr<Side>> sides;
  for (const auto& v : variants) sides.push_back(std::make_unique<Side>(world, pool, model, v, options));
  report.parameters = sides[0]->parameters();
  report.tokens = options.batch * model.context * (variants[0].scheme ? 1 : world.size());
  compare::take_turns(
      sides.size(), [&](int round) { return round <= options.rounds; },
      [&](int round, std::size_t i) {
        if (tell) tell(fmt::format("round {} of {}: {}", round, options.rounds, sides[i]->result().variant.name));
        sides[i]->step(round);
      });
  for (const auto& side : sides) report.results.push_back(side->result());
  return report;
}

std::string ddp_table(const StepsReport& r) {
  Table table{{"form", "buckets", "step", "vs blocking", "exchange", "hidden"}, {}};
  const auto* blocking = r.find("blocking");
  for (const auto& x : r.results) {
    auto& cells = table.rows.emplace_back(std::vector<std::string>{x.variant.name, "", duration(x.seconds())});
    if (!x.variant.exchange) continue;
    cells[1] = std::to_string(x.buckets);
    cells.push_back(blocking ? fmt::format("{:.2f}x", blocking->seconds() / x.seconds()) : "");
    cells.push_back(duration(x.comm_seconds));
    cells.push_back(fmt::format("{:.0f} %", 100 * x.hidden()));
  }
  return fmt::format("{} ranks on {} over {}, {} each; {} parameters ({} of gradients), {} tokens a step\n", r.ranks,
                     plural(r.hosts, "host"), r.transport, plural(r.threads, "thread"), parameter_count(r),
                     gradient_bytes(r), r.tokens) +
         table_text(table);
}

nlohmann::ordered_json ddp_json(const StepsReport& r) {
  nlohmann::ordered_json j = {{"ranks", r.ranks},           {"hosts", r.hosts},
                              {"transport", r.transport},   {"threads", r.threads},
                              {"parameters", r.parameters}, {"gradient_bytes", 4 * r.parameters},
                              {"batch", r.options.batch},   {"context", r.model.context},
                              {"rounds", r.options.rounds}, {"forms", nlohmann::ordered_json::array()}};
  const auto* blocking = r.find("blocking");
  for (const auto& x : r.results) {
    nlohmann::ordered_json f = {{"form", x.variant.name}, {"step_seconds", x.seconds()}, {"steps", x.steps}};
    if (x.variant.exchange) {
      f["bucket_mb"] = x.variant.bucket_mb, f["buckets"] = x.buckets, f["overlap"] = x.variant.overlap;
      f["exchange_seconds"] = x.comm_seconds, f["waited_seconds"] = x.waited_seconds, f["hidden"] = x.hidden();
      if (blocking) f["speedup_vs_blocking"] = blocking->seconds() / x.seconds();
    }
    j["forms"].push_back(f);
  }
  return j;
}

std::string ddp_picture(const StepsReport& r, const std::string& title) {
  BarChart chart{
      .parts = {"computing", "waiting for gradients"},
      .title = title,
      .subtitle =
          fmt::format("{} of gradients over {}; line: the step without exchange", gradient_bytes(r), r.transport),
      .footer = fmt::format("{} ranks on {}, {} parameters, {} tokens a step; medians of {} steps in turns", r.ranks,
                            plural(r.hosts, "host"), parameter_count(r), r.tokens, r.options.rounds)};
  for (const auto& x : r.results) {
    const double waited = x.variant.exchange ? std::min(x.waited_seconds, x.seconds()) : 0;
    auto label = duration(x.seconds());
    if (x.variant.exchange) label += fmt::format(", {:.0f} % hidden", 100 * x.hidden());
    else chart.mark = x.seconds();
    chart.bars.push_back({x.variant.name, {x.seconds() - waited, waited}, label});
  }
  return svg(chart);
}

std::string tensor_table(const StepsReport& r) {
  Table table{{"scheme", "bytes sent", "declared", "ratio", "step", "activations"}, {}};
  for (const auto& s : r.results)
    table.rows.push_back({s.variant.name, bytes(s.wire_bytes), bytes(s.declared_bytes),
                          fmt::format("{:.3f}", s.declared_bytes > 0 ? s.wire_bytes / s.declared_bytes : 1.0),
                          fmt::format("{:.1f} ms", 1e3 * s.seconds()), bytes(static_cast<double>(s.arena_bytes))});
  return fmt::format("{} ranks share the layers of {} parameters; a step of {} tokens\n\n", r.ranks, parameter_count(r),
                     r.tokens) +
         table_text(table);
}

nlohmann::ordered_json tensor_json(const StepsReport& r) {
  nlohmann::ordered_json j = {{"ranks", r.ranks},
                              {"parameters", r.parameters},
                              {"tokens", r.tokens},
                              {"layers", r.model.layers},
                              {"width", r.model.width},
                              {"ffn", r.model.ffn},
                              {"algorithm", r.options.device.is_cuda() ? "auto" : "ring"},
                              {"schemes", nlohmann::ordered_json::array()}};
  for (const auto& s : r.results)
    j["schemes"].push_back({{"scheme", s.variant.name},
                            {"wire_bytes", s.wire_bytes},
                            {"declared_bytes", s.declared_bytes},
                            {"seconds", s.seconds()},
                            {"steps", s.steps},
                            {"arena_bytes", s.arena_bytes},
                            {"loss", s.loss}});
  return j;
}

std::string zero_table(const StepsReport& r) {
  Table table{{"stage", "step", "tokens/s", "speed", "bytes sent", "declared", "state", "activations"}, {}};
  const auto& first = r.results.front();
  for (const auto& s : r.results)
    table.rows.push_back({s.variant.name, duration(s.seconds()),
                          format_count(static_cast<double>(r.tokens) / s.seconds()),
                          fmt::format("{:.3f}x", first.seconds() / s.seconds()),
                          counts_bytes(r) ? bytes(s.wire_bytes) : "not counted", bytes(s.declared_bytes),
                          bytes(static_cast<double>(s.state_bytes)), bytes(static_cast<double>(s.arena_bytes))});
  return fmt::format("{} ranks over {}, {} each; {} parameters, a step of {} tokens\n\n", r.ranks, r.transport,
                     plural(r.threads, "thread"), parameter_count(r), r.tokens) +
         table_text(table);
}

nlohmann::ordered_json zero_json(const StepsReport& r) {
  nlohmann::ordered_json j = {{"ranks", r.ranks},           {"transport", r.transport},
                              {"parameters", r.parameters}, {"tokens", r.tokens},
                              {"rounds", r.options.rounds}, {"stages", nlohmann::ordered_json::array()}};
  for (const auto& s : r.results)
    j["stages"].push_back({{"name", s.variant.name},
                           {"zero", s.variant.zero},
                           {"step_seconds", s.seconds()},
                           {"steps", s.steps},
                           {"speed", r.results.front().seconds() / s.seconds()},
                           {"wire_bytes", counts_bytes(r) ? nlohmann::ordered_json(s.wire_bytes) : nullptr},
                           {"declared_bytes", s.declared_bytes},
                           {"state_bytes", s.state_bytes},
                           {"activation_bytes", s.arena_bytes},
                           {"first_loss", s.loss}});
  return j;
}

}  // namespace hpcdl::lab
