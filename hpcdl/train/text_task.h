#pragma once
// Language models on text: tokens, loss, perplexity.

#include "hpcdl/data/loader.h"
#include "hpcdl/data/prepare.h"
#include "hpcdl/train/task.h"

namespace hpcdl::train {

class TextTask final : public Task {
 public:
  /// Finds or makes token files and tokenizer, host by host, and fits config.model to them.
  TextTask(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console);

  Units units() const override { return {"tokens", "tokens_per_second", "tok/s", config_.model.context}; }
  std::string describe_data() const override;
  std::vector<parallel::Fact> facts() const override;
  std::int64_t rows() const override { return (text_.train_tokens - 1) / config_.model.context; }
  std::unique_ptr<models::Trainable> make_model(std::optional<std::uint64_t> seed) const override;
  std::int64_t bytes_ahead(std::int64_t batch) const override;
  std::int64_t bytes_mapped() const override;

  void check_resumes(const std::filesystem::path& folder) const override;
  void open_data(const data::LoaderState& start, bool evaluates, const Stream& compute) override;
  void next() override { batch_ = &loader_->next(); }
  std::int64_t accumulate(TrainStep& step, std::int64_t number, std::int64_t micro, bool last) override;
  data::LoaderState position() const override { return loader_->state(); }
  double waited_seconds() const override { return loader_->waited_seconds(); }
  std::string describe_samples(std::int64_t number, std::int64_t micro,
                               std::span<const std::int64_t> rows) const override;

  std::optional<Score> evaluate(TrainStep& step, std::int64_t batches, const std::function<bool()>& goes_on) override;
  io::Json score_metrics(const Score& all) const override;
  std::string score_words(const Score& all) const override;

  void save_beside(const std::filesystem::path& folder) const override;
  void save_model(const models::Trainable& model, const std::filesystem::path& folder) const override;

 private:
  RunConfig& config_;
  const parallel::Mesh& mesh_;
  data::PreparedText text_;
  std::optional<data::Loader> loader_;
  std::optional<data::EvalBatches> eval_;
  const data::Batch* batch_ = nullptr;
  Samples samples_;
};

}  // namespace hpcdl::train
