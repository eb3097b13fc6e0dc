#include "hpcdl/train/train_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "hpcdl/comm/device_group.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/upload.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/update.h"
#include "hpcdl/train/non_finite.h"

namespace hpcdl::train {

namespace {

std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

Tensor bytes_of(const Buffer& b) { return Tensor(b.data(), {{b.bytes()}, DType::u8}, b.device()); }

}  // namespace

TrainStep::TrainStep(models::LanguageModel& model, Pool& pool, const StepOptions& options, Device device)
    : model_(model), options_(options), stream_(device, pool, &params_) {
  if (model_.device() != device) model_.to_device(stream_);
  options_.forward.part = options_.data.rank();
  if (options_.data.size() > 1) place_gradients();
  if (options_.forward.compute != DType::f32 && options_.copies.value_or(device.is_cuda())) {
    model_.keep_copies(options_.forward.compute);
    model_.round_copies(stream_);
  }
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
  if (options_.loss_scale) {
    scale_ = OwnedTensor(LossScale::kScale, device), counts_ = OwnedTensor(LossScale::kCounts, device);
    set_scale_state({options_.init_scale, {}});
  }
  record_programs();
}

void TrainStep::set_scale_state(const ScaleState& state) {
  if (!options_.loss_scale) return;
  require(state.scale > 0 && std::isfinite(state.scale), "train", "expected a loss scale above 0, got {}", state.scale);
  scale_now_ = state;
  copy(stream_, scale_.tensor, View(&state.scale, LossScale::kScale));
  copy(stream_, counts_.tensor, View(&state.counts, LossScale::kCounts));
  stream_.synchronize();
}

/// A pass that is recorded and thrown away tells in which order gradients become ready, and so where they go.
void TrainStep::place_gradients() {
  std::vector<parallel::ReadyGradient> order;
  std::set<std::string, std::less<>> ready;
  Pass dry;
  record_pass(dry, Write::overwrite, Kind::alone, [&](Graph&, const std::string& name, const Var& gradient) {
    if (ready.insert(name).second) order.push_back({name, gradient.spec()});
  });
  for (const auto& p : model_.parameters())  // those that no record touches
    if (ready.insert(p.name).second) order.push_back({p.name, p.value.spec()});
  gradients_ = std::make_unique<parallel::Gradients>(options_.data, std::move(order), options_.reduce, stream_.device());
  model_.place_gradients([&](const models::NamedParameter& p) { return gradients_->gradient(p.name); });
}

void TrainStep::record_programs() {
  const auto reducing = gradients_ ? Kind::reducing : Kind::alone;
  const bool apart = gradients_ && options_.accumulate;  // the last micro-batch has a program of its own
  std::vector<std::pair<std::optional<Executable>*, Program>> programs;
  programs.emplace_back(&first_.exe, record_pass(first_, Write::overwrite, apart ? Kind::alone : reducing));
  if (options_.accumulate) programs.emplace_back(&more_.exe, record_pass(more_, Write::accumulate, Kind::alone));
  if (apart) programs.emplace_back(&last_.exe, record_pass(last_, Write::accumulate, Kind::reducing));
  programs.emplace_back(&eval_.exe, record_pass(eval_, Write::overwrite, Kind::inference));
  programs.emplace_back(&update_, record_update());
  std::int64_t bytes = 0;
  for (const auto& [exe, program] : programs) bytes = std::max(bytes, plan(program).arena_bytes);
  arena_ = std::make_shared<Buffer>(bytes, stream_.device());
  for (auto& [exe, program] : programs) exe->emplace(std::move(program), arena_, stream_.device());
}

Program TrainStep::record_pass(Pass& pass, Write write, Kind kind, Graph::GradientHook hook) const {
  const bool inference = kind == Kind::inference;
  Graph g({.parameter_gradients = write, .weights_beside = options_.weights_beside && stream_.device().is_cuda(), .inference = inference});
  const Spec spec{{options_.batch, options_.length}, DType::i32};
  pass.tokens = g.input("tokens", spec);
  pass.targets = g.input("targets", spec);
  auto forward = options_.forward;
  if (inference) forward.dropout = 0, forward.recompute = false;
  forward.fused_mlp = !inference && (forward.fused_mlp || stream_.device().is_cuda());
  forward.head_gradient_now = !inference && (forward.head_gradient_now || stream_.device().is_cuda());
  pass.loss = g.keep(model_.loss(g, pass.tokens, pass.targets, forward));
  if (hook) g.on_gradient(std::move(hook));
  const auto backward = [&] {
    if (options_.loss_scale) g.backward(pass.loss, g.constant("loss_scale", scale_.tensor));
    else g.backward(pass.loss);
  };
  if (kind == Kind::reducing) gradients_->record(g, backward);
  else if (!inference) backward();
  return g.finish();
}

Program TrainStep::record_update() {
  Graph g;
  std::vector<Var> gradients, parts, addends;  // that all ranks along tp have, of which each has its own, of which each has an addend
  std::vector<AdamWTensor<Var>> tensors;
  for (std::size_t i = 0; i < state_.size(); ++i) {
    const auto& p = model_.parameters()[i];
    const Var gradient = g.constant(p.name + ".grad", p.gradient);
    (p.shard.all() ? gradients : parts).push_back(gradient);
    if (p.partial_gradient) addends.push_back(gradient);
    tensors.push_back({.value = g.constant(p.name, p.value),
                       .gradient = gradient,
                       .m = g.constant(p.name + ".m", state_[i].first),
                       .v = g.constant(p.name + ".v", state_[i].second),
                       .copy = p.copy ? g.constant(p.name + ".copy", p.copy) : Var(),
                       .decay = p.decay});
  }
  const auto update = [&] {
    const GradNorm::Args norm{.max_norm = options_.clip, .skip_nonfinite = true};
    if (const auto* shared = model_.sharing()) {
      parallel::record_sum_gradients(g, addends, shared->peers());
      parallel::record_grad_norm(g, gradients, parts, norm, shared->peers());
    } else {
      record_grad_norm(g, gradients, norm);
    }
    record_adamw(g, tensors, options_.adamw);
  };
  if (options_.loss_scale) record_loss_scale(g, g.constant("loss_scale", scale_.tensor), g.constant("loss_scale.counts", counts_.tensor), *options_.loss_scale, update);
  else update();
  return g.finish();
}

void TrainStep::run(Executable& exe) {
  if (observer_) observer_->run(exe, stream_);
  else exe.run(stream_);
  if (!stream_.device().is_cuda() || std::find(warm_.begin(), warm_.end(), &exe) != warm_.end()) return;
  exe.capture(stream_);  // not before everything that loads lazily has been loaded
  warm_.push_back(&exe);
}

/// Takes a copy of a batch; micro-batches keep theirs until the next step, and explain_non_finite() finds them there.
TrainStep::Staged& TrainStep::stage(std::int64_t micro, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  const auto size = options_.batch * options_.length;
  require(std::ssize(tokens) == size && std::ssize(targets) == size, "train", "expected a batch of {} tokens, got {} and {}", size, tokens.size(), targets.size());
  require(micro >= 0 && micro <= std::ssize(staged_), "train", "micro-batch {} follows micro-batch {}", micro, staged_.size());
  if (micro < micros_ && !waited_) stream_.synchronize();  // its copy may still be queued
  const auto bytes = size * std::int64_t{sizeof(std::int32_t)};
  if (micro == std::ssize(staged_)) staged_.push_back({Pinned(2 * bytes + std::int64_t{sizeof(float)}, stream_.device()), bytes});
  auto& batch = staged_[static_cast<std::size_t>(micro)];
  std::memcpy(batch.tokens(), tokens.data(), tokens.size_bytes());
  std::memcpy(batch.targets(), targets.data(), targets.size_bytes());
  return batch;
}

void TrainStep::fill(Pass& pass, const Staged& batch) {
  const Tensor tokens = pass.exe->tensor(pass.tokens), targets = pass.exe->tensor(pass.targets);
  copy(stream_, tokens, View(batch.tokens(), tokens.spec()));
  copy(stream_, targets, View(batch.targets(), targets.spec()));
}

void TrainStep::queue(Pass& pass, const Staged& batch) {
  fill(pass, batch);
  run(*pass.exe);
  copy_to_pinned(stream_, &batch.loss(), pass.exe->tensor(pass.loss));
  waited_ = false;
}

/// Parameters and program of one micro-batch.
TrainStep::Pass& TrainStep::prepare(std::int64_t step, std::int64_t micro, bool last) {
  params_.step = step;
  params_.seed = options_.seed + static_cast<std::uint64_t>(micro) * 0x9E3779B97F4A7C15u;  // other draws for every micro-batch
  return micro == 0 ? first_ : last && last_.exe ? last_ : more_;
}

void TrainStep::accumulate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t step,
                           std::int64_t micro, bool last) {
  const InStage stage_of_run(observer_, Stage::pass);
  require(micro == 0 || options_.accumulate, "train", "this step was made for one micro-batch");
  require(!gradients_ || micro > 0 || last != options_.accumulate, "train", "the last micro-batch is told by `last`, and with `accumulate` it is not the first");
  const auto& batch = stage(micro, tokens, targets);
  queue(prepare(step, micro, last), batch);
  step_ = step, micros_ = micro + 1;
}

double TrainStep::loss() {
  stream_.synchronize();
  waited_ = true;
  double sum = 0;
  for (std::int64_t i = 0; i < micros_; ++i) sum += static_cast<double>(staged_[static_cast<std::size_t>(i)].loss());
  return sum;
}

StepResult TrainStep::update(double lr, std::int64_t valid_tokens) {
  const InStage stage_of_run(observer_, Stage::update);
  // A GPU is still at work, and its loss not yet here.
  const bool at_once = !stream_.device().is_cuda();
  const double mine[] = {static_cast<double>(valid_tokens), at_once ? loss() : 0};
  const auto all = parallel::sum_over_ranks(options_.data, mine);
  require(all[0] > 0, "train", "the batch holds no target to learn from");
  params_.step = step_;
  params_.lr = static_cast<float>(lr);
  params_.grad_scale = 1.0f / static_cast<float>(all[0]);
  params_.skip = 0;
  run(*update_);
  if (gradients_) comm::synchronize(options_.data, stream_);  // a GPU that waits for a lost peer has a deadline, too
  if (options_.loss_scale) {
    copy(stream_, Tensor(&scale_now_.scale, LossScale::kScale), scale_.tensor);
    copy(stream_, Tensor(&scale_now_.counts, LossScale::kCounts), counts_.tensor);
  }
  stream_.pull_params();
  return {at_once ? all[1] : parallel::sum_over_ranks(options_.data, loss()), static_cast<std::int64_t>(all[0]), params_.grad_norm};
}

double TrainStep::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  const InStage stage_of_run(observer_, Stage::evaluate);
  const auto& batch = stage(0, tokens, targets);
  queue(eval_, batch);
  stream_.synchronize();
  waited_ = true;
  return batch.loss();
}

std::string TrainStep::explain_non_finite() {
  for (const auto& p : model_.parameters())
    if (!all_finite(stream_, p.value)) return "the weight \"" + p.name + "\"";
  if (gradients_) {  // ranks stop at different records: programs that exchange nothing
    for (auto* pass : {&first_, &more_, &last_})
      if (pass->exe) pass->exe.emplace(record_pass(*pass, pass == &first_ ? Write::overwrite : Write::accumulate, Kind::alone), arena_, stream_.device());
  }
  // Ranks that share layers cannot run a pass each for itself.
  for (std::int64_t micro = 0; micro < micros_ && !model_.sharing(); ++micro) {
    auto& pass = prepare(step_, micro, micro + 1 == micros_);
    fill(pass, staged_[static_cast<std::size_t>(micro)]);
    if (auto found = first_non_finite(*pass.exe, stream_)) return *found;
  }
  for (const auto& p : model_.parameters())
    if (!all_finite(stream_, p.gradient)) return "the gradient of \"" + p.name + "\"";
  return gradients_ ? "none of this rank's: that of another, or the global gradient norm, whose squares overflow" : "the global gradient norm, whose squares overflow";
}

std::vector<const Executable*> TrainStep::programs(std::int64_t micro_batches) const {
  std::vector<const Executable*> list{&*first_.exe};
  for (std::int64_t i = 1; i < micro_batches; ++i) list.push_back(i + 1 == micro_batches && last_.exe ? &*last_.exe : &*more_.exe);
  list.push_back(&*update_);
  return list;
}

std::vector<io::NamedTensor> TrainStep::weights() const {
  std::vector<io::NamedTensor> list;
  for (const auto& p : model_.parameters()) list.push_back({p.name, p.host, p.shard});
  return list;
}

std::vector<io::NamedTensor> TrainStep::optimizer_state() const {
  std::vector<io::NamedTensor> list;
  // The same place in the host's block.
  const auto host = [&](const Tensor& t) {
    return host_moments_.bytes() ? Tensor(host_moments_.data() + (static_cast<std::byte*>(t.data()) - moments_.data()), t.spec()) : t;
  };
  for (std::size_t i = 0; i < state_.size(); ++i) {
    const auto& p = model_.parameters()[i];
    list.push_back({p.name + ".m", host(state_[i].first), p.shard});
    list.push_back({p.name + ".v", host(state_[i].second), p.shard});
  }
  return list;
}

void TrainStep::fetch() {
  model_.fetch(stream_);
  if (host_moments_.bytes()) copy(stream_, bytes_of(host_moments_), bytes_of(moments_));
}

void TrainStep::store() {
  model_.store(stream_);
  model_.round_copies(stream_);
  if (host_moments_.bytes()) {
    io::Upload upload;
    upload.add(bytes_of(moments_), bytes_of(host_moments_));
    upload.run(stream_);
  }
  stream_.synchronize();
}

}  // namespace hpcdl::train
