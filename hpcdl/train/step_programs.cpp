#include "hpcdl/train/step_programs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/parallel/update.h"

namespace hpcdl::train {

StepPrograms::StepPrograms(models::Trainable& model, const StepOptions& options, Stream& s)
    : model_(model), options_(options), device_(s.device()) {
  if (model_.device() != device_) model_.to_device(s);
  options_.forward.part = options_.data.rank();
  if (options_.sync_batch_norm && options_.data.size() > 1) {
    shared_batch_ = std::make_unique<parallel::GroupAxis>(options_.data);
    options_.forward.shared_batch = shared_batch_->axis("batch norm");
  }
  if (device_.is_cuda() && !model_.described()) {  // the first collective would do this, but it may be under capture
    options_.data.connect(device_);
    if (const auto* shared = model_.sharing()) parallel::group_of(shared->axis).connect(device_);
  }
  if (options_.data.size() > 1) place_gradients();
  else model_.own_gradients();
  const DType products = options_.autocast ? options_.autocast->product : options_.forward.compute;
  if (products != DType::f32 && options_.copies.value_or(device_.is_cuda())) {
    model_.keep_copies(products);
    model_.round_copies(s);
  }
  optimizer_.emplace(model_.state(), options_.optimizer);
  if (!options_.scaler) return;
  for (const auto& input : inputs())
    if (input.role == SlotRole::targets) options_.scaler->terms = input.spec.size();
  if (model_.described()) scaler_.emplace(GradScaler::described(*options_.scaler));
  else scaler_.emplace(*options_.scaler, device_);
}

StepPrograms::~StepPrograms() {
  if (gradients_) model_.forget_gradients();
}

/// Records a pass and discards it, to learn in which order gradients become ready; that order decides where they lie.
void StepPrograms::place_gradients() {
  std::vector<parallel::ReadyGradient> order;
  std::set<std::string, std::less<>> ready;
  model_.own_gradients();  // an earlier step may have moved them
  Graph g(graph_options(Write::overwrite, Kind::alone));
  g.on_gradient([&](Graph&, const std::string& name, const Var& gradient) {
    if (ready.insert(name).second) order.push_back({name, gradient.spec()});
  });
  record(g, Kind::alone);
  for (const auto& p : model_.parameters())  // gradients that no record writes
    if (ready.insert(p.name).second) order.push_back({p.name, p.memory.spec()});
  gradients_ = std::make_unique<parallel::Gradients>(options_.data, std::move(order), options_.reduce, device_);
  model_.place_gradients([&](const StateEntry& p) { return gradients_->gradient(p.name); });
}

nn::ForwardOptions StepPrograms::evaluation_options() const {
  auto o = options_.forward;
  o.dropout = o.label_smoothing = 0;
  o.recompute = o.training = o.mixup = false;
  return o;
}

nn::ForwardOptions StepPrograms::forward_options(Kind kind) const {
  const bool inference = kind == Kind::inference;
  auto o = inference ? evaluation_options() : options_.forward;
  o.training = !inference;
  o.fused_mlp = !inference && (o.fused_mlp || device_.is_cuda());
  o.head_gradient_now = !inference && (o.head_gradient_now || device_.is_cuda());
  return o;
}

Graph::Options StepPrograms::graph_options(Write write, Kind kind) const {
  return {.parameter_gradients = write,
          .weights_beside = options_.weights_beside && device_.is_cuda(),
          .inference = kind == Kind::inference,
          .numerics = device_.is_cuda() ? options_.numerics : Numerics{}};
}

StepPrograms::PassPtr StepPrograms::pass(Write write, Kind kind) const {
  const auto key = fmt::format("pass {} {} {}", static_cast<int>(write), static_cast<int>(kind),
                               forward_options(kind).key());  // everything else stays unchanged while this lives
  return passes_.pass(key, [&] {
    Graph g(graph_options(write, kind));
    auto [inputs, outputs] = record(g, kind);
    return Pass::of(g, std::move(inputs), std::move(outputs));
  });
}

StepPrograms::Recorded StepPrograms::record(Graph& g, Kind kind) const {
  const auto forward = forward_options(kind);
  Recorded r;
  for (const auto& input : model_.inputs(options_.batch, options_.length, forward))
    r.inputs.push_back(g.input(input.name, input.spec, input.role));
  models::PassOutputs out;
  {
    const Graph::Autocast types(g, options_.autocast);
    out = model_.pass(g, r.inputs, forward);
  }
  r.outputs.push_back(g.keep(out.loss));
  if (out.correct) r.outputs.push_back(g.keep(out.correct));
  const auto backward = [&] {
    if (scaler_) scaler_->backward(g, out.loss);
    else g.backward(out.loss);
  };
  if (kind == Kind::reducing) gradients_->record(g, backward);
  else if (kind != Kind::inference) backward();
  return r;
}

StepPrograms::PassPtr StepPrograms::update() const {
  return passes_.pass("update", [&] {
    Graph g;
    record_update(g);
    return Pass::of(g);
  });
}

void StepPrograms::record_update(Graph& g) const {
  // Gradients by what each rank along tp holds: the whole gradient, its part, or an addend.
  std::vector<Var> whole, parts, addends;
  for (const auto& p : model_.parameters()) {
    const Var gradient = g.constant(p.gradient->name, p.gradient->memory);
    (p.part.all() ? whole : parts).push_back(gradient);
    if (p.param->partial_gradient) addends.push_back(gradient);
  }
  const auto update = [&] {
    const GradNorm::Args norm{.max_norm = options_.clip, .skip_nonfinite = true};
    if (const auto* shared = model_.sharing()) {
      parallel::record_sum_gradients(g, addends, shared->axis);
      parallel::record_grad_norm(g, whole, parts, norm, shared->axis);
    } else {
      record_grad_norm(g, whole, norm);
    }
    optimizer_->record(g);
  };
  if (scaler_) scaler_->around(g, update);
  else update();
}

}  // namespace hpcdl::train
