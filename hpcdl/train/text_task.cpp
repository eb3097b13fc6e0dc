#include "hpcdl/train/text_task.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/hf_config.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/facts.h"
#include "hpcdl/train/run_log.h"
#include "hpcdl/train/without_data.h"

namespace hpcdl::train {

namespace {

namespace fs = std::filesystem;

fs::path default_cache() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  return (xdg && *xdg ? fs::path(xdg) : fs::path(home && *home ? home : "/tmp") / ".cache") / "hpcdl" / "data";
}

/// If it cannot be written, as in a container without a home, next to the run.
fs::path cache_of(const RunConfig& c) {
  if (!c.data.cache.empty()) return c.data.cache;
  const fs::path usual = default_cache();
  std::error_code error;
  fs::create_directories(usual, error);
  return (!error && ::access(usual.c_str(), W_OK) == 0) || c.output.empty() ? usual : c.output / "cache";
}

/// The tokenizer that the run to be resumed began with; empty: there is none.
fs::path tokenizer_of_run(const RunConfig& c) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  if (c.checkpoint.resume != "auto") folders = {c.checkpoint.resume};
  else if (fs::is_directory(c.output / "checkpoints", ignored)) folders = io::list_folder(c.output / "checkpoints");
  fs::path newest;
  std::int64_t serial = -1;
  for (const auto& folder : folders) {
    if (!fs::exists(folder / "tokenizer.json", ignored)) continue;
    try {
      if (const auto info = io::read_checkpoint_info(folder); info.serial > serial)
        newest = folder / "tokenizer.json", serial = info.serial;
    } catch (const Error&) {}  // resuming tells of the damaged ones
  }
  return newest;
}

data::PreparedText prepare(const RunConfig& c, Pool& pool, const Console& console) {
  if (c.data.text.empty()) fail_usage("data", "no text to train on: set data.text to a file or folder");
  data::PrepareOptions o;
  for (const auto& t : c.data.text) o.text.emplace_back(t);
  o.cache = cache_of(c);
  o.vocab = static_cast<int>(c.data.vocab_size);
  o.tokenizer = c.data.tokenizer;
  o.val_fraction = c.data.val_fraction;
  o.options.replace_invalid = c.data.replace_invalid;
  if (!c.output.empty())
    o.not_text = c.output / RunLog::kMetrics;  // the run may lie among its texts, and is to find the same ones again
  auto text = data::prepare_text(o, pool, tokenize_progress(console));
  const fs::path of_run = o.tokenizer.empty() ? tokenizer_of_run(c) : fs::path();
  if (of_run.empty()) return text;
  // Learnt from a text that has changed since, the same ids would be other words.
  const auto theirs = io::Tokenizer::load(of_run);
  if (theirs.vocab_size() != text.tokenizer.vocab_size() || theirs.to_json() == text.tokenizer.to_json()) return text;
  Progress(console).say("the text has changed since the run began; the run keeps its tokenizer");
  o.tokenizer = of_run;
  return data::prepare_text(o, pool, tokenize_progress(console));
}

void fit_vocabulary(io::ModelConfig& model, const io::Tokenizer& tokenizer) {
  if (model.vocab == 0) model.vocab = tokenizer.vocab_size();
  if (model.vocab < tokenizer.vocab_size())
    fail_usage("model", "model.vocab is {}, but the tokenizer has ids up to {}: leave it out, or set it to at least {}",
               model.vocab, tokenizer.vocab_size() - 1, tokenizer.vocab_size());
  if (const auto end = tokenizer.end_of_text()) {
    model.eos = {*end};
    model.bos = *end;
  }
  if (const auto begin = tokenizer.begin_of_text()) model.bos = *begin;
}

}  // namespace

TextTask::TextTask(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console)
    : config_(config),
      mesh_(mesh),
      text_(parallel::host_by_host(mesh.world(), [&] { return prepare(config, pool, console); })) {
  fit_vocabulary(config_.model, text_.tokenizer);
  config_.model.resolve();
}

std::string TextTask::describe_data() const {
  return format_count(static_cast<double>(text_.train_tokens)) + " training tokens";
}

std::vector<parallel::Fact> TextTask::facts() const {
  return {{"data.tokenizer", fmt::format("a vocabulary of {} with checksum {:08x}", text_.tokenizer.vocab_size(),
                                         io::crc32c(text_.tokenizer.to_json()))},
          {"data.text",
           fmt::format("{} training and {} validation tokens with checksums {:08x} and {:08x}", text_.train_tokens,
                       text_.val_tokens, file_checksum(text_.train), file_checksum(text_.val))}};
}

std::unique_ptr<models::Trainable> TextTask::make_model(std::optional<std::uint64_t> seed) const {
  return language_model(config_, mesh_, seed);
}

std::int64_t TextTask::bytes_ahead(std::int64_t batch) const {
  return (data::LoaderOptions().prefetch + 1) * batch * config_.model.context * 2 * std::int64_t{sizeof(data::TokenId)};
}

std::int64_t TextTask::bytes_mapped() const {
  return static_cast<std::int64_t>(fs::file_size(text_.train) + fs::file_size(text_.val));
}

void TextTask::check_resumes(const fs::path& folder) const {
  auto theirs = io::read_hf_config(folder);
  const auto& ours = config_.model;
  theirs.bos = ours.bos, theirs.eos = ours.eos, theirs.dtype = ours.dtype;
  if (theirs != ours)
    fail_usage(
        "resume",
        "{} holds another model than [model] describes: use another output folder, or set checkpoint.resume = \"none\"",
        folder.string());
  if (fs::exists(folder / "tokenizer.json") &&
      io::Tokenizer::load(folder / "tokenizer.json").to_json() != text_.tokenizer.to_json())
    fail_usage("resume",
               "{} was trained with another tokenizer: keep data.tokenizer as it was, use another output folder, or "
               "set checkpoint.resume = \"none\"",
               folder.string());
}

void TextTask::open_data(const data::LoaderState& start, bool evaluates, const Stream&) {
  const auto train_files = std::vector<fs::path>{text_.train};
  const auto vocab = static_cast<data::TokenId>(config_.model.vocab);
  const auto& t = config_.train;
  loader_.emplace(data::open_token_files(train_files),
                  data::LoaderOptions{.batch = t.batch,
                                      .context = config_.model.context,
                                      .seed = t.seed,
                                      .vocab = vocab,
                                      .rank = mesh_.dp().rank(),
                                      .world = mesh_.dp().size()},
                  start);
  if (!evaluates || text_.val_tokens < 2) return;
  const auto val_files = std::vector<fs::path>{text_.val};
  eval_.emplace(data::open_token_files(val_files), t.batch, config_.model.context, vocab, mesh_.dp().rank(),
                mesh_.dp().size());
}

std::int64_t TextTask::accumulate(TrainStep& step, std::int64_t number, std::int64_t micro, bool last) {
  samples_.note(number, micro, batch_->samples);
  step.accumulate(batch_->tokens, batch_->targets, number, micro, last);
  return batch_->valid;
}

std::string TextTask::describe_samples(std::int64_t number, std::int64_t micro,
                                       std::span<const std::int64_t> rows) const {
  return fmt::format("windows {} of {} (window i: {} tokens from token {} * i)",
                     fmt::join(samples_.in(number, micro, rows), ", "), text_.train.string(), config_.model.context,
                     config_.model.context);
}

std::optional<Score> TextTask::evaluate(TrainStep& step, std::int64_t batches, const std::function<bool()>& goes_on) {
  if (!eval_) return {};
  eval_->rewind();
  Score sum;
  for (std::int64_t i = 0; i < batches && goes_on(); ++i) {  // on each rank; batches go round them
    const auto* batch = eval_->next();
    if (!batch) break;
    const comm::InPhase phase(mesh_.world().ledger(), comm::Phase::compute);
    sum.loss += step.evaluate(batch->tokens, batch->targets).loss;
    sum.counted += batch->valid;
  }
  return sum;
}

io::Json TextTask::score_metrics(const Score& all) const {
  return {{"eval_loss", all.mean()}, {"eval_perplexity", std::exp(all.mean())}, {"eval_tokens", all.counted}};
}

std::string TextTask::score_words(const Score& all) const {
  return fmt::format("loss {:.4f}, perplexity {:.2f} over {} tokens", all.mean(), std::exp(all.mean()), all.counted);
}

void TextTask::save_beside(const fs::path& folder) const {
  io::write_hf_config(folder, config_.model);
  text_.tokenizer.save_folder(folder, static_cast<int>(config_.model.context));
}

void TextTask::save_model(const models::Trainable& model, const fs::path& folder) const {
  if (mesh_.dp().rank() == 0) model.save(folder);  // those that share the layers of one model
  if (mesh_.world().rank() == 0) text_.tokenizer.save_folder(folder, static_cast<int>(config_.model.context));
}

}  // namespace hpcdl::train
