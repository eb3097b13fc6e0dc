// Text: files of tokens, in windows of the model's context.

#include <fmt/format.h>
#include <unistd.h>

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/data/loader.h"
#include "hpcdl/data/pack_rows.h"
#include "hpcdl/data/prepare.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/data_source.h"
#include "hpcdl/train/facts.h"
#include "hpcdl/train/progress.h"
#include "hpcdl/train/rows_of_rank.h"
#include "hpcdl/train/run_log.h"
#include "hpcdl/train/text_model.h"

namespace hpcdl::train {

namespace {

namespace fs = std::filesystem;

fs::path default_cache() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  return (xdg && *xdg ? fs::path(xdg) : fs::path(home && *home ? home : "/tmp") / ".cache") / "hpcdl" / "data";
}

/// If the cache cannot be written, as in a container without a home folder: next to the run.
fs::path cache_of(const RunConfig& c) {
  if (!c.data.cache.empty()) return c.data.cache;
  const fs::path usual = default_cache();
  std::error_code error;
  fs::create_directories(usual, error);
  return (!error && ::access(usual.c_str(), W_OK) == 0) || c.output.empty() ? usual : c.output / "cache";
}

/// The tokenizer with which the run that is resumed began; empty: there is none.
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
    } catch (const Error&) {}  // resuming reports damaged checkpoints
  }
  return newest;
}

data::PreparedText prepare(const RunConfig& c, Pool& pool, const Console& console) {
  if (c.data.text.empty()) fail_usage("data", "no text to train on: set data.text to a file or folder, or data.chat");
  data::PrepareOptions o;
  for (const auto& t : c.data.text) o.text.emplace_back(t);
  o.cache = cache_of(c);
  o.vocab = static_cast<int>(c.data.vocab_size);
  o.tokenizer = tokenizer_of(c);
  o.val_fraction = c.data.val_fraction;
  o.options.replace_invalid = c.data.replace_invalid;
  if (!c.output.empty())
    o.not_text =
        c.output /
        RunLog::kMetrics;  // the output folder may lie within the text folder; the run must find the same files again
  auto text = data::prepare_text(o, pool, tokenize_progress(console));
  const fs::path of_run = o.tokenizer.empty() ? tokenizer_of_run(c) : fs::path();
  if (of_run.empty()) return text;
  // A tokenizer learned from the changed text would give other words the same ids.
  const auto theirs = io::Tokenizer::load(of_run);
  if (theirs.vocab_size() != text.tokenizer.vocab_size() || theirs.to_json() == text.tokenizer.to_json()) return text;
  Progress(console).say("the text has changed since the run began; the run keeps its tokenizer");
  o.tokenizer = of_run;
  return data::prepare_text(o, pool, tokenize_progress(console));
}

class TextSource final : public DataSource {
 public:
  /// Finds or makes token files and tokenizer, one rank of each host first, and completes config.model from them.
  TextSource(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console)
      : config_(config),
        mesh_(mesh),
        rows_(mesh, config.parallel.cp_mode),
        text_(parallel::host_by_host(mesh.world(), [&] { return prepare(config, pool, console); })) {
    fit_vocabulary(config_, text_.tokenizer);
    if (config_.data.packing && !text_.tokenizer.end_of_text())
      fail_usage("data", "data.packing: the tokenizer has no token that separates documents: set data.packing = false");
  }

  Units units() const override { return {"tokens", "tokens_per_second", "tok/s", "tokens", config_.length()}; }
  std::string describe() const override {
    return format_count(static_cast<double>(text_.train_tokens)) + " training tokens";
  }

  std::string describe_samples(std::span<const std::int64_t> samples) const override {
    return fmt::format("windows {} of {} (window i: {} tokens from token {} * i)", fmt::join(samples, ", "),
                       text_.train.string(), config_.length(), config_.length());
  }

  std::vector<parallel::Fact> facts() const override {
    return {{"data.tokenizer", fmt::format("a vocabulary of {} with checksum {:08x}", text_.tokenizer.vocab_size(),
                                           io::crc32c(text_.tokenizer.to_json()))},
            {"data.text",
             fmt::format("{} training and {} validation tokens with checksums {:08x} and {:08x}", text_.train_tokens,
                         text_.val_tokens, file_checksum(text_.train), file_checksum(text_.val))}};
  }

  std::int64_t rows() const override { return (text_.train_tokens - 1) / config_.length(); }
  DataMemory memory(std::int64_t batch) const override {
    const std::int64_t tokens = batch * config_.length();
    return {.ahead = (data::LoaderOptions().prefetch + 1) * tokens * 2 * std::int64_t{sizeof(data::TokenId)},
            .mapped = static_cast<std::int64_t>(fs::file_size(text_.train) + fs::file_size(text_.val))};
  }

  void check_resumes(const fs::path& folder) const override { check_text_resumes(folder, config_, text_.tokenizer); }

  void save_beside(const fs::path& folder) const override { save_text_files(folder, config_, text_.tokenizer); }

  void open(const data::LoaderState& start, bool evaluates, const Stream&) override {
    const auto train_files = std::vector<fs::path>{text_.train};
    const auto vocab = static_cast<data::TokenId>(config_.model.vocab);
    const auto& t = config_.train;
    loader_.emplace(data::open_token_files(train_files),
                    data::LoaderOptions{.batch = t.batch,
                                        .context = config_.length(),
                                        .seed = t.seed,
                                        .vocab = vocab,
                                        .rank = mesh_.dp().rank(),
                                        .world = mesh_.dp().size()},
                    start);
    if (!evaluates || text_.val_tokens < 2) return;
    const auto val_files = std::vector<fs::path>{text_.val};
    eval_.emplace(data::open_token_files(val_files), t.batch, config_.length(), vocab, mesh_.dp().rank(),
                  mesh_.dp().size());
  }

  Batch next() override { return batch_of(loader_->next()); }
  data::LoaderState position() const override { return loader_->state(); }
  double waited_seconds() const override { return loader_->waited_seconds(); }
  bool begin_evaluation() override {
    if (eval_) eval_->rewind();
    return eval_.has_value();
  }

  std::optional<Batch> next_evaluation() override {
    const auto* batch = eval_->next();
    return batch ? std::optional(batch_of(*batch)) : std::nullopt;
  }

 private:
  Batch batch_of(const data::Batch& b) {
    auto batch = rows_.of(b.tokens, b.targets, config_.train.batch, config_.length(), b.valid, b.samples);
    if (config_.data.packing) {
      data::document_positions(b.tokens, config_.length(), *text_.tokenizer.end_of_text(), positions_);
      batch.tensors.emplace_back("positions", View(positions_.data(), batch.tensors[0].second.spec()));
    }
    return batch;
  }

  RunConfig& config_;
  const parallel::Mesh& mesh_;
  RowsOfRank rows_;
  data::PreparedText text_;
  std::optional<data::Loader> loader_;
  std::optional<data::EvalBatches> eval_;
  std::vector<std::int32_t> positions_;  // with data.packing
};

}  // namespace

std::unique_ptr<DataSource> open_text_source(RunConfig& config, const parallel::Mesh& mesh, Pool& pool,
                                             const Console& console) {
  if (io::is_image_family(config.model.family) || !config.data.chat.empty()) return nullptr;
  return std::make_unique<TextSource>(config, mesh, pool, console);
}

}  // namespace hpcdl::train
