#include "hpcdl/train/train_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "hpcdl/comm/device_group.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/graph/move.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/pipe/lower.h"

namespace hpcdl::train {

namespace {

constexpr std::int64_t kOutputBytes = 64;

std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

TrainStep::TrainStep(models::Trainable& model, Pool& pool, const StepOptions& options, Device device)
    : stream_(device, pool, &params_),
      programs_(model, options, stream_),
      inputs_(programs_.inputs()),
      evaluation_inputs_(programs_.evaluation_inputs()),
      model_(model),
      options_(programs_.options()),
      waiting_(device, pool),
      fetching_(device, pool) {
  require(!model.described(), "train",
          "this model has no memory and can only be recorded: create it with weights to train it");
  if (options_.scaler) scale_now_.scale = options_.scaler->init_scale;
  gathered_ = !programs_.gathers_once();                    // this rank has rounded only its own copies
  if (device.is_cuda()) programs_.expect_same_exchanges();  // its communicators would wait for ever
  if (programs_.stages()) make_stages();
  else make_instances();
}

TrainStep::~TrainStep() { end_pinning(); }

void TrainStep::set_scale_state(const ScaleState& state) {
  if (!scales_loss()) return;
  programs_.scaler()->set_state(stream_, state);
  scale_now_ = state;
}

void TrainStep::save_scale(io::TrainState& to) const {
  if (!scales_loss()) return;
  to.scalars.insert({{"loss_scale", scale_now_.scale},
                     {"good_steps", scale_now_.counts.good},
                     {"skipped_steps", scale_now_.counts.skipped}});
}

void TrainStep::load_scale(const io::TrainState& from) {
  auto state = scale_now_;
  state.scale = static_cast<float>(from.scalar("loss_scale", state.scale));
  state.counts.good = static_cast<std::int32_t>(from.scalar("good_steps", 0));
  state.counts.skipped = static_cast<std::int32_t>(from.scalar("skipped_steps", 0));
  set_scale_state(state);
}

void TrainStep::make_instances() {
  std::vector<std::pair<std::optional<Instance>*, StepPrograms::PassPtr>> list;
  list.emplace_back(&first_, programs_.first());
  if (programs_.has_more()) list.emplace_back(&more_, programs_.more());
  if (programs_.apart()) list.emplace_back(&last_, programs_.last());
  list.emplace_back(&eval_, programs_.evaluation());
  list.emplace_back(&update_, programs_.update());
  if (programs_.gathers_once()) list.emplace_back(&gather_, programs_.gather());
  if (const auto* tree = programs_.tree()) {
    if (auto sums = programs_.reduce()) list.emplace_back(&reduce_, std::move(sums));
    adds_.resize(static_cast<std::size_t>(tree->sums(tree->leaves() - 1)) + 1);
    for (int sums = 0; auto& exe : adds_) list.emplace_back(&exe, programs_.add(sums++));
  }
  std::int64_t bytes = 0;
  for (const auto& [exe, pass] : list) exe->reset(), bytes = std::max(bytes, pass->planned->plan.arena_bytes);
  arena_.reset();
  arena_ = std::make_shared<Buffer>(bytes, stream_.device());
  for (const auto& [exe, pass] : list) exe->emplace(*pass, arena_, stream_.device());
  if (const auto update = programs_.host_update()) host_update_.emplace(*update);
}

/// The same of a rank that has some layers.
void TrainStep::make_stages() {
  const auto& stages = *programs_.stages();
  const auto training = programs_.training_stages(), evaluation = programs_.evaluation_stages();
  const auto update = programs_.update(), reduce = programs_.reduce(),
             gather = programs_.gathers_once() ? programs_.gather() : nullptr;
  std::int64_t bytes = 0;
  for (const auto& pass : {update, reduce, gather})
    if (pass) bytes = std::max(bytes, pass->planned->plan.arena_bytes);
  for (const auto* passes : {&training, &evaluation}) {
    for (const auto& part : passes->parts)
      if (stages.has(part.stage)) bytes = std::max(bytes, part.arena_bytes());
    if (passes->vocabulary) bytes = std::max(bytes, passes->vocabulary->arena_bytes());
  }
  const auto runner = [&](const pipe::Schedule& schedule, const StagePasses& passes) {
    return std::make_unique<pipe::Runner>(schedule, passes.parts, passes.vocabulary ? &*passes.vocabulary : nullptr,
                                          stages.group(), passes.bindings, arena_, stream_);
  };
  arena_ = std::make_shared<Buffer>(bytes, stream_.device());
  runner_ = runner(stages.schedule(), training);
  eval_runner_ = runner(pipe::forward_only(stages.schedule()), evaluation);
  update_.emplace(*update, arena_, stream_.device());
  if (reduce) reduce_.emplace(*reduce, arena_, stream_.device());
  if (gather) gather_.emplace(*gather, arena_, stream_.device());
  if (const auto clear = programs_.clear()) clear_.emplace(*clear, arena_, stream_.device());
}

std::map<WayKey, WayNote> TrainStep::choose_ways() {
  WayNotes notes;
  const WithWayNotes with(stream_, notes);
  for (const auto* runner : {runner_.get(), eval_runner_.get()})
    if (runner)
      for (const auto* exe : runner->programs()) exe->prepare(stream_);
  for (const auto* exe : {&first_, &more_, &last_, &eval_})
    if (*exe) (*exe)->prepare(stream_);
  return notes.all();
}

void TrainStep::run(Instance& exe) {
  if (observer_) observer_->run(exe, stream_);
  else exe.run(stream_);
  if (!exe.captured()) exe.capture(stream_);  // only after everything that is loaded lazily has been loaded
}

/// Copies a batch that is in host memory. Micro-batches keep their copy until the step after the next, and
/// explain_non_finite() reads it.
TrainStep::Staged& TrainStep::stage(std::span<const models::InputSpec> inputs, Flight& flight, std::int64_t micro,
                                    std::span<const View> batch) {
  require(batch.size() == inputs.size(), "train", "expected a batch of {} tensors, got {}", inputs.size(),
          batch.size());
  require(micro >= 0 && micro <= std::ssize(flight.batches), "train", "micro-batch {} follows micro-batch {}", micro,
          flight.batches.size());
  if (micro < flight.micros && flight.queued) drain();  // its copy may still be queued
  if (micro == std::ssize(flight.batches)) {
    flight.batches.emplace_back().outputs = Pinned(kOutputBytes, stream_.device());
    for (const std::size_t i : {0u, 1u}) flight.batches.back().output(i) = 0;  // not all programs have both
  }
  auto& staged = flight.batches[static_cast<std::size_t>(micro)];
  const bool here = !batch.empty() && !batch[0].device().is_cuda();
  std::int64_t bytes = 0;
  for (const auto& input : inputs) bytes += padded(input.spec.bytes());
  if (here && staged.memory.bytes() < bytes) staged.memory = Pinned(bytes, stream_.device());
  staged.inputs.assign(batch.begin(), batch.end());
  auto* at = staged.memory.data();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto& from = batch[i];
    const auto& spec = inputs[i].spec;
    require(from.spec() == spec && from.is_contiguous() && from.device() == (here ? Device() : stream_.device()),
            "train",
            "input {} of a batch must be a contiguous {} in host memory, or with all others on the GPU, got {}", i + 1,
            to_string(spec), to_string(from.spec()));
    if (!here) continue;
    std::memcpy(at, from.data(), static_cast<std::size_t>(from.bytes()));
    staged.inputs[i] = View(at, spec);
    at += padded(from.bytes());
  }
  return staged;
}

void TrainStep::fill(const Instance& exe, const Staged& batch) {
  for (std::size_t i = 0; i < batch.inputs.size(); ++i) copy(stream_, exe.input(i), batch.inputs[i]);
}

void TrainStep::queue(Instance& exe, const Staged& batch) {
  fill(exe, batch);
  run(exe);
  for (std::size_t i = 0; i < exe.planned()->outputs.size(); ++i)
    copy_to_pinned(stream_, &batch.output(i), exe.output(i));
}

/// Queues the passes of a step in the order in which the tree adds their gradients.
void TrainStep::queue_tree(const Flight& flight) {
  const auto& tree = *programs_.tree();
  for (std::int64_t i = 0; i < tree.leaves(); ++i) {
    const auto micro = tree.micro(i);
    set_micro(flight.step, micro);
    queue(i == 0 ? *first_ : *more_, flight.batches[static_cast<std::size_t>(micro)]);
    run(*adds_[static_cast<std::size_t>(tree.sums(i))]);
  }
}

/// Queues what this rank does with the first `micros` micro-batches of a step and has not done yet.
void TrainStep::run_stages(pipe::Runner& runner, const Flight& flight, std::int64_t micros) {
  runner.advance(stream_, static_cast<std::int32_t>(micros),
                 [&](Instance& exe, std::int32_t micro, auto inputs, auto outputs) {
                   const auto& batch = flight.batches[static_cast<std::size_t>(micro)];
                   set_micro(flight.step, micro);
                   for (const auto& [i, to] : inputs) copy(stream_, to, batch.inputs[i]);
                   run(exe);
                   for (const auto& [i, from] : outputs) copy_to_pinned(stream_, &batch.output(i), from);
                 });
}

/// Waits for all queued work.
void TrainStep::drain() {
  stream_.synchronize();
  for (auto* f : {&flights_[0], &flights_[1], &evaluation_}) f->queued = false;
}

/// The tokens of a batch as tensors.
std::vector<View> TrainStep::language_batch(std::span<const std::int32_t> tokens,
                                            std::span<const std::int32_t> targets) const {
  const Spec spec{{options_.batch, options_.length}, DType::i32};
  require(std::ssize(tokens) == spec.size() && std::ssize(targets) == spec.size(), "train",
          "expected a batch of {} tokens, got {} and {}", spec.size(), tokens.size(), targets.size());
  return {View(tokens.data(), spec), View(targets.data(), spec)};
}

void TrainStep::set_micro(std::int64_t step, std::int64_t micro) {
  params_.step = step;
  if (programs_.tree()) micro = micro * options_.data.size() + options_.data.rank();  // as one rank would number it
  params_.seed = options_.seed + static_cast<std::uint64_t>(micro) *
                                     0x9E3779B97F4A7C15u;  // different random numbers for every micro-batch
}

/// Parameters and program of one micro-batch.
Instance& TrainStep::prepare(std::int64_t step, std::int64_t micro, bool last) {
  set_micro(step, micro);
  return micro == 0 ? *first_ : last && last_ ? *last_ : *more_;
}

void TrainStep::accumulate(std::span<const View> batch, std::int64_t step, std::int64_t micro, bool last) {
  const InStage stage_of_run(observer_, Stage::pass);
  require(micro == 0 || options_.accumulate, "train",
          "this step was made for one micro-batch: make it with `accumulate` for more");
  require(!ranks() || micro > 0 || last != options_.accumulate, "train",
          "pass `last` with the last micro-batch, which cannot be the first with `accumulate`");
  require(!runner_ || last == (micro + 1 == options_.stages.micros), "train",
          "expected {} micro-batches, as many as the schedule of the stages has", options_.stages.micros);
  require(!programs_.tree() || last == (micro + 1 == options_.invariant), "train",
          "expected {} micro-batches, as many as the tree of gradients has", options_.invariant);
  if (micro == 0) now_ = 1 - now_;
  auto& flight = flights_[now_];
  const auto& staged = stage(inputs_, flight, micro, batch);
  flight.step = step, flight.micros = micro + 1, flight.whole = last, flight.queued = true;
  if (runner_) gather();
  if (micro == 0 && clear_) run(*clear_);
  if (runner_) run_stages(*runner_, flight, micro + 1);
  else if (!programs_.tree()) queue(prepare(step, micro, last), staged);
  else if (last) queue_tree(flight);
  if (last && reduce_) run(*reduce_);
  gathered_ = true;  // without stages, the pass of the first micro-batch does it
  model_.count_pass();
}

void TrainStep::accumulate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                           std::int64_t step, std::int64_t micro, bool last) {
  accumulate(language_batch(tokens, targets), step, micro, last);
}

Evaluation TrainStep::sums(const Flight& flight) {
  Evaluation sum;
  for (std::int64_t i = 0; i < flight.micros; ++i) {
    const auto& batch = flight.batches[static_cast<std::size_t>(i)];
    sum.loss += static_cast<double>(batch.loss()), sum.correct += static_cast<double>(batch.correct());
  }
  return sum;
}

Evaluation TrainStep::sum_over_stages(const Evaluation& mine) const {
  if (!runner_) return mine;
  const auto sum = parallel::sum_over_ranks(programs_.stages()->group(), std::array{mine.loss, mine.correct});
  return {sum[0], sum[1]};
}

/// Queues all passes of a step again.
void TrainStep::queue_again(const Flight& flight) {
  for (std::int64_t micro = 0; micro < flight.micros; ++micro)
    queue(prepare(flight.step, micro, flight.whole && micro + 1 == flight.micros),
          flight.batches[static_cast<std::size_t>(micro)]);
}

/// Queues the update, and on a GPU copies of what it leaves on the device; runs what the host updates.
void TrainStep::run_update(Flight& flight) {
  params_ = flight.params;
  fetched_.wait(stream_);
  run(*update_);
  gathered_ = !programs_.gathers_once();
  if (!on_gpu()) return;
  if (!flight.numbers.bytes()) flight.numbers = Pinned(sizeof(Numbers), stream_.device());
  auto* numbers = flight.numbers.as<Numbers>();
  copy_to_pinned(stream_, &numbers->params,
                 View(stream_.kernel_params(), {{sizeof(StepParams)}, DType::u8}, stream_.device()));
  if (scales_loss()) programs_.scaler()->queue_state(stream_, &numbers->scale);
  if (programs_.dropped()) copy_to_pinned(stream_, &numbers->dropped, programs_.dropped()->number());
  flight.done.record(stream_);
  if (!host_update_) return;
  stream_.synchronize();
  auto params = numbers->params;
  Stream host(stream_.pool(), &params);
  host_update_->run(host);
}

/// GPU: waits for the update. A GPU that waits for a lost peer has a deadline, too.
void TrainStep::wait_for(Flight& flight) {
  flight.done.wait(waiting_);
  if (runner_) comm::synchronize(programs_.stages()->group(), waiting_);
  else if (ranks()) comm::synchronize(options_.data, waiting_);
  else waiting_.synchronize();
}

/// After the update: how many tokens its passes dropped on all ranks.
float TrainStep::dropped(const Flight& flight) const {
  if (!programs_.dropped()) return 0;
  return on_gpu() ? flight.numbers.as<Numbers>()->dropped : *programs_.dropped()->number().ptr<float>();
}

/// An update after passes that dropped tokens has changed nothing. Runs the step again, with more room, until everything
/// fits; then the passes of the next step, if they were queued with what they found. Returns whether it did.
bool TrainStep::run_until_all_fits() {
  auto& flight = flights_[result_];
  if (dropped(flight) == 0) return false;
  while (dropped(flight) > 0) {
    comm::synchronize(options_.data, stream_);  // before what it uses goes
    programs_.make_room();
    make_instances();
    ++runs_again_;
    set_scale_state(scale_now_);  // which the update took for an overflow
    queue_again(flight);
    run_update(flight);
    if (on_gpu()) wait_for(flight);
  }
  if (now_ != result_) queue_again(flights_[now_]);
  return true;
}

double TrainStep::loss() {
  drain();
  return sums(flights_[now_]).loss;
}

StepResult TrainStep::update(double lr, std::int64_t valid_tokens) {
  queue_update(lr, valid_tokens);
  return result();
}

void TrainStep::queue_update(double lr, std::int64_t valid_tokens) {
  const InStage stage_of_run(observer_, Stage::update);
  auto& flight = flights_[now_];
  result_ = now_;
  // A GPU is still working, and its loss is not known yet.
  const bool at_once = !on_gpu();
  const auto over_ranks = [&] {
    const auto mine = at_once ? sums(flight) : Evaluation();
    return parallel::sum_over_ranks(options_.data,
                                    std::array{static_cast<double>(valid_tokens), mine.loss, mine.correct});
  };
  auto all = over_ranks();
  require(all[0] > 0, "train", "the batch has no target to learn from (all are ignored)");
  params_.step = flight.step;
  params_.lr = static_cast<float>(lr);
  params_.grad_scale = 1.0f / static_cast<float>(all[0]);
  params_.skip = 0;
  flight.params = params_;
  run_update(flight);
  flight.result = {.valid_tokens = static_cast<std::int64_t>(all[0])};
  if (!at_once) return;
  if (run_until_all_fits()) all = over_ranks();
  const auto sum = sum_over_stages({all[1], all[2]});
  flight.result.loss = sum.loss, flight.result.correct = sum.correct;
  flight.result.grad_norm = params_.grad_norm;
  if (scales_loss()) scale_now_ = programs_.scaler()->state(stream_);
}

StepResult TrainStep::result() {
  const InStage stage_of_run(on_gpu() ? observer_ : nullptr, Stage::update);
  auto& flight = flights_[result_];
  if (!on_gpu()) {
    flight.queued = false;
    return flight.result;
  }
  wait_for(flight);
  run_until_all_fits();
  flight.queued = false;
  const auto& numbers = *flight.numbers.as<Numbers>();
  if (scales_loss()) scale_now_ = programs_.scaler()->state(numbers.scale);
  const auto late = sums(flight);
  const auto of_data = parallel::sum_over_ranks(options_.data, std::array{late.loss, late.correct});
  const auto sum = sum_over_stages({of_data[0], of_data[1]});
  flight.result.loss = sum.loss, flight.result.correct = sum.correct;
  flight.result.grad_norm = numbers.params.grad_norm;
  if (ranks() && !flights_[1 - result_].queued) programs_.ranks()->take_times();
  return flight.result;
}

Evaluation TrainStep::evaluate(std::span<const View> batch) {
  const InStage stage_of_run(observer_, Stage::evaluate);
  gather();
  const auto& staged = stage(evaluation_inputs_, evaluation_, 0, batch);
  if (eval_runner_) run_stages(*eval_runner_, evaluation_, 1);
  else queue(*eval_, staged);
  stream_.synchronize();
  return sum_over_stages({staged.loss(), staged.correct()});
}

Evaluation TrainStep::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  return evaluate(language_batch(tokens, targets));
}

std::optional<NonFinite> TrainStep::bad_weight() const {
  for (const auto list : {model_.parameters(), model_.state().updated()})
    for (const auto& p : list)
      if (p.memory && !all_finite(stream_, p.memory)) return NonFinite{"the weight \"" + p.param->name + "\""};
  return {};
}

NonFinite TrainStep::explain_non_finite() {
  drain();
  gather();
  const auto& flight = flights_[result_];
  auto found = bad_weight();
  if (ranks()) {  // ranks stop at different records, so these programs must not exchange anything
    programs_.leave_shared_batch();
    for (auto* pass : {&first_, &more_, &last_}) {
      if (!*pass) continue;
      const auto write = pass == &first_ ? Write::overwrite : Write::accumulate;
      pass->emplace(*programs_.pass(write, StepPrograms::Kind::alone), arena_, stream_.device());
    }
  }
  // Ranks that share the model or rows cannot run a pass independently. Those that gather weights in it run it together.
  const bool shared = model_.sharing() || options_.context.size() > 1 || options_.experts.size() > 1 || runner_;
  for (std::int64_t micro = 0; micro < flight.micros && !shared; ++micro) {
    if (found && !programs_.sharded()) break;
    auto& pass = prepare(flight.step, micro, micro + 1 == flight.micros);
    fill(pass, flight.batches[static_cast<std::size_t>(micro)]);
    auto in_pass = first_non_finite(pass, stream_, options_.batch);
    if (in_pass) in_pass->micro = micro;
    if (!found) found = std::move(in_pass);
  }
  if (found) return *found;
  for (const auto& p : model_.state().updated())
    if (!all_finite(stream_, p.gradient->memory)) return {"the gradient of \"" + p.param->name + "\""};
  return {ranks() || runner_
              ? "not on this rank: it is on another rank, or it is the global gradient norm, whose squares overflow"
              : "the global gradient norm, whose squares overflow"};
}

std::vector<const Instance*> TrainStep::programs(std::int64_t micro_batches) const {
  std::vector<const Instance*> list;
  if (runner_) {
    for (const auto* exe : runner_->programs()) list.push_back(exe);
    if (reduce_) list.push_back(&*reduce_);
    list.push_back(&*update_);
    return list;
  }
  list.push_back(&*first_);
  for (std::int64_t i = 1; i < micro_batches; ++i) list.push_back(i + 1 == micro_batches && last_ ? &*last_ : &*more_);
  for (std::int64_t i = 0; programs_.tree() && i < micro_batches; ++i)
    list.push_back(&*adds_[static_cast<std::size_t>(programs_.tree()->sums(i))]);
  if (reduce_) list.push_back(&*reduce_);
  list.push_back(&*update_);
  return list;
}

DiskTraffic TrainStep::disk_traffic() const {
  DiskTraffic sum;
  for (const auto* file : programs_.files())
    sum.bytes += file->bytes_moved(), sum.waited_seconds += file->seconds_waited();
  return sum;
}

std::int64_t TrainStep::host_bytes() const {
  std::int64_t sum = 0;
  if (!on_gpu()) return sum;
  for (const auto* exe : programs(std::max<std::int64_t>(flights_[result_].micros, 1)))
    sum += moved_bytes(exe->program());
  return sum;
}

void TrainStep::share_buffers() {
  if (options_.data.size() == 1) return;
  for (const auto& b : model_.buffers())
    if (b.role == StateRole::buffer)
      options_.data.broadcast(stream_, b.memory, 0).wait();  // counters are the same on all ranks
  stream_.synchronize();
}

void TrainStep::gather() {
  if (!std::exchange(gathered_, true)) run(*gather_);
}

void TrainStep::fetch() {
  gather();
  end_pinning();
  model_.fetch(stream_);
}

std::function<void()> TrainStep::fetch_behind() {
  if (!on_gpu()) return fetch(), nullptr;
  gather();
  end_pinning();
  const auto& table = model_.state();
  table.order_for_files(false);
  table.queue_fetch(stream_, true);
  Event now;
  now.record(stream_);
  now.wait(fetching_);
  table.queue_fetch(fetching_, false);
  fetched_.record(fetching_);
  return [this, &table] {
    fetching_.synchronize();
    table.order_for_files(true);
  };
}

void TrainStep::prepare_fetch() {
  if (!on_gpu() || pinning_.joinable()) return;
  pinning_ = std::thread([this, memory = model_.state().fetched_memory(), device = stream_.device()] {
    for (const auto* m : memory) {
      populate(m->data(), m->bytes());
      pinned_.emplace_back(m->data(), m->bytes(), device);
    }
  });
}

void TrainStep::end_pinning() {
  if (pinning_.joinable()) pinning_.join();
}

io::Stays TrainStep::stays() const {
  std::set<const void*> copies;
  model_.state().for_each([&](const StateEntry& e) {
    if (e.memory.device().is_cuda() && e.host.data()) copies.insert(e.host.data());
  });
  return [copies = std::move(copies)](const io::NamedTensor& t) { return copies.contains(t.tensor.data()); };
}

void TrainStep::with_whole_values(const std::function<void()>& f) const {
  const auto of_stages = [&] { runner_ ? programs_.stages()->with_whole_values(f) : f(); };
  if (programs_.divided()) ranks()->with_whole_values(of_stages);
  else of_stages();
}

void TrainStep::store() {
  model_.store(stream_);
  model_.round_copies(stream_);
  gathered_ = !programs_.gathers_once();
  stream_.synchronize();
}

}  // namespace hpcdl::train
