#include "hpcdl/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/models/family.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/check_resumed.h"
#include "hpcdl/train/facts.h"
#include "hpcdl/train/plan_run.h"
#include "hpcdl/train/replicas.h"
#include "hpcdl/train/run_log.h"
#include "hpcdl/train/run_table.h"
#include "hpcdl/train/stop.h"
#include "hpcdl/train/task.h"

namespace hpcdl::train {

namespace {

namespace fs = std::filesystem;

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

/// The parts of a run that live as long as its loop.
class Run {
 public:
  Run(RunConfig& config, const Hooks& hooks);
  RunSummary go();

 private:
  void set_schedule();
  std::int64_t steps_from(const data::LoaderState& at) const;
  void make_step(Device device);
  void introduce();
  void open_files();
  std::string config_text();
  void resume();
  void tell_of_other_batch(std::int64_t before);
  void one_step();
  void queue_passes(std::int64_t step);
  bool may_go_ahead() const;
  bool evaluates_at(std::int64_t step, bool epoch_done) const;
  bool saves_at(std::int64_t step) const;
  bool logs_at(std::int64_t step) const;
  void fetch_batch();
  void report(double seconds, double waited);
  StepNumbers brief_numbers() const;
  StepNumbers numbers();
  void evaluate();
  void save();
  void agree();
  void say_stopped();
  void finish();
  void summarise();
  [[noreturn]] void stop_non_finite(std::string_view what);
  void overflowed(const StepResult& result);
  static bool due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

  bool leads() const { return world().rank() == 0; }  // logs and writes
  const comm::Group& world() const { return mesh_.world(); }
  /// Passes over the data so far.
  double epoch() const {
    return static_cast<double>(at_.epoch) + static_cast<double>(at_.index) / static_cast<double>(task_.data().rows());
  }
  /// Rows of an optimizer step, over all ranks.
  std::int64_t rows_of_step() const { return config_.train.batch * config_.train.accumulate * mesh_.dp().size(); }

  RunConfig& config_;
  Hooks hooks_;
  parallel::Mesh mesh_;
  io::GroupRanks io_ranks_;
  Progress progress_;
  Pool pool_;
  Task task_;
  std::unique_ptr<models::Trainable> model_;
  std::unique_ptr<TrainStep> train_;
  std::optional<io::Checkpoints> checkpoints_;
  RunLog log_;
  Schedule schedule_;
  std::int64_t steps_ = 0;
  std::string toml_;
  std::int64_t step_ = 0, seen_ = 0, saved_ = -1;
  std::int64_t save_at_ = -1;  // the step after which the time between checkpoints has passed, as rank 0 says
  Clock::time_point last_save_ = Clock::now();
  bool asked_ = false;            // some rank was asked to stop
  data::LoaderState start_, at_;  // sample at which the run began, and at which the step after the last one begins
  // of the last step
  double loss_ = 0, norm_ = 0, lr_ = 0;
  bool epoch_done_ = false;
  bool evaluation_due_ = false;  // skipped, because the run was asked to stop
  /// A step whose passes are queued.
  struct Queued {
    data::LoaderState behind;
    std::int64_t valid = 0;
    bool epoch_done = false;
  };
  std::optional<Queued> next_;          // of step_
  Score interval_score_, epoch_score_;  // since the last line of metrics; of the epoch
  // since the last line of metrics
  double interval_seconds_ = 0, interval_waited_ = 0;
  parallel::ExchangeTimes exchanged_;  // until then
  std::int64_t interval_steps_ = 0;
  double recent_seconds_ = 0;                    // of a step: a moving average over about ten steps
  Clock::time_point loop_begin_ = Clock::now();  // with evaluations and saves, unlike summary_.seconds
  double light_seconds_ = -1;                    // of one step at the speed of light
  RunSummary summary_;
};

Run::Run(RunConfig& config, const Hooks& hooks)
    : config_(config),
      hooks_(of_rank(hooks)),
      mesh_(hooks.world, {.dp = static_cast<int>(config.parallel.dp), .tp = static_cast<int>(config.parallel.tp)}),
      io_ranks_(world()),
      progress_(hooks_.console),
      pool_(threads_of(config, world())),
      task_(config, mesh_, pool_, hooks_.console) {
  const auto& t = config_.train;
  const auto device = device_from_name(t.device);
  set_schedule();
  make_step(device);
  train_->watch(hooks_.observer);
  if (hooks_.before_steps) hooks_.before_steps(train_->programs(t.accumulate));
  if (!hooks_.steps_only) open_files();
  at_ = start_;
  task_.data().open(start_, !hooks_.steps_only, train_->stream());
  if (hooks_.speed_of_light) {
    light_seconds_ = 0;
    for (const auto* exe : train_->programs(t.accumulate)) light_seconds_ += hooks_.speed_of_light(exe->program());
  }
  introduce();
}

/// Makes model and programs, after it is known that there is memory for them.
void Run::make_step(Device device) {
  const auto advice = advise(config_, task_, mesh_, hooks_.host_memory_limit, pool_.threads(), false);
  const auto explain = [&] { progress_.say_lines(advice.text()); };
  if (!advice.fits()) {
    explain();
    fail("memory", "{}", advice.verdict());
  }
  if (!advice.alternatives().empty())
    fail("memory", "another rank has too little memory for the run; on this rank, {}", advice.verdict());
  auto options = step_options(config_);
  options.data = mesh_.dp();
  const Waiting waiting(hooks_.console, "making the model");
  try {
    model_ = task_.make_model(config_.train.seed);
    train_ = std::make_unique<TrainStep>(*model_, pool_, options, device);
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with("[memory]")) explain();
    throw;
  }
}

/// Sets the number of steps and the learning rates, which may depend on the data and the number of ranks.
void Run::set_schedule() {
  const auto& t = config_.train;
  steps_ = t.epochs > 0 ? steps_from({}) : t.steps;
  const double factor =
      lr_factor(t.lr_scaling, rows_of_step(), t.base_batch > 0 ? t.base_batch : t.batch * t.accumulate);
  schedule_ = {t.schedule, t.lr * factor, t.min_lr * factor, steps_, t.warmup};
  if (t.warmup > steps_)
    progress_.say(
        fmt::format("warning: train.warmup = {} is more than the {} steps of the run, so the learning rate reaches "
                    "only {:.3g} of {:.3g}",
                    t.warmup, steps_, schedule_.at(steps_ - 1), schedule_.lr));
  if (t.lr_scaling == LrScaling::none) return;
  progress_.say(
      fmt::format("learning rate {:.3g} x {:.3g} = {:.3g} ({} scaling to {} samples in a step){}", t.lr, factor,
                  schedule_.lr, io::enum_name(t.lr_scaling), rows_of_step(),
                  factor > 1 && t.warmup == 0 ? "; without warm-up a larger rate may diverge: see train.warmup" : ""));
}

/// Steps to the end of the last epoch, for a run at that sample.
std::int64_t Run::steps_from(const data::LoaderState& at) const {
  const auto left = config_.train.epochs * task_.data().rows() - at.epoch * task_.data().rows() - at.index;
  return std::max<std::int64_t>(left + rows_of_step() - 1, 0) / rows_of_step();
}

void Run::introduce() {
  summary_.parameters = model_->parameter_count();
  summary_.arena_bytes = train_->arena_bytes();
  summary_.first_step = step_;
  progress_.say(fmt::format("{}{} parameters, {}, {} activations planned, {} thread{}{}",
                            world().size() > 1 ? mesh_.describe() + ": " : "",
                            format_count(static_cast<double>(summary_.parameters)), task_.data().describe(),
                            format_bytes(static_cast<double>(summary_.arena_bytes)), pool_.threads(),
                            pool_.threads() == 1 ? "" : "s", step_ ? fmt::format("; resumed at step {}", step_) : ""));
}

void Run::open_files() {
  const fs::path out = config_.output;
  toml_ = config_text();
  checkpoints_.emplace(out / "checkpoints", config_.checkpoint.keep, &io_ranks_);
  resume();  // before anything is written: a run that cannot be resumed stays unchanged
  if (leads()) io::write_file_atomic(out / "config.toml", toml_);
  if (leads()) log_.open(out, step_ > 0 ? std::optional(step_) : std::nullopt);
  // A run that was lost before it saved may already have done the evaluation.
  if (evaluation_due_) evaluation_due_ = !parallel::any_rank(world(), leads() && evaluated(out, step_));
}

/// train.batch is left out where it follows from train.global_batch: another number of ranks has another.
std::string Run::config_text() {
  const auto share = config_.train.batch;
  if (config_.train.global_batch > 0) config_.train.batch = TrainConfig().batch;
  auto text = table_of(config_).to_toml();
  config_.train.batch = share;
  return text;
}

/// Steps of another size than before are valid, but seldom intended.
void Run::tell_of_other_batch(std::int64_t before) {
  const auto now = rows_of_step();
  if (before <= 0 || before == now) return;
  progress_.say(fmt::format(
      "warning: a step now takes {} samples, but took {} before this checkpoint: train.batch is the batch of each of "
      "{} data-parallel ranks; train.global_batch = {} keeps the size of a step on any number of ranks",
      now, before, mesh_.dp().size(), before));
}

void Run::resume() {
  const Waiting waiting(hooks_.console, "reading the last checkpoint");
  const auto warn = [&](const std::string& message) { progress_.say("warning: " + message); };
  const auto found = io::Checkpoints::find(config_.output / "checkpoints", config_.checkpoint.resume, warn, &io_ranks_);
  if (!found) return;
  task_.data().check_resumes(found->path);
  if (found->state.seed != config_.train.seed)
    fail_usage("resume", "{} was made with seed {}, but train.seed is {}", found->path.string(), found->state.seed,
               config_.train.seed);
  check_resumed(*found, config_.train.epochs > 0 ? 0 : steps_, task_.data().rows());
  io::load_checkpoint(found->path, train_->weights(), train_->optimizer_state());
  train_->store();
  step_ = saved_ = found->state.step;
  seen_ = found->state.tokens;
  start_ = {found->state.epoch, found->state.index};
  // Earlier steps may have had another size, as on another number of ranks, so epochs are counted in samples.
  if (config_.train.epochs > 0) schedule_.steps = steps_ = step_ + steps_from(start_);
  const auto scalar = [&](const char* name, double otherwise) {
    const auto it = found->state.scalars.find(name);
    return it == found->state.scalars.end() ? otherwise : it->second;
  };
  loss_ = scalar("loss", 0);
  tell_of_other_batch(static_cast<std::int64_t>(scalar("rows_of_step", 0)));
  const auto score = [&](const std::string& of) {
    const auto part = [&](const char* name) { return scalar((of + name).c_str(), 0); };
    return Score{part("_loss"), part("_correct"), static_cast<std::int64_t>(part("_counted"))};
  };
  epoch_score_ = score("epoch"), interval_score_ = score("interval");
  epoch_done_ = scalar("epoch_done", 0) > 0;
  evaluation_due_ = scalar("evaluation_due", 0) > 0;
  auto state = train_->scale_state();
  state.scale = static_cast<float>(scalar("loss_scale", state.scale));
  state.counts.good = static_cast<std::int32_t>(scalar("good_steps", 0)),
  state.counts.skipped = static_cast<std::int32_t>(scalar("skipped_steps", 0));
  train_->set_scale_state(state);
}

void Run::stop_non_finite(std::string_view what) {
  const auto why = train_->explain_non_finite();
  std::string where, advice = "Lower train.lr, raise train.warmup, or check the data";
  if (why.micro >= 0) {
    if (config_.train.accumulate > 1) where += fmt::format(" of micro-batch {}", why.micro + 1);
    const bool some = !why.rows.empty() && std::ssize(why.rows) < config_.train.batch;
    where += fmt::format(
        ", in {}",
        task_.describe_samples(step_, why.micro, some ? std::span(why.rows) : std::span<const std::int64_t>()));
  }
  if (why.input) advice = "Repair these samples or leave them out";
  fail("train", "step {}: the {} is not finite; the first bad tensor is {}{}. {}; {}", step_ + 1, what, why.what, where,
       advice,
       saved_ >= 0 ? fmt::format("the last checkpoint is of step {}", saved_) : "no checkpoint has been written");
}

/// A step that was skipped. Loss scaling finds its scale in this way, until the scale cannot be reduced further.
void Run::overflowed(const StepResult& result) {
  const auto state = train_->scale_state();
  const std::string_view what = std::isfinite(result.loss) ? "gradient norm" : "loss";
  if (!train_->scales_loss() || state.counts.stuck > 0) stop_non_finite(what);
  progress_.say(fmt::format("step {}: the {} is not finite, so nothing was changed; the loss scale is now {}",
                            step_ + 1, what, state.scale));
}

void Run::fetch_batch() {
  const InStage stage(hooks_.observer, Stage::data);
  const comm::InPhase phase(world().ledger(), comm::Phase::data);
  task_.next();
}

/// Fetches the micro-batches of a step and queues their passes; on a CPU, runs them.
void Run::queue_passes(std::int64_t step) {
  const auto epoch = task_.data().position().epoch;
  Queued q;
  for (std::int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
    fetch_batch();
    q.valid += task_.accumulate(*train_, step, micro, micro + 1 == config_.train.accumulate);
  }
  q.behind = task_.data().position();
  q.epoch_done = q.behind.epoch > epoch;
  next_ = q;
}

/// Whether the model is evaluated after that many steps.
bool Run::evaluates_at(std::int64_t step, bool epoch_done) const {
  const auto& t = config_.train;
  return step == steps_ || due(step, t.eval_every) || (t.eval_every == 0 && t.epochs > 0 && epoch_done);
}
bool Run::logs_at(std::int64_t step) const { return step == steps_ || due(step, config_.train.log_every); }
bool Run::saves_at(std::int64_t step) const {
  return step == steps_ || step == save_at_ || config_.checkpoint.every.at(step);
}

/// So that a GPU is not idle while the host handles the result of a step, the passes of the next one are queued
/// before. Not if the model, times or gradients are needed as they are between the two.
bool Run::may_go_ahead() const {
  return train_->on_gpu() && !hooks_.observer && mesh_.tp().size() == 1 && !summary_.stopped &&
         !evaluates_at(step_ + 1, next_->epoch_done) && !saves_at(step_ + 1) &&
         !(config_.parallel.time_exchange && logs_at(step_ + 1));
}

void Run::one_step() {
  const auto start = Clock::now();
  if (hooks_.observer) hooks_.observer->begin_step(step_);
  const double waited = task_.data().waited_seconds();
  if (!next_) queue_passes(step_);
  const auto mine = *next_;
  lr_ = schedule_.at(step_);
  train_->queue_update(lr_, mine.valid);
  const bool ahead = may_go_ahead();
  next_.reset();
  if (ahead) queue_passes(step_ + 1);
  const auto result = train_->result();
  if (!result.finite()) overflowed(result);
  if (std::isfinite(result.loss)) loss_ = result.loss / static_cast<double>(result.valid_tokens);
  norm_ = result.grad_norm;
  if (epoch_done_) epoch_score_ = {};
  for (auto* score : {&interval_score_, &epoch_score_})
    if (result.finite()) *score += {result.loss, result.correct, result.valid_tokens};
  if (hooks_.observer) hooks_.observer->end_step(step_);
  ++step_;
  seen_ += rows_of_step() * task_.units().in_row;
  ++interval_steps_;
  at_ = mine.behind;
  epoch_done_ = mine.epoch_done;
  report(seconds_since(start), task_.data().waited_seconds() - waited);
}

/// Updates the bar, after every step.
StepNumbers Run::brief_numbers() const {
  const auto units = task_.units();
  const double spent = seconds_since(loop_begin_);
  StepNumbers n{
      .step = step_,
      .steps = steps_,
      .loss = loss_,
      .lr = lr_,
      .grad_norm = norm_,
      .per_second = static_cast<double>(rows_of_step() * units.in_row) / recent_seconds_,
      .unit = units.brief,
      .seconds = spent,
      .seconds_left = static_cast<double>(steps_ - step_) * spent / static_cast<double>(step_ - summary_.first_step)};
  if (config_.train.epochs > 0) n.epoch = epoch();
  if (units.classes) n.accuracy = interval_score_.accuracy();
  return n;
}

/// The numbers of the interval that ends now.
StepNumbers Run::numbers() {
  const double per_step = interval_seconds_ / static_cast<double>(interval_steps_);
  auto n = brief_numbers();
  n.per_second = static_cast<double>(rows_of_step() * task_.units().in_row) / per_step;
  n.sol_percent = light_seconds_ < 0 ? -1 : 100 * light_seconds_ / per_step;
  n.data_wait_percent = 100 * interval_waited_ / interval_seconds_;
  if (train_->gradients() && (!train_->on_gpu() || train_->gradients()->times().passes > exchanged_.passes)) {
    const auto now = train_->gradients()->times();
    const parallel::ExchangeTimes since{now.seconds - exchanged_.seconds,
                                        now.waited_seconds - exchanged_.waited_seconds, now.passes - exchanged_.passes};
    const double steps_of_one = since.passes > 0
                                    ? static_cast<double>(interval_steps_) / static_cast<double>(since.passes)
                                    : 1;  // a GPU reports some
    n.comm_percent = 100 * since.seconds * steps_of_one / interval_seconds_;
    n.hidden_percent = 100 * since.hidden();
    exchanged_ = now;
  }
  return n;
}

void Run::report(double seconds, double waited) {
  interval_seconds_ += seconds;
  interval_waited_ += waited;
  summary_.seconds += seconds;
  recent_seconds_ += (seconds - recent_seconds_) * (recent_seconds_ > 0 ? 0.1 : 1);
  if (progress_.has_bar()) progress_.show(progress_bar(brief_numbers()));
  if (!logs_at(step_) && step_ != summary_.first_step + 1) return;
  const auto n = numbers();
  auto line = metrics_line(n, task_.units(), seen_);
  if (train_->scales_loss()) {
    const auto state = train_->scale_state();
    line["loss_scale"] = state.scale, line["skipped_steps"] = state.counts.skipped;
  }
  if (logs_at(step_)) log_.write(line, step_);
  progress_.stay(n);
  interval_seconds_ = interval_waited_ = 0;
  interval_steps_ = 0;
  if (logs_at(step_)) interval_score_ = {};
}

/// A run that is asked to stop has seconds or minutes, and an evaluation may take longer: it is left to the resumed
/// run. Ranks that share the layers of a model stop it after the same batch.
void Run::evaluate() {
  evaluation_due_ = false;
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
                      .facts = {{fmt::format("step {}", step_)}, {fmt::format("batch {}", ++done)}},
                      .needed = 2});
    return !(cut = parallel::any_rank(mesh_.tp(), StopSignals::requested() != 0));
  };
  const auto mine = task_.evaluate(*train_, batches, goes_on);
  if (!mine) return;
  const double sums[] = {mine->loss, mine->correct, static_cast<double>(mine->counted), cut ? 1.0 : 0.0};
  const auto all = parallel::sum_over_ranks(mesh_.dp(), sums);
  const Score score{all[0], all[1], static_cast<std::int64_t>(all[2])};
  evaluation_due_ = all[3] > 0;
  if (evaluation_due_)
    return progress_.say(fmt::format("step {}  asked to stop: the resumed run will evaluate", step_));
  if (score.counted == 0) return;
  summary_.eval_loss = score.mean();
  summary_.eval_tokens = score.counted;
  io::Json line = {{"step", step_}};
  if (config_.train.epochs > 0) line["epoch"] = epoch();
  if (task_.units().classes) {
    summary_.eval_accuracy = score.accuracy(), summary_.accuracy = epoch_score_.accuracy();
    line["train_accuracy"] = summary_.accuracy;
  }
  line.update(score.metrics(task_.units()));
  log_.write(line, step_);
  progress_.say(fmt::format("step {}  evaluation: {}", step_, score.words(task_.units())));
}

void Run::save() {
  if (saved_ == step_ || !checkpoints_) return;
  const InStage stage(hooks_.observer, Stage::save);
  const comm::InPhase phase(world().ledger(), comm::Phase::checkpoint);
  const Waiting waiting(hooks_.console, fmt::format("saving step {}", step_));
  train_->share_buffers();
  train_->fetch();
  io::CheckpointContent content;
  content.model = train_->weights(), content.optimizer = train_->optimizer_state();
  content.config_toml = toml_;
  content.extra = [&](const fs::path& folder) { task_.save_beside(folder); };
  std::map<std::string, double> scalars{{"loss", loss_}, {"rows_of_step", static_cast<double>(rows_of_step())}};
  const auto keep = [&](const std::string& of, const Score& score) {
    scalars.insert({{of + "_loss", score.loss},
                    {of + "_correct", score.correct},
                    {of + "_counted", static_cast<double>(score.counted)}});
  };
  if (task_.units().classes) keep("interval", interval_score_);
  if (task_.units().classes && (!epoch_done_ || evaluation_due_)) keep("epoch", epoch_score_);
  // One of the ranks that hold the same tensor writes it: if they differed, the checkpoint would mix two models.
  expect_equal_replicas(mesh_, content,
                        saved_ >= 0
                            ? fmt::format("step {} is not saved, and the last checkpoint is of step {}", step_, saved_)
                            : fmt::format("step {} is not saved, and no checkpoint has been written", step_));
  if (evaluation_due_) scalars.insert({{"evaluation_due", 1}, {"epoch_done", epoch_done_}});
  if (const auto state = train_->scale_state(); train_->scales_loss())
    scalars.insert(
        {{"loss_scale", state.scale}, {"good_steps", state.counts.good}, {"skipped_steps", state.counts.skipped}});
  const auto folder = checkpoints_->save({.step = step_,
                                          .tokens = seen_,
                                          .seed = config_.train.seed,
                                          .epoch = at_.epoch,
                                          .index = at_.index,
                                          .scalars = scalars},
                                         content);
  if (step_ < steps_) progress_.say(fmt::format("step {}  saved: {}", step_, folder.string()));
  saved_ = step_;
  last_save_ = Clock::now();
}

/// What all ranks must agree on before the next step: whether one of them was asked to stop, and whether the
/// checkpoint after that step is due. They agree one step ahead, because a GPU queues the passes of the following step
/// early.
void Run::agree() {
  const auto& every = config_.checkpoint.every;
  const int signal = StopSignals::requested();
  const bool due = leads() && every.seconds > 0 && seconds_since(last_save_) >= every.seconds;
  const double mine[] = {signal != 0 ? 1.0 : 0.0, signal != 0 && signal != SIGINT ? 1.0 : 0.0, due ? 1.0 : 0.0};
  const auto all = parallel::sum_over_ranks(world(), mine);
  asked_ = all[0] > 0;
  summary_.interrupted = asked_ && all[1] == 0;
  if (all[2] > 0) save_at_ = step_ + 1;
}

void Run::say_stopped() {
  const auto why = summary_.interrupted ? "interrupted" : "asked to stop";
  if (hooks_.steps_only) return progress_.say(fmt::format("{}: ended at step {}", why, step_));
  progress_.say(
      fmt::format("{}: saved step {} of {}; {}", why, step_, steps_,
                  hooks_.command.empty() ? "the same command continues from there" : "to continue from there:"));
  if (!hooks_.command.empty()) progress_.say("  " + hooks_.command);
}

void Run::finish() {
  if (hooks_.steps_only) return;
  const auto folder = config_.output / "model";
  const Waiting waiting(hooks_.console, "writing the model");
  if (leads()) io::make_folder(folder);
  train_->share_buffers();
  train_->fetch();
  task_.save_model(*model_, folder);
  parallel::any_rank(world(), false);
  summary_.model = folder;
}

void Run::summarise() {
  summary_.step = step_;
  summary_.loss = loss_;
  summary_.images = task_.units().classes;
  const auto steps_done = static_cast<double>(step_ - summary_.first_step);
  if (steps_done == 0) return;
  if (const auto* g = train_->gradients(); g && (!train_->on_gpu() || g->times().passes > 0)) {
    summary_.comm_seconds =
        g->times().seconds * (train_->on_gpu() ? steps_done / static_cast<double>(g->times().passes) : 1);
    summary_.hidden_percent = 100 * g->times().hidden();
  }
  summary_.samples_per_second = steps_done * static_cast<double>(rows_of_step()) / summary_.seconds;
  if (!summary_.images)
    summary_.tokens_per_second = summary_.samples_per_second * static_cast<double>(task_.units().in_row);
  if (light_seconds_ >= 0) summary_.sol_percent = 100 * light_seconds_ * steps_done / summary_.seconds;
}

RunSummary Run::go() {
  using enum StopSignals::Interrupt;
  const StopSignals signals(!hooks_.stops_on_interrupt ? ends : leads() ? stops_and_says_so : stops);
  const comm::InPhase phase(world().ledger(), comm::Phase::compute);
  summary_.eval_loss = std::numeric_limits<double>::quiet_NaN();
  const auto& t = config_.train;
  if (step_ >= steps_)
    progress_.say(fmt::format("already at step {} of {}: raise train.{} to train longer", step_, steps_,
                              t.epochs > 0 ? "epochs" : "steps"));
  last_save_ = loop_begin_ = Clock::now();
  if (evaluation_due_) evaluate();
  if (evaluation_due_) agree();
  summary_.stopped = evaluation_due_;
  while (step_ < steps_ && (!summary_.stopped || next_)) {  // queued work is completed
    one_step();
    const bool last = step_ == steps_;
    if (evaluates_at(step_, epoch_done_)) evaluate();
    if (saves_at(step_)) save();
    if (hooks_.after_step) hooks_.after_step(step_);
    agree();
    summary_.stopped = asked_ && (!last || evaluation_due_);
  }
  progress_.end_bar();
  if (summary_.stopped) {
    save();
    say_stopped();
  } else {
    finish();
  }
  log_.flush();
  summarise();
  return summary_;
}

}  // namespace

RunSummary run(RunConfig& config, const Hooks& hooks) {
  if (config.output.empty() && !hooks.steps_only) fail_usage("train", "no output folder: give --out DIR or set output");
  expect_same_config(config, hooks.world, hooks.facts);
  check_config(config);  // mistakes are reported before the long preparation of the text
  share_global_batch(config, hooks.world.size());
  models::resolve(config.model);
  if (!hooks.steps_only) io::make_folder(config.output);
  return Run(config, hooks).go();
}

void forget_run(const fs::path& folder) {
  for (const char* name : {"checkpoints", "model", "tensorboard", RunLog::kMetrics, "config.toml"})
    fs::remove_all(folder / name);
}

}  // namespace hpcdl::train
