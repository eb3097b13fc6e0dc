#include "hpcdl/train/loop.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/available_memory.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/pipe/generate.h"
#include "hpcdl/train/mesh_shape.h"
#include "hpcdl/train/plan_run.h"
#include "hpcdl/train/run_ways.h"
#include "hpcdl/train/stop.h"
#include "hpcdl/train/wire_advice.h"

namespace hpcdl::train {

namespace {

/// Hooks of one rank: only the first rank reports.
Hooks of_rank(Hooks hooks) {
  if (hooks.world.rank() > 0) hooks.console = {};
  return hooks;
}

/// train.threads may differ by rank, so collective calls are made in any case.
int threads_of(const RunConfig& config, const comm::Group& world) {
  const int shared = parallel::threads_per_rank(world);
  return config.train.threads > 0 ? config.train.threads : shared;
}

/// Of the tensors that do not stay as they are.
std::int64_t bytes_of(const std::vector<io::NamedTensor>& tensors, const io::Stays& stays) {
  std::int64_t sum = 0;
  for (const auto& t : tensors) sum += stays(t) ? 0 : t.tensor.bytes();
  return sum;
}

}  // namespace

Loop::Loop(RunConfig& config, const Hooks& hooks)
    : config_(config),
      hooks_(of_rank(hooks)),
      mesh_(hooks.world, mesh_shape(config.parallel)),
      progress_(hooks_.console),
      pool_(threads_of(config, world())),
      task_(config, mesh_, pool_, hooks_.console) {
  const auto& t = config_.train;
  rows_of_step_ = rows_of_step(config_, mesh_);
  steps_ = t.epochs > 0 ? steps_from({}, t.epochs, task_.data().rows(), rows_of_step_) : t.steps;
  schedule_ = run_schedule(config_, rows_of_step_, steps_, progress_);
  make_step(device_from_name(t.device));
  train_->watch(hooks_.observer);
  std::shared_ptr<const Ways> tuned;
  if (hooks_.tuned_ways) tuned = hooks_.tuned_ways(train_->programs(t.accumulate));
  if (!hooks_.steps_only) open_files();
  choose_ways(std::move(tuned));
  task_.data().open(now_.at, !hooks_.steps_only, train_->stream());
  double light = hooks_.speed_of_light ? 0 : -1;
  if (hooks_.speed_of_light)
    for (const auto* exe : train_->programs(t.accumulate)) light += hooks_.speed_of_light(exe->program());
  double wire = 0;
  for (const auto* exe : train_->programs(t.accumulate))
    for (const auto& r : exe->program().records) wire += r.cost.wire;
  meter_.emplace(*train_, rows_of_step_ * task_.units().in_row, light, wire);
  introduce();
}

/// Makes model and programs, after it is known that there is memory for them.
void Loop::make_step(Device device) {
  const auto advice = advise(config_, task_, mesh_, hooks_.host_memory_limit, pool_.threads(), false);
  const auto explain = [&] { progress_.say_lines(advice.text()); };
  if (!advice.fits()) {
    explain();
    fail("memory", "{}", advice.verdict());
  }
  if (!advice.alternatives().empty())
    fail("memory", "another rank has too little memory for the run; on this rank, {}", advice.verdict());
  auto options = step_options(config_);
  take_ranks(options, mesh_);
  const Waiting waiting(hooks_.console, "making the model");
  try {
    model_ = task_.make_model(config_.train.seed);
    train_ = std::make_unique<TrainStep>(*model_, pool_, options, device);
    choose_saves(advice);
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with("[memory]")) explain();
    throw;
  }
}

/// An asynchronous save needs a copy of the state that the run changes on the host. Of what a GPU holds, there is one in
/// any case. State that lies on a disk, because there is no memory for it, is not copied.
void Loop::choose_saves(const MemoryAdvice& advice) {
  const bool on_device = train_->on_gpu() && config_.offload.optimizer == Tier::none;
  if (hooks_.steps_only || !config_.checkpoint.asynchronous || on_device) return;
  if (config_.offload.uses_disk()) {
    waits_for_saves_ = true;
    return progress_.say("the run waits while a checkpoint is written: what lies on a disk is not copied");
  }
  const auto copy = bytes_of(train_->weights(), train_->stays()) + bytes_of(train_->optimizer_state(), train_->stays());
  const bool fits =
      train_->on_gpu() ? copy <= available_memory(Device::cpu()).bytes / ranks_of_host(world()) : advice.fits(copy);
  waits_for_saves_ = parallel::any_rank(world(), !fits);
  if (waits_for_saves_)
    progress_.say(fmt::format(
        "the run waits while a checkpoint is written: the copy for a thread that writes it would take {} more",
        format_bytes(static_cast<double>(copy))));
}

void Loop::open_files() {
  const auto& epochs = config_.train.epochs;
  saves_.emplace(config_, hooks_, mesh_, task_, *train_, progress_);
  now_ = saves_->resume(epochs > 0 ? 0 : steps_);
  if (now_.step > 0 && epochs > 0)
    schedule_.steps = steps_ = now_.step + steps_from(now_.at, epochs, task_.data().rows(), rows_of_step_);
  if (leads()) saves_->write_config();
  if (leads()) log_.open(config_.output, now_.step > 0 ? std::optional(now_.step) : std::nullopt);
  // A run that was lost before it saved may already have done the evaluation.
  if (now_.evaluation_due)
    now_.evaluation_due = !parallel::any_rank(world(), leads() && evaluated(config_.output, now_.step));
}

void Loop::choose_ways(std::shared_ptr<const Ways> tuned) {
  auto used = set_ways(*train_, {config_.train.ways, saves_ ? saves_->ways() : std::nullopt, std::move(tuned)},
                       [&](std::string_view line) { progress_.say(line); });
  if (saves_) saves_->set_ways(std::move(used));
}

void Loop::introduce() {
  const auto few = pipe::few_micros_warning(mesh_.pp().size(), static_cast<int>(config_.train.accumulate));
  if (!few.empty()) progress_.say("warning: " + few);
  advise_on_wires();
  summary_.parameters = model_->parameter_count();
  summary_.arena_bytes = train_->arena_bytes();
  summary_.first_step = now_.step;
  const auto all = model_->state().element_count();
  const auto count = format_count(static_cast<double>(summary_.parameters));
  progress_.say(fmt::format(
      "{}{} parameters, {}, {} activations planned, {} thread{}{}", world().size() > 1 ? mesh_.describe() + ": " : "",
      all > summary_.parameters ? fmt::format("{} trained of {}", count, format_count(static_cast<double>(all)))
                                : count,
      task_.data().describe(), format_bytes(static_cast<double>(summary_.arena_bytes)), pool_.threads(),
      pool_.threads() == 1 ? "" : "s", now_.step ? fmt::format("; resumed at step {}", now_.step) : ""));
}

/// Collective.
void Loop::advise_on_wires() {
  const auto* ranks = train_->ranks();
  const auto options = step_options(config_);
  const auto look = [&](const char* key, const comm::Group& group, double plain_bytes, WireCode code) {
    if (!ranks || code == WireCode::none || group.size() == 1) return;
    const double link = measured_link(group, pool_), coding = measured_coding(code, pool_);
    const auto said = wire_warning(key, wire_times(link, coding, plain_bytes, code), link, plain_bytes, code);
    if (!said.empty()) progress_.say(said);
  };
  // On a CPU, products read the f32 values.
  if (ranks) look("parallel.wire_weights", ranks->exchange().group(), sizeof(float), options.wire_weights);
  look("parallel.wire_gradients", mesh_.data(), sizeof(float), options.wire_gradients);
}

void Loop::stop_non_finite(std::string_view what) {
  const auto why = train_->explain_non_finite();
  std::string where, advice = "Lower train.lr, raise train.warmup, or check the data";
  if (why.micro >= 0) {
    if (config_.train.accumulate > 1) where += fmt::format(" of micro-batch {}", why.micro + 1);
    const bool some = !why.rows.empty() && std::ssize(why.rows) < config_.train.batch;
    const auto rows = some ? std::span(why.rows) : std::span<const std::int64_t>();
    where += fmt::format(", in {}", task_.describe_samples(now_.step, why.micro, rows));
  }
  if (why.input) advice = "Repair these samples or leave them out";
  fail("train", "step {}: the {} is not finite; the first bad tensor is {}{}. {}; {}", now_.step + 1, what, why.what,
       where, advice, saves_ ? saves_->last_one() : "no checkpoint has been written");
}

/// A step that was skipped. Loss scaling finds its scale in this way, until the scale cannot be reduced further.
void Loop::overflowed(const StepResult& result) {
  const auto state = train_->scale_state();
  const std::string_view what = std::isfinite(result.loss) ? "gradient norm" : "loss";
  if (!train_->scales_loss() || state.counts.stuck > 0) stop_non_finite(what);
  progress_.say(fmt::format("step {}: the {} is not finite, so nothing was changed; the loss scale is now {}",
                            now_.step + 1, what, state.scale));
}

void Loop::fetch_batch() {
  const InStage stage(hooks_.observer, Stage::data);
  const comm::InPhase phase(world().ledger(), comm::Phase::data);
  task_.next();
}

/// Fetches the micro-batches of a step and queues their passes; on a CPU, runs them.
void Loop::queue_passes(std::int64_t step) {
  const auto epoch = task_.data().position().epoch;
  Queued q;
  for (std::int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
    fetch_batch();
    q.valid += task_.accumulate(*train_, step, micro, micro + 1 == config_.train.accumulate);
  }
  q.end = task_.data().position();
  q.epoch_done = q.end.epoch > epoch;
  next_ = q;
}

/// Whether the model is evaluated after that many steps.
bool Loop::evaluates_at(std::int64_t step, bool epoch_done) const {
  const auto& t = config_.train;
  return step == steps_ || due(step, t.eval_every) || (t.eval_every == 0 && t.epochs > 0 && epoch_done);
}
bool Loop::logs_at(std::int64_t step) const { return step == steps_ || due(step, config_.train.log_every); }
bool Loop::saves_at(std::int64_t step) const {
  return step == steps_ || step == save_at_ || config_.checkpoint.every.at(step);
}

/// So that a GPU is not idle while the host handles the result of a step, the passes of the next one are queued
/// before. Not if the model, times or gradients are needed as they are between the two.
bool Loop::may_go_ahead() const {
  return train_->on_gpu() && !hooks_.observer && mesh_.tp().size() == 1 && mesh_.cp().size() == 1 &&
         !summary_.stopped && !evaluates_at(now_.step + 1, next_->epoch_done) && !saves_at(now_.step + 1) &&
         !(config_.parallel.time_exchange && logs_at(now_.step + 1));
}

void Loop::one_step() {
  const auto start = Clock::now();
  if (hooks_.observer) hooks_.observer->begin_step(now_.step);
  const double waited = task_.data().waited_seconds();
  if (!next_) queue_passes(now_.step);
  const auto mine = *next_;
  lr_ = schedule_.at(now_.step);
  train_->queue_update(lr_, mine.valid);
  const bool ahead = may_go_ahead();
  next_.reset();
  if (ahead) queue_passes(now_.step + 1);
  const auto result = train_->result();
  if (!result.finite()) overflowed(result);
  if (std::isfinite(result.loss)) now_.loss = result.loss / static_cast<double>(result.valid_tokens);
  norm_ = result.grad_norm;
  if (now_.epoch_done) now_.epoch = {};
  for (auto* score : {&now_.interval, &now_.epoch})
    if (result.finite()) *score += {result.loss, result.correct, result.valid_tokens};
  if (hooks_.observer) hooks_.observer->end_step(now_.step);
  ++now_.step;
  now_.seen += rows_of_step_ * task_.units().in_row;
  now_.at = mine.end;
  now_.epoch_done = mine.epoch_done;
  meter_->add(seconds_since(start), task_.data().waited_seconds() - waited);
  report();
}

StepNumbers Loop::numbers() const {
  const auto units = task_.units();
  StepNumbers n{
      .step = now_.step, .steps = steps_, .loss = now_.loss, .lr = lr_, .grad_norm = norm_, .unit = units.brief};
  if (config_.train.epochs > 0) n.epoch = epoch();
  if (units.classes) n.accuracy = now_.interval.accuracy();
  meter_->fill_recent(n);
  return n;
}

/// Updates the bar after every step, and prints and logs the numbers of an interval at its end.
void Loop::report() {
  if (progress_.has_bar()) progress_.show(progress_bar(numbers()));
  const auto step = now_.step;
  if (!logs_at(step) && step != summary_.first_step + 1) return;
  auto n = numbers();
  meter_->fill_interval(n);
  auto line = metrics_line(n, task_.units(), now_.seen);
  if (train_->scales_loss()) {
    const auto state = train_->scale_state();
    line["loss_scale"] = state.scale, line["skipped_steps"] = state.counts.skipped;
  }
  if (const auto again = train_->runs_again(); again > 0) line["runs_again"] = again;
  if (logs_at(step) && saves_)
    if (const auto stall = saves_->take_stall(); stall > 0) line["save_stall_ms"] = 1e3 * stall;
  if (logs_at(step)) log_.write(line, step);
  progress_.stay(n);
  meter_->begin_interval();
  if (logs_at(step)) now_.interval = {};
}

/// A run that is asked to stop has seconds or minutes, and an evaluation may take longer: it is left to the resumed
/// run. Ranks that compute a batch together stop it after the same one.
void Loop::evaluate() {
  now_.evaluation_due = false;
  train_->share_buffers();
  bool cut = false;
  const auto all_of_them = std::numeric_limits<std::int64_t>::max();
  const auto asked = config_.train.eval_batches;
  const auto batches = asked > 0 ? asked : asked == 0 || task_.units().classes ? all_of_them : 20;
  std::int64_t done = 0;
  const auto goes_on = [&] {
    if (progress_.has_bar())
      progress_.show({.what = "evaluating",
                      .done = batches < all_of_them ? static_cast<double>(done) / static_cast<double>(batches) : -1,
                      .facts = {{fmt::format("step {}", now_.step)}, {fmt::format("batch {}", ++done)}},
                      .needed = 2});
    const auto& together = train_->passes_together() ? world() : mesh_.tp();
    cut = parallel::any_rank(together, StopSignals::requested() != 0);
    if (!train_->passes_together())
      for (const auto* ranks : {&mesh_.cp(), &mesh_.pp()}) cut = parallel::any_rank(*ranks, cut);
    return !cut;
  };
  const auto mine = task_.evaluate(*train_, batches, goes_on);
  if (!mine) return;
  const double sums[] = {mine->loss, mine->correct, static_cast<double>(mine->counted), cut ? 1.0 : 0.0};
  const auto all = parallel::sum_over_ranks(mesh_.data(), sums);
  const Score score{all[0], all[1], static_cast<std::int64_t>(all[2])};
  now_.evaluation_due = all[3] > 0;
  if (now_.evaluation_due)
    return progress_.say(fmt::format("step {}  asked to stop: the resumed run will evaluate", now_.step));
  if (score.counted == 0) return;
  summary_.eval_loss = score.mean();
  summary_.eval_tokens = score.counted;
  io::Json line = {{"step", now_.step}};
  if (config_.train.epochs > 0) line["epoch"] = epoch();
  if (task_.units().classes) {
    summary_.eval_accuracy = score.accuracy(), summary_.accuracy = now_.epoch.accuracy();
    line["train_accuracy"] = summary_.accuracy;
  }
  line.update(score.metrics(task_.units()));
  log_.write(line, now_.step);
  progress_.say(fmt::format("step {}  evaluation: {}", now_.step, score.words(task_.units())));
}

void Loop::save(bool wait) {
  if (saves_) saves_->save(now_, wait || waits_for_saves_, now_.step < steps_);
}

/// What all ranks must agree on before the next step: whether one of them was asked to stop, whether all have written
/// their parts of a checkpoint, or one could not, and whether the checkpoint after that step is due. They agree one step ahead, because a GPU queues the passes of the following step
/// early.
void Loop::agree() {
  const auto& every = config_.checkpoint.every;
  const int signal = StopSignals::requested();
  const bool due = leads() && every.seconds > 0 && saves_ && saves_->age() >= every.seconds;
  const double mine[] = {signal != 0 ? 1.0 : 0.0, signal != 0 && signal != SIGINT ? 1.0 : 0.0, due ? 1.0 : 0.0,
                         saves_ && saves_->written() ? 1.0 : 0.0, saves_ && saves_->failed() ? 1.0 : 0.0};
  const auto all = parallel::sum_over_ranks(world(), mine);
  if (all[3] == world().size() || all[4] > 0) saves_->finish();
  asked_ = all[0] > 0;
  summary_.interrupted = asked_ && all[1] == 0;
  if (all[2] > 0) save_at_ = now_.step + 1;
}

void Loop::say_stopped() {
  const auto why = summary_.interrupted ? "interrupted" : "asked to stop";
  if (hooks_.steps_only) return progress_.say(fmt::format("{}: ended at step {}", why, now_.step));
  progress_.say(
      fmt::format("{}: saved step {} of {}; {}", why, now_.step, steps_,
                  hooks_.command.empty() ? "the same command continues from there" : "to continue from there:"));
  if (!hooks_.command.empty()) progress_.say("  " + hooks_.command);
}

void Loop::finish() {
  if (hooks_.steps_only) return;
  const auto folder = config_.output / "model";
  const Waiting waiting(hooks_.console, "writing the model");
  if (leads()) io::make_folder(folder);
  train_->share_buffers();
  train_->fetch();
  train_->with_whole_values([&] { task_.save_model(*model_, folder); });
  parallel::any_rank(world(), false);
  summary_.model = folder;
}

RunSummary Loop::go() {
  using enum StopSignals::Interrupt;
  const StopSignals signals(!hooks_.stops_on_interrupt ? ends : leads() ? stops_and_says_so : stops);
  const comm::InPhase phase(world().ledger(), comm::Phase::compute);
  summary_.eval_loss = std::numeric_limits<double>::quiet_NaN();
  const auto& t = config_.train;
  if (now_.step >= steps_)
    progress_.say(fmt::format("already at step {} of {}: raise train.{} to train longer", now_.step, steps_,
                              t.epochs > 0 ? "epochs" : "steps"));
  if (saves_) saves_->begin();
  const bool goes_on_while_saving = config_.checkpoint.asynchronous && !config_.checkpoint.every.never();
  if (saves_ && goes_on_while_saving && !waits_for_saves_) saves_->prepare();
  meter_->begin();
  if (now_.evaluation_due) evaluate();
  if (now_.evaluation_due) agree();
  summary_.stopped = now_.evaluation_due;
  while (now_.step < steps_ && (!summary_.stopped || next_)) {  // queued work is completed
    one_step();
    const bool last = now_.step == steps_;
    if (evaluates_at(now_.step, now_.epoch_done)) evaluate();
    if (saves_at(now_.step)) save(now_.step == steps_);
    if (hooks_.after_step) hooks_.after_step(now_.step);
    agree();
    summary_.stopped = asked_ && (!last || now_.evaluation_due);
  }
  progress_.end_bar();
  if (saves_) saves_->finish();
  if (summary_.stopped) {
    save(true);
    say_stopped();
  } else {
    finish();
  }
  log_.flush();
  summary_.step = now_.step;
  summary_.loss = now_.loss;
  summary_.images = task_.units().classes;
  meter_->fill(summary_, task_.units().in_row);
  return summary_;
}

}  // namespace hpcdl::train
