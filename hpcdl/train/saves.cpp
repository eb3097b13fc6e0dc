#include "hpcdl/train/saves.h"

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint_share.h"
#include "hpcdl/train/check_resumed.h"
#include "hpcdl/train/replicas.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::train {

namespace {

namespace fs = std::filesystem;

/// train.batch is left out where it follows from train.global_batch: another number of ranks has another.
std::string config_text(RunConfig& config) {
  const auto share = config.train.batch;
  if (config.train.global_batch > 0) config.train.batch = TrainConfig().batch;
  auto text = table_of(config).to_toml();
  config.train.batch = share;
  return text;
}

}  // namespace

io::TrainState Standing::to_state(std::uint64_t seed, std::int64_t rows_of_step, bool classes) const {
  io::TrainState state{.step = step,
                       .tokens = seen,
                       .seed = seed,
                       .epoch = at.epoch,
                       .index = at.index,
                       .scalars = {{"loss", loss}, {"rows_of_step", static_cast<double>(rows_of_step)}}};
  const auto keep = [&](const std::string& of, const Score& score) {
    state.scalars.insert({{of + "_loss", score.loss},
                          {of + "_correct", score.correct},
                          {of + "_counted", static_cast<double>(score.counted)}});
  };
  if (classes) keep("interval", interval);
  if (classes && (!epoch_done || evaluation_due)) keep("epoch", epoch);
  if (evaluation_due) state.scalars.insert({{"evaluation_due", 1}, {"epoch_done", epoch_done}});
  return state;
}

Standing Standing::from_state(const io::TrainState& state) {
  const auto score = [&](const std::string& of) {
    return Score{state.scalar(of + "_loss", 0), state.scalar(of + "_correct", 0),
                 static_cast<std::int64_t>(state.scalar(of + "_counted", 0))};
  };
  return {.step = state.step,
          .seen = state.tokens,
          .at = {state.epoch, state.index},
          .loss = state.scalar("loss", 0),
          .interval = score("interval"),
          .epoch = score("epoch"),
          .epoch_done = state.scalar("epoch_done", 0) > 0,
          .evaluation_due = state.scalar("evaluation_due", 0) > 0};
}

Saves::Saves(RunConfig& config, const Hooks& hooks, const parallel::Mesh& mesh, Task& task, TrainStep& step,
             Progress& progress)
    : config_(config),
      hooks_(hooks),
      mesh_(mesh),
      task_(task),
      step_(step),
      progress_(progress),
      toml_(config_text(config)),
      ranks_(mesh.world()),
      checkpoints_(config.output / "checkpoints", config.checkpoint.keep, &ranks_) {}

/// Steps of another size than before are valid, but seldom intended.
void Saves::warn_of_other_batch(std::int64_t before) const {
  const auto now = rows_of_step(config_, mesh_);
  if (before <= 0 || before == now) return;
  progress_.say(fmt::format(
      "warning: a step now takes {} samples, but took {} before this checkpoint: train.batch is the batch of each of "
      "{} data-parallel ranks; train.global_batch = {} keeps the size of a step on any number of ranks",
      now, before, mesh_.dp().size(), before));
}

Standing Saves::resume(std::int64_t steps) {
  const Waiting waiting(hooks_.console, "reading the last checkpoint");
  const auto warn = [&](const std::string& message) { progress_.say("warning: " + message); };
  const auto found = io::Checkpoints::find(config_.output / "checkpoints", config_.checkpoint.resume, warn, &ranks_);
  if (!found) return {};
  const auto& state = found->state;
  task_.check_resumes(found->path);
  if (state.seed != config_.train.seed)
    fail_usage("resume", "{} was made with seed {}, but train.seed is {}", found->path.string(), state.seed,
               config_.train.seed);
  check_resumed(*found, steps, task_.data().rows());
  const auto load = mesh_.pp().size() > 1 ? io::load_checkpoint_share : io::load_checkpoint;
  load(found->path, step_.weights(), step_.optimizer_state());
  step_.store();
  saved_ = state.step;
  ways_ = state.ways;
  warn_of_other_batch(static_cast<std::int64_t>(state.scalar("rows_of_step", 0)));
  step_.load_scale(state);
  return Standing::from_state(state);
}

void Saves::prepare() {
  step_.prepare_fetch();
  io::CheckpointContent content;
  content.model = step_.weights(), content.optimizer = step_.optimizer_state();
  checkpoints_.prepare(content, step_.stays());
}

void Saves::write_config() const { io::write_file_atomic(config_.output / "config.toml", toml_); }

void Saves::save(const Standing& now, bool wait, bool say) {
  const auto start = Clock::now();
  finish();
  if (saved_ == now.step) return;
  const InStage stage(hooks_.observer, Stage::save);
  const comm::InPhase phase(mesh_.world().ledger(), comm::Phase::checkpoint);
  const Waiting waiting(hooks_.console, fmt::format("saving step {}", now.step));
  const bool goes_on = config_.checkpoint.asynchronous && !wait;
  step_.share_buffers();
  std::function<void()> arrive;
  if (goes_on) arrive = step_.fetch_behind();
  else step_.fetch();
  io::CheckpointContent content;
  content.model = step_.weights(), content.optimizer = step_.optimizer_state();
  content.config_toml = toml_;
  content.extra = [&](const fs::path& folder) { task_.save_beside(folder); };
  // One of the ranks that hold the same tensor writes it: if they differed, the checkpoint would mix two models.
  auto outcome = fmt::format("step {} is not saved, and {}", now.step, last_one());
  auto state = now.to_state(config_.train.seed, rows_of_step(config_, mesh_), task_.units().classes);
  step_.save_scale(state);
  state.ways = ways_;
  saving_ = now.step;
  begin();
  if (goes_on) {
    const auto stays = step_.stays();
    check_replicas_later(mesh_, content, stays, std::move(outcome));
    checkpoints_.begin(state, content, stays, std::move(arrive));
  } else {
    expect_equal_replicas(mesh_, content, outcome);
    done(checkpoints_.save(state, content), say);
  }
  stall_ += seconds_since(start);
}

void Saves::finish() {
  if (!checkpoints_.pending()) return;
  const auto start = Clock::now();
  const comm::InPhase phase(mesh_.world().ledger(), comm::Phase::checkpoint);
  done(checkpoints_.finish(), true);
  stall_ += seconds_since(start);
}

void Saves::done(const fs::path& folder, bool say) {
  saved_ = saving_;
  if (say) progress_.say(fmt::format("step {}  saved: {}", saved_, folder.string()));
}

std::string Saves::last_one() const {
  const auto text =
      saved_ >= 0 ? fmt::format("the last checkpoint is of step {}", saved_) : "no checkpoint has been written";
  return checkpoints_.pending() ? fmt::format("{}, and that of step {} is being written", text, saving_) : text;
}

}  // namespace hpcdl::train
