#pragma once
// Text: files of tokens, in windows of the model's context.

#include "hpcdl/data/loader.h"
#include "hpcdl/data/prepare.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/data_source.h"
#include "hpcdl/train/progress.h"

namespace hpcdl::parallel {
class Mesh;
}

namespace hpcdl::train {

class TextSource final : public DataSource {
 public:
  /// Finds or makes token files and tokenizer, one rank of each host first, and completes config.model from them.
  TextSource(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console);

  Units units() const override { return {"tokens", "tokens_per_second", "tok/s", "tokens", config_.model.context}; }
  std::string describe() const override;
  std::string describe_samples(std::span<const std::int64_t> samples) const override;
  std::vector<parallel::Fact> facts() const override;
  std::int64_t rows() const override { return (text_.train_tokens - 1) / config_.model.context; }
  DataMemory memory(std::int64_t batch) const override;

  void check_resumes(const std::filesystem::path& folder) const override;
  void save_beside(const std::filesystem::path& folder) const override;

  void open(const data::LoaderState& start, bool evaluates, const Stream& compute) override;
  Batch next() override { return batch_of(loader_->next()); }
  data::LoaderState position() const override { return loader_->state(); }
  double waited_seconds() const override { return loader_->waited_seconds(); }
  bool begin_evaluation() override;
  std::optional<Batch> next_evaluation() override;

 private:
  Batch batch_of(const data::Batch& b) const;

  RunConfig& config_;
  const parallel::Mesh& mesh_;
  data::PreparedText text_;
  std::optional<data::Loader> loader_;
  std::optional<data::EvalBatches> eval_;
};

}  // namespace hpcdl::train
