#include "hpcdl/lab/tensor/tensor.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "hpcdl/core/rng.h"
#include "hpcdl/core/units.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::lab {
namespace {

using Scheme = parallel::TensorParallel::Scheme;

/// A model under one scheme, and its steps.
class Side {
 public:
  Side(const comm::Group& tp, Pool& pool, const io::ModelConfig& config, const TensorOptions& o, Scheme scheme)
      : sharing_(std::make_shared<parallel::TensorParallel>(
            tp, scheme, o.device.is_cuda() ? comm::Algorithm::automatic : comm::Algorithm::ring)),
        model_(models::LanguageModel::create(config, 1, true, sharing_)),
        step_(model_, pool, {.batch = o.batch, .length = config.context, .forward = {.compute = o.compute}}, o.device),
        ids_(static_cast<std::size_t>(o.batch * config.context)) {
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::int32_t>(Rng{1, 2}.below(i, static_cast<std::uint64_t>(config.vocab)));
    result_.scheme = scheme;
    for (const auto* program : step_.programs(1)) result_.declared_bytes += wire_bytes(program->program());
  }

  void step(bool measured) {
    const auto& group = sharing_->group();
    const double mine[] = {1.0};
    parallel::sum_over_ranks(group, mine);  // all begin together
    const auto bytes = group.counters().wire_bytes;
    const auto start = std::chrono::steady_clock::now();
    step_.accumulate(ids_, ids_, number_++, 0);
    const double loss = step_.update(1e-3, std::ssize(ids_)).loss / static_cast<double>(ids_.size());
    float seconds = std::chrono::duration<float>(std::chrono::steady_clock::now() - start).count();
    const auto sent = static_cast<double>(group.counters().wire_bytes - bytes);
    if (number_ == 1) result_.loss = loss;
    Pool one(1);
    const Stream host(one);
    group.all_reduce(host, Tensor(&seconds, {{1}, DType::f32}), comm::Reduce::max).wait();
    if (!measured) return;
    result_.wire_bytes = parallel::sum_over_ranks(group, sent) / group.size();
    result_.steps.push_back(static_cast<double>(seconds));
    result_.arena_bytes = step_.arena_bytes();
  }

  const TensorResult& result() const { return result_; }
  std::int64_t parameters() const { return model_.parameter_count(); }

 private:
  std::shared_ptr<parallel::TensorParallel> sharing_;
  models::LanguageModel model_;
  train::TrainStep step_;
  std::vector<std::int32_t> ids_;
  std::int64_t number_ = 0;
  TensorResult result_{};
};

}  // namespace

double TensorResult::seconds() const {
  auto sorted = steps;
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

TensorReport bench_tensor(const comm::Group& tp, Pool& pool, const io::ModelConfig& model,
                          const TensorOptions& options) {
  std::vector<std::unique_ptr<Side>> sides;
  for (const auto scheme : {Scheme::conjugate, Scheme::sequence, Scheme::naive})
    sides.push_back(std::make_unique<Side>(tp, pool, model, options, scheme));
  for (int round = 0; round <= options.rounds; ++round)
    for (auto& side : sides) side->step(round > 0);
  TensorReport report{model, options, tp.size(), sides[0]->parameters(), {}};
  for (const auto& side : sides) report.results.push_back(side->result());
  return report;
}

std::string tensor_table(const TensorReport& r) {
  std::string text = fmt::format(
      "{} ranks share the layers of {} parameters; a step of {} tokens\n\n{:<10} {:>14} {:>14} {:>7} {:>10} {:>12}\n",
      r.ranks, format_count(static_cast<double>(r.parameters)), r.options.batch * r.model.context, "scheme",
      "bytes sent", "declared", "ratio", "step", "activations");
  for (const auto& s : r.results)
    text += fmt::format("{:<10} {:>14} {:>14} {:>7.3f} {:>7.1f} ms {:>12}\n", nn::scheme_name(s.scheme),
                        format_bytes(s.wire_bytes), format_bytes(s.declared_bytes),
                        s.declared_bytes > 0 ? s.wire_bytes / s.declared_bytes : 1.0, 1e3 * s.seconds(),
                        format_bytes(static_cast<double>(s.arena_bytes)));
  return text;
}

nlohmann::ordered_json tensor_json(const TensorReport& r) {
  nlohmann::ordered_json j = {{"ranks", r.ranks},
                              {"parameters", r.parameters},
                              {"tokens", r.options.batch * r.model.context},
                              {"layers", r.model.layers},
                              {"width", r.model.width},
                              {"ffn", r.model.ffn},
                              {"algorithm", r.options.device.is_cuda() ? "auto" : "ring"},
                              {"schemes", nlohmann::ordered_json::array()}};
  for (const auto& s : r.results)
    j["schemes"].push_back({{"scheme", nn::scheme_name(s.scheme)},
                            {"wire_bytes", s.wire_bytes},
                            {"declared_bytes", s.declared_bytes},
                            {"seconds", s.seconds()},
                            {"steps", s.steps},
                            {"arena_bytes", s.arena_bytes},
                            {"loss", s.loss}});
  return j;
}

}  // namespace hpcdl::lab
