#include "hpcdl/train/trainer.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/data/loader.h"
#include "hpcdl/data/prepare.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint.h"
#include "hpcdl/io/config_table.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/io/hf_config.h"
#include "hpcdl/io/jsonl.h"
#include "hpcdl/io/tensorboard.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/stop.h"

namespace hpcdl::train {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

fs::path default_cache() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  return (xdg && *xdg ? fs::path(xdg) : fs::path(home && *home ? home : "/tmp") / ".cache") / "hpcdl" / "data";
}

data::PreparedText prepare(const RunConfig& c, Pool& pool, const Hooks& hooks) {
  if (c.data.text.empty()) fail_usage("data", "no text to train on: set data.text to a file or folder");
  data::PrepareOptions o;
  for (const auto& t : c.data.text) o.text.emplace_back(t);
  o.cache = c.data.cache.empty() ? default_cache() : c.data.cache;
  o.vocab = static_cast<int>(c.data.vocab_size);
  o.tokenizer = c.data.tokenizer;
  o.val_fraction = c.data.val_fraction;
  return data::prepare_text(o, pool, tokenize_progress(hooks.console));
}

void fit_vocabulary(io::ModelConfig& model, const io::Tokenizer& tokenizer) {
  if (model.vocab == 0) model.vocab = tokenizer.vocab_size();
  if (model.vocab < tokenizer.vocab_size())
    fail_usage("model", "vocab is {}, but the tokenizer has ids up to {}: leave model.vocab out, or make it at least {}", model.vocab,
               tokenizer.vocab_size() - 1, tokenizer.vocab_size());
  if (const auto end = tokenizer.end_of_text()) {
    model.eos = {*end};
    model.bos = *end;
  }
  if (const auto begin = tokenizer.begin_of_text()) model.bos = *begin;
}

/// The parts of a run that live as long as its loop.
class Run {
 public:
  Run(RunConfig& config, const Hooks& hooks);
  RunSummary go();

 private:
  void open_files();
  void resume();
  void one_step();
  const data::Batch& next_batch();
  void report(double seconds, double waited);
  void log(const io::Json& line);
  void evaluate();
  void save();
  void finish();
  [[noreturn]] void stop_non_finite(std::string_view what);
  void overflowed(const StepResult& result);
  bool due(std::int64_t every) const { return every > 0 && step_ % every == 0; }

  bool leads() const { return world().rank() == 0; }  // logs and writes
  const comm::Group& world() const { return mesh_.world(); }

  RunConfig& config_;
  Hooks hooks_;
  parallel::Mesh mesh_;
  io::GroupRanks io_ranks_;
  Progress progress_;
  Pool pool_;
  data::PreparedText text_;
  std::optional<models::LanguageModel> model_;
  std::optional<TrainStep> train_;
  std::optional<data::Loader> loader_;
  std::optional<data::EvalBatches> eval_;
  std::optional<io::Checkpoints> checkpoints_;
  std::optional<io::JsonlWriter> metrics_;
  std::optional<io::TensorBoardWriter> tensorboard_;
  Schedule schedule_;
  std::string toml_;
  std::int64_t step_ = 0, tokens_ = 0, saved_ = -1;
  data::LoaderState start_;
  // of the last step
  double loss_ = 0, norm_ = 0, lr_ = 0;
  std::int64_t valid_ = 0;
  // since the last line of metrics
  double interval_seconds_ = 0, interval_waited_ = 0;
  parallel::ExchangeTimes exchanged_;  // until then
  std::int64_t interval_tokens_ = 0, interval_steps_ = 0;
  double light_seconds_ = -1;  // of one step at the speed of light
  RunSummary summary_;
};

/// Hooks of one rank: others than the first are silent.
Hooks of_rank(Hooks hooks) {
  if (hooks.world.rank() > 0) hooks.console = {};
  return hooks;
}

Run::Run(RunConfig& config, const Hooks& hooks)
    : config_(config), hooks_(of_rank(hooks)), mesh_(hooks.world, {.dp = static_cast<int>(config.parallel.dp), .tp = static_cast<int>(config.parallel.tp)}), io_ranks_(world()),
      progress_(hooks_.console), pool_(config.train.threads > 0 ? config.train.threads : parallel::threads_per_rank(world())),
      text_(parallel::host_by_host(world(), [&] { return prepare(config, pool_, hooks_); })) {
  fit_vocabulary(config_.model, text_.tokenizer);
  config_.model.resolve();
  const auto& t = config_.train;
  const auto device = device_from_name(t.device);
  if (t.dtype == Compute::fp16 && !device.is_cuda()) fail_usage("train", "train.dtype = fp16 needs a GPU (train.device = \"cuda\"); on a CPU take bf16");
  schedule_ = {t.schedule, t.lr, t.min_lr, t.steps, t.warmup};
  using Scheme = parallel::TensorParallel::Scheme;
  const auto sharing = std::make_shared<parallel::TensorParallel>(mesh_.tp(), config_.parallel.sequence ? Scheme::sequence : Scheme::conjugate);
  model_ = models::LanguageModel::create(config_.model, t.seed, true, sharing);
  auto options = step_options(config_);
  options.data = mesh_.dp();
  train_.emplace(*model_, pool_, options, device);
  train_->watch(hooks_.observer);
  if (hooks_.before_steps) hooks_.before_steps(train_->programs(t.accumulate));
  if (!hooks_.steps_only) open_files();

  const auto train_files = std::vector<fs::path>{text_.train};
  const auto vocab = static_cast<data::TokenId>(config_.model.vocab);
  loader_.emplace(data::open_token_files(train_files),
                  data::LoaderOptions{.batch = t.batch, .context = config_.model.context, .seed = t.seed, .vocab = vocab, .rank = mesh_.dp().rank(), .world = mesh_.dp().size()}, start_);
  if (text_.val_tokens > 1 && !hooks_.steps_only) {
    const auto val_files = std::vector<fs::path>{text_.val};
    eval_.emplace(data::open_token_files(val_files), t.batch, config_.model.context, vocab, mesh_.dp().rank(), mesh_.dp().size());
  }
  if (hooks_.speed_of_light) {
    light_seconds_ = 0;
    for (const auto* exe : train_->programs(t.accumulate)) light_seconds_ += hooks_.speed_of_light(exe->program());
  }
  summary_.parameters = model_->parameter_count();
  summary_.arena_bytes = train_->arena_bytes();
  summary_.first_step = step_;
  progress_.say(fmt::format("{}{} parameters, {} training tokens, {} activations planned, {} threads{}", world().size() > 1 ? mesh_.describe() + ": " : "", format_count(static_cast<double>(summary_.parameters)),
                            format_count(static_cast<double>(text_.train_tokens)), format_bytes(static_cast<double>(summary_.arena_bytes)),
                            pool_.threads(), step_ ? fmt::format("; resumed at step {}", step_) : ""));
}

void Run::open_files() {
  const fs::path out = config_.output;
  toml_ = io::ConfigTable(config_).to_toml();
  checkpoints_.emplace(out / "checkpoints", config_.checkpoint.keep, &io_ranks_);
  if (leads()) io::write_file_atomic(out / "config.toml", toml_);
  resume();
  if (!leads()) return;
  const auto resumed_at = step_ > 0 ? std::optional(step_) : std::nullopt;
  metrics_.emplace(out / "metrics.jsonl", resumed_at);
  io::make_folder(out / "tensorboard");
  tensorboard_.emplace(out / "tensorboard", resumed_at);
}

void Run::resume() {
  const auto warn = [&](const std::string& message) { progress_.say("warning: " + message); };
  const auto found = io::Checkpoints::find(config_.output / "checkpoints", config_.checkpoint.resume, warn, &io_ranks_);
  if (!found) return;
  auto theirs = io::read_hf_config(found->path);
  const auto& ours = config_.model;
  theirs.bos = ours.bos, theirs.eos = ours.eos, theirs.dtype = ours.dtype;
  if (theirs != ours)
    fail_usage("resume", "{} holds another model than [model] describes: use another output folder, or checkpoint.resume = \"none\"",
               found->path.string());
  if (found->state.seed != config_.train.seed)
    fail_usage("resume", "{} was made with seed {}, train.seed is {}", found->path.string(), found->state.seed, config_.train.seed);
  io::load_checkpoint(found->path, train_->weights(), train_->optimizer_state());
  train_->store();
  step_ = saved_ = found->state.step;
  tokens_ = found->state.tokens;
  start_ = {found->state.epoch, found->state.index};
  const auto scalar = [&](const char* name, double otherwise) {
    const auto it = found->state.scalars.find(name);
    return it == found->state.scalars.end() ? otherwise : it->second;
  };
  loss_ = scalar("loss", 0);
  auto state = train_->scale_state();
  state.scale = static_cast<float>(scalar("loss_scale", state.scale));
  state.counts.good = static_cast<std::int32_t>(scalar("good_steps", 0)), state.counts.skipped = static_cast<std::int32_t>(scalar("skipped_steps", 0));
  train_->set_scale_state(state);
}

void Run::stop_non_finite(std::string_view what) {
  const auto why = train_->explain_non_finite();
  fail("train", "step {}: the {} is not finite; the first bad tensor is {}. Lower train.lr, raise train.warmup, or check the data; {}", step_ + 1, what,
       why, saved_ >= 0 ? fmt::format("the last checkpoint is of step {}", saved_) : "no checkpoint has been written");
}

/// A step that was skipped. With loss scaling that is how the scale is found, until it can fall no further.
void Run::overflowed(const StepResult& result) {
  const auto state = train_->scale_state();
  const std::string_view what = std::isfinite(result.loss) ? "gradient norm" : "loss";
  if (!train_->scales_loss() || state.counts.stuck > 0) stop_non_finite(what);
  progress_.say(fmt::format("step {}: the {} is not finite, so nothing was changed; the loss scale is now {}", step_ + 1, what, state.scale));
}

const data::Batch& Run::next_batch() {
  const InStage stage(hooks_.observer, Stage::data);
  const comm::InPhase phase(world().ledger(), comm::Phase::data);
  return loader_->next();
}

void Run::one_step() {
  const auto start = Clock::now();
  if (hooks_.observer) hooks_.observer->begin_step(step_);
  const double waited = loader_->waited_seconds();
  valid_ = 0;
  std::int64_t seen = 0;
  for (std::int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
    const auto& batch = next_batch();
    train_->accumulate(batch.tokens, batch.targets, step_, micro, micro + 1 == config_.train.accumulate);
    valid_ += batch.valid;
    seen += std::ssize(batch.tokens) * mesh_.dp().size();
  }
  lr_ = schedule_.at(step_);
  const auto result = train_->update(lr_, valid_);
  if (result.finite()) loss_ = result.loss / static_cast<double>(result.valid_tokens), norm_ = result.grad_norm;
  else overflowed(result);
  if (hooks_.observer) hooks_.observer->end_step(step_);
  ++step_;
  tokens_ += seen;
  interval_tokens_ += seen;
  ++interval_steps_;
  report(seconds_since(start), loader_->waited_seconds() - waited);
}

void Run::report(double seconds, double waited) {
  interval_seconds_ += seconds;
  interval_waited_ += waited;
  summary_.seconds += seconds;
  const auto& t = config_.train;
  const bool last = step_ == t.steps;
  if (!last && step_ != summary_.first_step + 1 && !due(t.log_every)) return;
  const double per_step = interval_seconds_ / static_cast<double>(interval_steps_);
  StepNumbers n{.step = step_, .steps = t.steps, .loss = loss_, .lr = lr_, .grad_norm = norm_,
                      .tokens_per_second = static_cast<double>(interval_tokens_) / interval_seconds_,
                      .sol_percent = light_seconds_ < 0 ? -1 : 100 * light_seconds_ / per_step,
                      .data_wait_percent = 100 * interval_waited_ / interval_seconds_,
                      .seconds_left = static_cast<double>(t.steps - step_) * summary_.seconds / static_cast<double>(step_ - summary_.first_step)};
  if (train_->gradients() && !train_->on_gpu()) {
    const auto now = train_->gradients()->times();
    const parallel::ExchangeTimes since{now.seconds - exchanged_.seconds, now.waited_seconds - exchanged_.waited_seconds};
    n.comm_percent = 100 * since.seconds / interval_seconds_;
    n.hidden_percent = 100 * since.hidden();
    exchanged_ = now;
  }
  io::Json line = {{"step", n.step}, {"loss", n.loss}, {"lr", n.lr}, {"grad_norm", n.grad_norm}, {"tokens", tokens_},
                                 {"tokens_per_second", n.tokens_per_second}};
  if (n.sol_percent >= 0) line["sol_percent"] = n.sol_percent;
  line["data_wait_percent"] = n.data_wait_percent;
  if (n.comm_percent >= 0) line["comm_percent"] = n.comm_percent, line["hidden_percent"] = n.hidden_percent;
  if (train_->scales_loss()) {
    const auto state = train_->scale_state();
    line["loss_scale"] = state.scale, line["skipped_steps"] = state.counts.skipped;
  }
  if (last || due(t.log_every)) log(line);
  progress_.show(n);
  interval_seconds_ = interval_waited_ = 0;
  interval_tokens_ = interval_steps_ = 0;
}

/// One line of metrics.jsonl, and the same numbers under the tags that dashboards of the field know.
void Run::log(const io::Json& line) {
  if (!metrics_) return;
  metrics_->write(line);
  static constexpr std::pair<const char*, const char*> kTags[] = {
      {"loss", "loss_metrics/global_avg_loss"}, {"grad_norm", "grad_norm"}, {"lr", "lr"}, {"tokens_per_second", "throughput(tps)"},
      {"sol_percent", "speed_of_light(%)"}, {"data_wait_percent", "time_metrics/data_loading(%)"},
      {"comm_percent", "time_metrics/communication(%)"}, {"hidden_percent", "time_metrics/communication_hidden(%)"}, {"loss_scale", "loss_scale"}, {"skipped_steps", "skipped_steps"}, {"eval_loss", "validation_metrics/loss"}, {"eval_perplexity", "validation_metrics/perplexity"}};
  for (const auto& [key, tag] : kTags)
    if (const auto it = line.find(key); it != line.end()) tensorboard_->scalar(tag, it->get<float>(), step_);
}

void Run::evaluate() {
  if (!eval_) return;
  eval_->rewind();
  double sum = 0;
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < config_.train.eval_batches; ++i) {  // on each rank; batches go round them
    const auto* batch = eval_->next();
    if (!batch) break;
    const comm::InPhase phase(world().ledger(), comm::Phase::compute);
    sum += train_->evaluate(batch->tokens, batch->targets);
    tokens += batch->valid;
  }
  const double mine[] = {sum, static_cast<double>(tokens)};
  const auto all = parallel::sum_over_ranks(mesh_.dp(), mine);
  sum = all[0], tokens = static_cast<std::int64_t>(all[1]);
  if (tokens == 0) return;
  summary_.eval_loss = sum / static_cast<double>(tokens);
  summary_.eval_tokens = tokens;
  const double perplexity = std::exp(summary_.eval_loss);
  log({{"step", step_}, {"eval_loss", summary_.eval_loss}, {"eval_perplexity", perplexity}, {"eval_tokens", tokens}});
  progress_.say(fmt::format("step {}  evaluation: loss {:.4f}, perplexity {:.2f} over {} tokens", step_, summary_.eval_loss, perplexity, tokens));
}

void Run::save() {
  if (saved_ == step_ || !checkpoints_) return;
  const InStage stage(hooks_.observer, Stage::save);
  const comm::InPhase phase(world().ledger(), comm::Phase::checkpoint);
  train_->fetch();
  io::CheckpointContent content;
  for (const auto& [name, tensor, shard] : train_->weights()) content.model.push_back({name, tensor, shard});
  for (const auto& [name, tensor, shard] : train_->optimizer_state()) content.optimizer.push_back({name, tensor, shard});
  content.config_toml = toml_;
  content.extra = [&](const fs::path& folder) {
    io::write_hf_config(folder, config_.model);
    text_.tokenizer.save_folder(folder, static_cast<int>(config_.model.context));
  };
  const auto at = loader_->state();
  std::map<std::string, double> scalars{{"loss", loss_}};
  if (const auto state = train_->scale_state(); train_->scales_loss())
    scalars.insert({{"loss_scale", state.scale}, {"good_steps", state.counts.good}, {"skipped_steps", state.counts.skipped}});
  checkpoints_->save({.step = step_, .tokens = tokens_, .seed = config_.train.seed, .epoch = at.epoch, .index = at.index, .scalars = scalars}, content);
  saved_ = step_;
}

void Run::finish() {
  if (hooks_.steps_only) return;
  const auto folder = config_.output / "model";
  if (leads()) io::make_folder(folder);
  if (mesh_.dp().rank() == 0) {  // those that share the layers of one model
    train_->fetch();
    model_->save(folder);
  }
  if (leads()) text_.tokenizer.save_folder(folder, static_cast<int>(config_.model.context));
  parallel::any_rank(world(), false);
  summary_.model = folder;
}

RunSummary Run::go() {
  const StopSignals signals(config_.checkpoint.on_interrupt);
  const comm::InPhase phase(world().ledger(), comm::Phase::compute);
  summary_.eval_loss = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t steps = config_.train.steps;
  if (step_ >= steps) progress_.say(fmt::format("already at step {} of {}: raise train.steps to train on", step_, steps));
  while (step_ < steps && !summary_.stopped) {
    one_step();
    if (step_ == steps || due(config_.train.eval_every)) evaluate();
    if (step_ == steps || due(config_.checkpoint.every)) save();
    if (hooks_.after_step) hooks_.after_step(step_);
    summary_.stopped = parallel::any_rank(world(), StopSignals::requested() != 0) && step_ < steps;
  }
  if (summary_.stopped) {
    save();
    progress_.say(fmt::format("asked to stop: {} step {}{}", hooks_.steps_only ? "left at" : "saved", step_,
                              hooks_.steps_only ? "" : "; the same command goes on from there"));
  } else {
    finish();
  }
  if (tensorboard_) tensorboard_->flush();
  if (train_->gradients() && !train_->on_gpu())
    summary_.comm_seconds = train_->gradients()->times().seconds, summary_.hidden_percent = 100 * train_->gradients()->times().hidden();
  summary_.step = step_;
  summary_.loss = loss_;
  const auto steps_done = static_cast<double>(step_ - summary_.first_step);
  if (steps_done > 0) {
    const auto per_step = static_cast<double>(config_.train.batch * config_.train.accumulate * config_.model.context * mesh_.dp().size());
    summary_.tokens_per_second = steps_done * per_step / summary_.seconds;
    if (light_seconds_ >= 0) summary_.sol_percent = 100 * light_seconds_ * steps_done / summary_.seconds;
  }
  return summary_;
}

}  // namespace

RunSummary run(RunConfig& config, const Hooks& hooks) {
  if (config.output.empty() && !hooks.steps_only) fail_usage("train", "no output folder: give --out DIR or set output");
  config.model.resolve();  // mistakes are told before the long work on the text
  if (!hooks.steps_only) io::make_folder(config.output);
  return Run(config, hooks).go();
}

}  // namespace hpcdl::train
