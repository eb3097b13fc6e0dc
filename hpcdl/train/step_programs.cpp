#include "hpcdl/train/step_programs.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string_view>
#include <utility>

#include "hpcdl/nn/fp8.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/ops/fp8_amax/fp8_amax.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/parallel/exchange_order.h"
#include "hpcdl/parallel/unit.h"
#include "hpcdl/parallel/update.h"
#include "hpcdl/parallel/uses.h"

namespace hpcdl::train {
namespace {

constexpr int kReadAhead = 1;  // parts of the model by which weights come before they are needed
/// Parts of the model for which the memory of an activation stays while it is copied to the host: the GPU need not wait for
/// a link that is slower for a moment.
constexpr std::size_t kCopiesBehind = 1;

/// What programs call the weights of the first `count` blocks of the model.
std::set<std::string, std::less<>> resident_state(const StateTable& table, int count) {
  const auto is_block = [](std::string_view owner) {
    return !owner.empty() && owner.back() >= '0' && owner.back() <= '9';
  };
  std::set<std::string, std::less<>> names;
  std::set<std::string, std::less<>> blocks;
  for (const auto entries : {table.parameters(), table.frozen()})
    for (const auto& e : entries) {
      const std::string owner(parallel::unit_name(e.param->name));
      if (!is_block(owner) || (std::ssize(blocks) >= count && !blocks.contains(owner))) continue;
      blocks.insert(owner), names.insert(e.name);
    }
  return names;
}

}  // namespace

StepPrograms::StepPrograms(models::Trainable& model, const StepOptions& options, Stream& s)
    : model_(model), options_(options), device_(s.device()) {
  options_.forward.part = options_.data.rank() / options_.context.size();
  if (options_.context.size() > 1) {
    context_ = std::make_unique<parallel::ContextParallel>(options_.context, options_.context_mode);
    options_.forward.context = context_.get();
  }
  if (options_.experts.size() > 1) divide_experts();
  if (options_.invariant > 0) fix_order_of_sums();
  if (options_.share_batch && options_.data.size() > 1) {
    shared_batch_ = std::make_unique<parallel::GroupAxis>(options_.data);
    options_.forward.shared_batch = shared_batch_->axis("batch");
  }
  const DType products = options_.autocast ? options_.autocast->product : options_.forward.compute;
  const bool copies = products != DType::f32 && options_.copies.value_or(device_.is_cuda());
  model_.own_gradients();  // an earlier step may have moved them
  if (options_.stages.group.size() > 1) join_stages(copies ? products : DType::none);
  require(stages_ || model_.state().missing().empty(), "train",
          "this rank has only some layers of the model: open the model again");
  if (options_.data.size() > 1) join_ranks(copies ? products : DType::none);
  else if (model_.state().divided()) model_.divide({});
  model_.fill();
  const bool moves = model_.device() != device_ || !device_.is_cuda();
  require(moves || !options_.parameters.on_host, "train",
          "the model is already on the GPU: open it again to keep its weights on the host");
  if (moves) keep_on_host(copies ? products : DType::none);
  if (model_.device() != device_) model_.to_device(s);
  if (device_.is_cuda() && !model_.described()) {  // the first collective would do this, but it may be under capture
    options_.data.connect(device_);
    options_.context.connect(device_);
    options_.experts.connect(device_);
    options_.same_experts.connect(device_);
    if (const auto* shared = model_.sharing()) parallel::group_of(shared->axis).connect(device_);
    if (stages_) stages_->connect(device_);
  }
  if (ranks_) ranks_->place_gradients();
  if (options_.invariant > 0) tree_.emplace(model_.parameters(), options_.invariant, device_, model_.described());
  if (copies) {
    model_.keep_copies(products);
    model_.round_copies(s);
  }
  move_activations();
  move_from_host();
  move_to_disk();
  optimizer_.emplace(model_.state(), options_.optimizer, options_.optimizer_place, s.pool());
  if (!options_.scaler) return;
  for (const auto& input : inputs())
    if (input.role == SlotRole::targets) options_.scaler->terms = input.spec.size();
  if (model_.described()) scaler_.emplace(GradScaler::described(*options_.scaler));
  else scaler_.emplace(*options_.scaler, device_);
}

StepPrograms::~StepPrograms() = default;

/// Records a pass and discards it, to learn which layers there are. Afterwards the model has memory for those of this
/// rank alone; the others can still be recorded.
void StepPrograms::join_stages(DType copies) {
  if (copies != DType::none) model_.keep_copies(copies, false);
  Graph g(graph_options(Write::overwrite, Kind::alone));
  record(g, Kind::alone);
  stages_ = std::make_unique<Stages>(options_.stages, model_.state(), g.program());
}

/// Records a pass and discards it, to learn in which order gradients become ready and what the program reads of the
/// weights: that decides where they lie.
void StepPrograms::join_ranks(DType copies) {
  if (copies != DType::none) model_.keep_copies(copies, false);
  Graph g(graph_options(Write::overwrite, Kind::alone));
  record(g, Kind::alone);
  ranks_ = std::make_unique<parallel::DataParallel>(
      options_.data, model_, g.program(),
      parallel::DataParallelOptions{.reduce = options_.reduce,
                                    .zero = options_.zero,
                                    .span = options_.span,
                                    .gather_ahead = options_.gather_ahead,
                                    .wire_weights = options_.wire_weights,
                                    .wire_gradients = options_.wire_gradients,
                                    .accumulate = options_.accumulate || stages_ || options_.invariant > 0,
                                    .copies = copies,
                                    .same_experts = options_.same_experts});
}

void StepPrograms::divide_experts() {
  const auto ranks = options_.experts.size(), all = options_.data.size();
  if (device_.is_cuda() && !model_.described() && ranks != all)
    fail_usage("train",
               "parallel.ep = {}: on GPUs, experts have been divided only among all {} ranks of dp x cp: set "
               "parallel.ep = {}, or 1, or train.device = \"cpu\"",
               ranks, all, all);
  options_.forward.expert_capacity = options_.capacity;
  if (options_.capacity > 0) dropped_.emplace(device_, model_.described());
}

/// Micro-batches draw what they would draw on one rank, and ranks add in the order of the tree.
void StepPrograms::fix_order_of_sums() {
  const auto ranks = options_.data.size();
  require(
      std::has_single_bit(static_cast<unsigned>(ranks)), "train",
      "expected a power of two of ranks that share a batch, got {}: with parallel.invariant, set parallel.dp to one",
      ranks);
  require(!device_.is_cuda() || ranks <= 2, "train",
          "parallel.invariant: more than two GPUs add in another order, got {}: set parallel.dp = 2, or train.device = "
          "\"cpu\"",
          ranks);
  options_.forward.part = 0;
  if (!device_.is_cuda()) options_.reduce.algorithm = comm::Algorithm::halving;
}

/// Weights that the options ask for, and with moments on the host also the values of which programs read the copies
/// alone, if this rank has them whole.
void StepPrograms::keep_on_host(DType copies) {
  const auto& [on_host, folder, resident] = options_.parameters;
  const auto& moments = options_.optimizer_place;
  require(!on_host || ((moments.on_host || moments.folder) && !ranks_ && !stages_ && !model_.sharing()), "train",
          "weights on the host need moments there or on a disk, and one rank that has the whole model");
  StateTable::Choice masters, all;
  if (on_host)
    all = [stay = resident_state(model_.state(), resident)](const StateEntry& e) { return !stay.contains(e.name); };
  if (moments.on_host && copies != DType::none && !model_.state().divided()) {
    model_.keep_copies(copies, false);
    Graph g(graph_options(Write::overwrite, Kind::alone));
    record(g, Kind::alone);
    masters = [read = parallel::touched_state(g.program())](const StateEntry& e) {
      return e.param->multiplied && !read.contains(e.name);
    };
  }
  model_.keep_on_host(masters, all);
}

/// Also of a model that an earlier step has left on the host.
void StepPrograms::move_from_host() {
  if (std::ranges::none_of(model_.parameters(), &StateEntry::all_on_host)) return;
  parameters_ = std::make_unique<offload::ParameterMoves>(model_.state(), kReadAhead);
  gradients_ = std::make_unique<offload::GradientMoves>(model_.state(), device_);
}

void StepPrograms::move_activations() {
  const auto& [on_host, folder, share, smallest] = options_.activations;
  if (!on_host && !folder) return;
  require(!stages_ && !(on_host && folder), "train",
          "activations wait in one place, on the host or on a disk, and without pipelines");
  require(!folder || !device_.is_cuda(), "train", "activations on a disk are for CPUs");
  std::unique_ptr<offload::Stash> stash;
  if (folder) stash = std::make_unique<offload::DiskStash>(*folder, model_.described());
  else stash = std::make_unique<offload::HostStash>(device_, model_.described());
  activations_ = std::make_unique<offload::ActivationMoves>(
      std::move(stash),
      offload::ActivationOptions{.share = share, .behind = on_host ? kCopiesBehind : 0, .smallest = smallest});
}

/// Values that the options ask for, and with moments on a disk also those of which programs read the copies alone.
void StepPrograms::move_to_disk() {
  const auto& disk = options_.parameters;
  const auto& folder = options_.optimizer_place.folder;
  require(!disk.folder || (!device_.is_cuda() && !stages_ && !disk.on_host), "train",
          "weights on a disk are for CPUs and without pipelines");
  const bool masters = folder && !device_.is_cuda() && !model_.state().divided() && !model_.parameters().empty() &&
                       std::ranges::any_of(model_.parameters(), [](const auto& e) { return e.copy != nullptr; });
  if (!disk.folder && !masters) {
    const auto& table = model_.state();
    if (table.value_file() || table.frozen_file())  // of an earlier step
      model_.move_to_disk({}, [](const StateEntry&) { return false; });
    return;
  }
  std::set<std::string, std::less<>> read;  // which stays where it is
  if (disk.folder) {
    read = resident_state(model_.state(), disk.resident);
  } else {
    Graph g(graph_options(Write::overwrite, Kind::alone));
    record(g, Kind::alone);
    read = parallel::touched_state(g.program());
  }
  model_.move_to_disk(disk.folder.value_or(*folder), [&](const StateEntry& e) {
    return !read.contains(e.name) && (disk.folder || e.role == StateRole::value);
  });
  if (disk.folder) parameters_ = std::make_unique<offload::ParameterMoves>(model_.state(), kReadAhead);
}

std::vector<const io::ScratchFile*> StepPrograms::files() const {
  std::vector<const io::ScratchFile*> list{optimizer_->file(), model_.state().value_file().get(),
                                           model_.state().frozen_file().get()};
  if (activations_)
    for (const auto* file : activations_->files()) list.push_back(file);
  std::erase(list, nullptr);
  return list;
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
  const bool together = !inference && options_.stages.group.size() == 1;  // gradients of weights with others
  o.fused_mlp = together && (o.fused_mlp || device_.is_cuda());
  o.head_gradient_now = together && (o.head_gradient_now || device_.is_cuda());
  return o;
}

Graph::Options StepPrograms::graph_options(Write write, Kind kind) const {
  return {.parameter_gradients = write,
          .weights_beside = options_.stages.group.size() > 1 || (options_.weights_beside && device_.is_cuda()),
          .inference = kind == Kind::inference,
          .numerics = device_.is_cuda() ? options_.numerics : Numerics{}};
}

StepPrograms::PassPtr StepPrograms::pass(Write write, Kind kind) const {
  const auto key = fmt::format("pass {} {} {}", static_cast<int>(write), static_cast<int>(kind),
                               forward_options(kind).key());  // everything else stays unchanged while this lives
  return passes_.pass(key, [&] {
    Graph g(graph_options(write, kind));
    auto [inputs, outputs] = record(g, kind, write);
    auto [program, bindings] = moved(exchanged(g.finish(), write, kind), kind);
    return Pass{planned(std::move(program), std::move(inputs), std::move(outputs)), std::move(bindings)};
  });
}

/// The pass with the exchanges of its kind.
Recording StepPrograms::exchanged(Recording pass, Write write, Kind kind) const {
  if (!ranks_) return pass;
  if (kind == Kind::reducing) pass = ranks_->reduced(std::move(pass));
  else if (kind != Kind::inference) pass = ranks_->alone(std::move(pass));
  const bool first = kind == Kind::gathering || (kind == Kind::reducing && write == Write::overwrite);
  return sharded() || (first && divided()) ? ranks_->gathered(std::move(pass)) : pass;
}

/// The pass with what comes from elsewhere and goes there.
Recording StepPrograms::moved(Recording pass, Kind kind) const {
  if (parameters_) pass = parameters_->moved(std::move(pass));
  if (gradients_) pass = gradients_->moved(std::move(pass));
  return activations_ && kind != Kind::inference ? activations_->moved(std::move(pass)) : pass;
}

StepPrograms::PassPtr StepPrograms::gather() const {
  return passes_.pass("gather", [&] {
    auto [program, bindings] = ranks_->gathered({});
    return Pass{planned(std::move(program)), std::move(bindings)};
  });
}

pipe::WholePass StepPrograms::whole_pass(Write write, Kind kind, Bindings& bindings) const {
  Graph g(graph_options(write, kind));
  auto [inputs, outputs] = record(g, kind, write);
  auto recording = g.finish();
  bindings = std::move(recording.bindings);
  return {std::move(recording.program), std::move(inputs), std::move(outputs)};
}

/// What is done with each program of a stage: if no rank keeps values whole, it gathers those that it reads.
pipe::EditPart StepPrograms::gathering_parts(Bindings& bindings) const {
  if (!sharded()) return nullptr;
  return [&](Program part) {
    auto gathered = ranks_->gathered({std::move(part), std::move(bindings)});
    bindings = std::move(gathered.bindings);
    return std::move(gathered.program);
  };
}

StagePasses StepPrograms::training_stages() const {
  StagePasses passes;
  const auto first = whole_pass(Write::overwrite, Kind::alone, passes.bindings),
             more = whole_pass(Write::accumulate, Kind::alone, passes.bindings);
  const auto edit = gathering_parts(passes.bindings);
  passes.parts = pipe::training_parts(first, more, stages_->partition(), stages_->backward(), edit);
  passes.vocabulary = pipe::vocabulary_training_parts(first, more, stages_->partition(), stages_->backward(), edit);
  return passes;
}

StagePasses StepPrograms::evaluation_stages() const {
  StagePasses passes;
  const auto pass = whole_pass(Write::overwrite, Kind::inference, passes.bindings);
  const auto edit = gathering_parts(passes.bindings);
  passes.parts = pipe::inference_parts(pass, stages_->partition(), edit);
  passes.vocabulary = pipe::vocabulary_inference_parts(pass, stages_->partition(), edit);
  return passes;
}

StepPrograms::PassPtr StepPrograms::clear() const {
  if (!stages_ || stages_->added_to().empty()) return nullptr;
  return passes_.pass("clear", [&] {
    Graph g;
    for (const auto* e : stages_->added_to()) {
      const Operand gradient[] = {write_operand(g.constant(e->name, e->memory))};
      emit_op<Fill>(g, gradient, {}, Phase::backward);
    }
    return Pass::of(g);
  });
}

StepPrograms::PassPtr StepPrograms::reduce() const {
  if ((!stages_ && !tree_) || !ranks_) return nullptr;
  return passes_.pass("reduce", [&] {
    auto [program, bindings] = ranks_->reduced({});
    return Pass{planned(std::move(program)), std::move(bindings)};
  });
}

StepPrograms::PassPtr StepPrograms::add(int sums) const {
  return passes_.pass(fmt::format("add {}", sums), [&] {
    Graph g;
    tree_->record(g, sums);
    return Pass::of(g);
  });
}

StepPrograms::Recorded StepPrograms::record(Graph& g, Kind kind, Write write) const {
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
  if (kind == Kind::inference) return r;
  if (dropped_) dropped_->record(g, out.dropped, write);
  if (scaler_) scaler_->backward(g, out.loss);
  else g.backward(out.loss);
  return r;
}

StepPrograms::PassPtr StepPrograms::update() const {
  return passes_.pass("update", [&] {
    Graph g;
    record_update(g);
    return Pass::of(g);
  });
}

StepPrograms::PassPtr StepPrograms::host_update() const {
  if (!updates_on_host()) return nullptr;
  return passes_.pass("host update", [&] {
    Graph g;
    optimizer_->record(g);
    return Pass::of(g);
  });
}

void StepPrograms::expect_same_exchanges() const {
  std::vector<std::pair<std::string, PassPtr>> passes;
  if (!stages_) {
    passes.emplace_back("first micro-batch", first());
    if (has_more()) passes.emplace_back("further micro-batches", more());
    if (apart()) passes.emplace_back("last micro-batch", last());
    passes.emplace_back("evaluation", evaluation());
  }
  if (auto sums = reduce()) passes.emplace_back("sums of gradients", std::move(sums));
  passes.emplace_back("update", update());
  if (gathers_once()) passes.emplace_back("gather", gather());
  std::vector<parallel::NamedProgram> programs;
  for (const auto& [name, pass] : passes) programs.push_back({name, &pass->planned->program});
  parallel::expect_agreement(options_.data, parallel::exchange_facts(programs));
  if (const auto* shared = model_.sharing()) {
    const auto& group = parallel::group_of(shared->axis);
    const auto axis = fmt::format("{} of {}", group.name(), group.size());
    parallel::expect_agreement(group, parallel::exchange_facts(programs, axis));
  }
}

void StepPrograms::record_norm(Graph& g, const GradNorm::Args& norm) const {
  if (gradients_) return gradients_->record_norm(g, norm);
  const auto* shared = model_.sharing();
  parallel::NormAxes axes;
  if (shared) axes.tensor = shared->axis;
  const bool by_ranks = divided() || (ranks_ && ranks_->divides_experts());
  if (by_ranks) axes.data = ranks_->axis_of_shares("norm of the gradients");
  if (stages_) axes.stages = stages_->axis("norm of the gradients");
  if (axes.data || axes.stages) {
    auto gradients = by_ranks ? ranks_->gradients(g) : own_gradients(g);
    if (stages_) gradients = stages_->gradients(std::move(gradients));
    return parallel::record_divided_grad_norm(g, gradients, norm, axes);
  }
  // Gradients by what each rank along tp holds: the whole gradient or its part.
  std::vector<Var> whole, parts;
  for (auto& d : own_gradients(g)) (d.part ? parts : whole).push_back(std::move(d.mine));
  if (shared) parallel::record_grad_norm(g, whole, parts, norm, shared->axis);
  else hpcdl::record_grad_norm(g, whole, norm);
}

parallel::DividedGradients StepPrograms::own_gradients(Graph& g) const {
  parallel::DividedGradients list;
  for (const auto& p : model_.parameters())
    list.push_back({.mine = g.constant(p.gradient->name, p.gradient->memory),
                    .pieces = {{0, p.memory.size()}},
                    .part = !p.param->part.all()});
  return list;
}

/// Ranks see different batches and parts of weights, and go on with one history.
void StepPrograms::record_fp8_history(Graph& g) const {
  for (const auto& e : model_.buffers()) {
    if (!nn::is_fp8_history(e.name)) continue;
    const Var history = g.constant(e.name, e.memory);
    const Operand now = update_operand(amax_of_this_step(g, history));
    const auto reduce = [&](const Axis& axis) {
      emit_op<AllReduce>(g, std::span(&now, 1), {axis.with(e.name), true}, Phase::update);
    };
    if (ranks_) reduce(ranks_->axis(e.name));
    if (const auto* shared = model_.sharing()) reduce(shared->axis);
    record_fp8_amax_step(g, history);
  }
}

void StepPrograms::record_update(Graph& g) const {
  std::vector<Var> addends;  // each rank along tp holds one
  for (const auto& p : model_.state().updated())
    if (p.param->partial_gradient && p.gradient->memory.size() > 0)
      addends.push_back(g.constant(p.gradient->name, p.gradient->memory));
  const auto update = [&] {
    if (const auto* shared = model_.sharing()) parallel::record_sum_gradients(g, addends, shared->axis);
    if (stages_) stages_->record_shared_sums(g);
    record_norm(g, {.max_norm = options_.clip, .skip_nonfinite = true});
    if (dropped_ && ranks_) dropped_->record_update(g, ranks_->axis("dropped tokens"));
    record_fp8_history(g);
    if (!updates_on_host()) optimizer_->record(g);
  };
  if (scaler_) scaler_->around(g, update);
  else update();
}

}  // namespace hpcdl::train
