#include "hpcdl/train.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/io/checkpoint.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/run_table.h"
#include "hpcdl/train/run_ways.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl {

namespace {

train::StepOptions step_options(const TrainOptions& o, std::int64_t length) {
  train::StepOptions to{
      .batch = o.batch,
      .length = length,
      .accumulate = o.accumulate,
      .forward = {.compute = o.compute, .recompute = o.recompute, .dropout = static_cast<float>(o.dropout)},
      .optimizer = AdamW::Args{.beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .eps = static_cast<float>(o.eps),
                               .weight_decay = static_cast<float>(o.weight_decay)},
      .clip = static_cast<float>(o.clip),
      .seed = o.seed,
      .data = o.ranks};
  if (o.compute == DType::f16) to.scaler = GradScaler::Options{};
  return to;
}

std::int64_t counted(std::span<const std::int32_t> targets) {
  return std::ssize(targets) - std::count(targets.begin(), targets.end(), -1);
}

}  // namespace

Trainer::Trainer(Model& model, Pool& pool, const TrainOptions& options, Device device) : options_(options) {
  if (options_.length == 0) options_.length = model.shape().context;
  step_ = std::make_unique<train::TrainStep>(model.internal(), pool, step_options(options_, options_.length), device);
  if (!options_.ways.empty()) choose_ways(nullptr, {});
}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;

void Trainer::choose_ways(const io::UsedWays* before, const Hears& hears) {
  const auto used =
      train::set_ways(*step_, {.preferred = options_.ways, .before = before ? std::optional(*before) : std::nullopt},
                      [&](std::string_view line) {
                        if (hears) hears(std::string(line));
                      });
  if (used) ways_ = std::make_unique<io::UsedWays>(*used);
}

StepResult Trainer::step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                         double learning_rate) {
  accumulate(tokens, targets, true);
  return update(learning_rate);
}

void Trainer::accumulate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, bool last) {
  require(options_.accumulate || micro_ == 0, "train",
          "this is the second micro-batch of a step: set TrainOptions::accumulate to train on several");
  has_run_ = true;
  step_->accumulate(tokens, targets, steps_, micro_++, last);
  counted_ += counted(targets);
}

StepResult Trainer::update(double learning_rate) {
  require(micro_ > 0, "train", "update() follows accumulate(): there are no gradients");
  const auto r = step_->update(learning_rate, counted_);
  micro_ = counted_ = 0, ++steps_;
  tokens_ += std::max<std::int64_t>(r.valid_tokens, 1);  // a checkpoint has at least one per step
  return {.loss = r.valid_tokens > 0 ? r.loss / static_cast<double>(r.valid_tokens) : 0,
          .targets = r.valid_tokens,
          .gradient_norm = r.grad_norm,
          .skipped = !r.finite()};
}

double Trainer::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  const auto n = counted(targets);
  require(n > 0, "train", "{} targets, and none of them counts", targets.size());
  has_run_ = true;
  return step_->evaluate(tokens, targets).loss / static_cast<double>(n);
}

void Trainer::save_checkpoint(const std::string& folder) {
  require(micro_ == 0, "train", "a checkpoint is written between steps: call update() first");
  io::GroupRanks ranks(options_.ranks);
  step_->fetch();
  io::TrainState state;
  state.step = steps_, state.tokens = tokens_, state.seed = options_.seed;
  step_->save_scale(state);
  if (!ways_) choose_ways(nullptr, {});
  if (ways_) state.ways = *ways_;
  io::CheckpointContent content;
  content.model = step_->weights(), content.optimizer = step_->optimizer_state();
  io::Checkpoints(folder, 2, &ranks).save(state, content);
}

bool Trainer::load_checkpoint(const std::string& folder, const std::function<void(const std::string&)>& warn) {
  io::GroupRanks ranks(options_.ranks);
  const auto hears = [&](const std::string& message) {
    if (warn) warn(message);
  };
  const auto found = io::Checkpoints::find(folder, "auto", hears, &ranks);
  if (!found) return false;
  io::load_checkpoint(found->path, step_->weights(), step_->optimizer_state());
  step_->store();
  steps_ = found->state.step, tokens_ = found->state.tokens, micro_ = counted_ = 0;
  step_->load_scale(found->state);
  if (const auto& before = found->state.ways) {
    if (!has_run_ || !ways_) choose_ways(has_run_ ? nullptr : &*before, hears);
    if (ways_ && has_run_ && *ways_ != *before)
      hears(
          "warning: the checkpoint was computed in other ways than this Trainer computes in since its first step, so "
          "the last bits of results can differ; load it into a new Trainer");
  }
  return true;
}

RunResult run_training(const RunOptions& options) {
  train::RunConfig config;
  auto table = train::table_of(config);
  table.load({options.files.begin(), options.files.end()}, options.overrides);
  train::Hooks hooks{.console = {.line = options.say}, .world = options.world, .speed_of_light = {}, .after_step = {}};
  const auto s = train::run(config, hooks);
  RunResult r{.model = s.model.string(), .steps = s.step, .loss = s.loss, .eval_loss = {}};
  if (std::isfinite(s.eval_loss)) r.eval_loss = s.eval_loss;
  return r;
}

}  // namespace hpcdl
