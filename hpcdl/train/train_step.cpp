#include "hpcdl/train/train_step.h"

#include <algorithm>
#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/train/non_finite.h"

namespace hpcdl::train {

namespace {

std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

Tensor bytes_of(const Buffer& b) { return Tensor(b.data(), {{b.bytes()}, DType::u8}, b.device()); }

}  // namespace

TrainStep::TrainStep(models::LanguageModel& model, Pool& pool, const StepOptions& options, Device device)
    : model_(model), options_(options), stream_(device, pool, &params_) {
  if (model_.device() != device) model_.to_device(stream_);
  std::int64_t total = 0;
  for (const auto& p : model_.parameters()) {
    require(static_cast<bool>(p.gradient), "train", "parameter {} has no gradient: open the model for training", p.name);
    total += 2 * padded(p.value.bytes());
  }
  moments_ = Buffer(total, device);
  if (device.is_cuda()) host_moments_ = Buffer(total);
  auto* at = moments_.data();
  for (const auto& p : model_.parameters()) {
    const auto bytes = padded(p.value.bytes());
    state_.emplace_back(Tensor(at, p.value.spec(), device), Tensor(at + bytes, p.value.spec(), device));
    at += 2 * bytes;
  }
  record_programs();
}

void TrainStep::record_programs() {
  std::vector<std::pair<std::optional<Executable>*, Program>> programs;
  programs.emplace_back(&first_.exe, record_pass(first_, Write::overwrite, false));
  if (options_.accumulate) programs.emplace_back(&more_.exe, record_pass(more_, Write::accumulate, false));
  programs.emplace_back(&eval_.exe, record_pass(eval_, Write::overwrite, true));
  programs.emplace_back(&update_, record_update());
  std::int64_t bytes = 0;
  for (const auto& [exe, program] : programs) bytes = std::max(bytes, plan(program).arena_bytes);
  arena_ = std::make_shared<Buffer>(bytes, stream_.device());
  for (auto& [exe, program] : programs) exe->emplace(std::move(program), arena_, stream_.device());
}

Program TrainStep::record_pass(Pass& pass, Write write, bool inference) const {
  Graph g({.parameter_gradients = write, .inference = inference});
  const Spec spec{{options_.batch, options_.length}, DType::i32};
  pass.tokens = g.input("tokens", spec);
  pass.targets = g.input("targets", spec);
  auto forward = options_.forward;
  if (inference) forward.dropout = 0, forward.recompute = false;
  pass.loss = g.keep(model_.loss(g, pass.tokens, pass.targets, forward));
  if (!inference) g.backward(pass.loss);
  return g.finish();
}

Program TrainStep::record_update() {
  Graph g;
  std::vector<Var> gradients;
  std::vector<AdamWTensor<Var>> tensors;
  for (std::size_t i = 0; i < state_.size(); ++i) {
    const auto& p = model_.parameters()[i];
    const Var gradient = g.constant(p.name + ".grad", p.gradient);
    gradients.push_back(gradient);
    tensors.push_back({.value = g.constant(p.name, p.value),
                       .gradient = gradient,
                       .m = g.constant(p.name + ".m", state_[i].first),
                       .v = g.constant(p.name + ".v", state_[i].second),
                       .decay = p.decay});
  }
  record_grad_norm(g, gradients, {.max_norm = options_.clip, .skip_nonfinite = true});
  record_adamw(g, tensors, options_.adamw);
  return g.finish();
}

void TrainStep::run(Executable& exe) {
  if (observer_) return observer_->run(exe, stream_);
  exe.run(stream_);
  if (!stream_.device().is_cuda() || std::find(warm_.begin(), warm_.end(), &exe) != warm_.end()) return;
  exe.capture(stream_);  // not before everything that loads lazily has been loaded
  warm_.push_back(&exe);
}

double TrainStep::run(Pass& pass, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  const auto fill = [&](const Var& v, std::span<const std::int32_t> from) {
    const Tensor t = pass.exe->tensor(v);
    require(std::ssize(from) == t.size(), "train", "expected a batch of {} tokens, got {}", t.size(), from.size());
    copy(stream_, t, View(from.data(), t.spec()));
  };
  fill(pass.tokens, tokens);
  fill(pass.targets, targets);
  run(*pass.exe);
  last_ = &pass;
  float loss = 0;
  copy(stream_, Tensor(&loss, pass.loss.spec()), pass.exe->tensor(pass.loss));
  return loss;
}

double TrainStep::accumulate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t step,
                             std::int64_t micro) {
  const InStage stage(observer_, Stage::pass);
  params_.step = step;
  params_.seed = options_.seed + static_cast<std::uint64_t>(micro) * 0x9E3779B97F4A7C15u;  // other draws for every micro-batch
  return run(micro == 0 ? first_ : more_, tokens, targets);
}

double TrainStep::update(double lr, std::int64_t valid_tokens) {
  require(valid_tokens > 0, "train", "the batch holds no target to learn from");
  const InStage stage(observer_, Stage::update);
  params_.lr = static_cast<float>(lr);
  params_.grad_scale = 1.0f / static_cast<float>(valid_tokens);
  params_.skip = 0;
  run(*update_);
  stream_.pull_params();
  return params_.grad_norm;
}

double TrainStep::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  const InStage stage(observer_, Stage::evaluate);
  return run(eval_, tokens, targets);
}

std::string TrainStep::explain_non_finite() {
  for (const auto& p : model_.parameters())
    if (!all_finite(stream_, p.value)) return "the weight \"" + p.name + "\"";
  if (last_)
    if (auto found = first_non_finite(*last_->exe, stream_)) return *found;
  for (const auto& p : model_.parameters())
    if (!all_finite(stream_, p.gradient)) return "the gradient of \"" + p.name + "\"";
  return "the global gradient norm, whose squares overflow";
}

std::vector<const Executable*> TrainStep::programs(std::int64_t micro_batches) const {
  std::vector<const Executable*> list{&*first_.exe};
  for (std::int64_t i = 1; i < micro_batches; ++i) list.push_back(&*more_.exe);
  list.push_back(&*update_);
  return list;
}

std::vector<io::NamedTensor> TrainStep::weights() const {
  std::vector<io::NamedTensor> list;
  for (const auto& p : model_.parameters()) list.push_back({p.name, p.host});
  return list;
}

std::vector<io::NamedTensor> TrainStep::optimizer_state() const {
  std::vector<io::NamedTensor> list;
  // The same place in the host's block.
  const auto host = [&](const Tensor& t) {
    return host_moments_.bytes() ? Tensor(host_moments_.data() + (static_cast<std::byte*>(t.data()) - moments_.data()), t.spec()) : t;
  };
  for (std::size_t i = 0; i < state_.size(); ++i) {
    list.push_back({model_.parameters()[i].name + ".m", host(state_[i].first)});
    list.push_back({model_.parameters()[i].name + ".v", host(state_[i].second)});
  }
  return list;
}

void TrainStep::fetch() {
  model_.fetch(stream_);
  if (host_moments_.bytes()) copy(stream_, bytes_of(host_moments_), bytes_of(moments_));
}

void TrainStep::store() {
  model_.store(stream_);
  if (host_moments_.bytes()) copy(stream_, bytes_of(moments_), bytes_of(host_moments_));
  stream_.synchronize();
}

}  // namespace hpcdl::train
