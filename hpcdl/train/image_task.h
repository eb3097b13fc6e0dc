#pragma once
// Classifiers of images: samples, loss, accuracy.

#include "hpcdl/data/images/device_images.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/train/task.h"

namespace hpcdl::train {

class ImageTask final : public Task {
 public:
  /// Opens the training images, host by host, and takes the number of classes from them.
  ImageTask(RunConfig& config, const parallel::Mesh& mesh, int threads, const Console& console);

  Units units() const override { return {"samples", "samples_per_second", "img/s", 1, true}; }
  std::string describe_data() const override;
  std::vector<parallel::Fact> facts() const override;
  std::int64_t rows() const override { return set_->count(); }
  std::unique_ptr<models::Trainable> make_model(std::optional<std::uint64_t> seed) const override;
  std::int64_t bytes_ahead(std::int64_t batch) const override;
  std::int64_t bytes_of_data() const override;

  void check_resumes(const std::filesystem::path& folder) const override;
  void open_data(const data::LoaderState& start, bool evaluates, const Stream& compute) override;
  void next() override;
  std::int64_t accumulate(TrainStep& step, std::int64_t number, std::int64_t micro, bool last) override;
  data::LoaderState position() const override { return loader_->state(); }
  double waited_seconds() const override { return images_ ? images_->starved_seconds() : loader_->waited_seconds(); }
  std::string describe_samples(std::int64_t number, std::int64_t micro,
                               std::span<const std::int64_t> rows) const override;

  std::optional<Score> evaluate(TrainStep& step, std::int64_t batches, const std::function<bool()>& goes_on) override;
  io::Json score_metrics(const Score& all) const override;
  std::string score_words(const Score& all) const override;

  void save_beside(const std::filesystem::path& folder) const override;
  void save_model(const models::Trainable& model, const std::filesystem::path& folder) const override;

 private:
  data::ImageLoaderOptions loader_options() const;
  std::shared_ptr<const data::ImageSet> open(data::Split split) const;
  /// A batch in any memory: its tensors by the names that a pass has for them.
  struct Batch {
    std::vector<std::pair<std::string_view, View>> tensors;
    std::span<const std::int64_t> ids;
    std::int64_t valid = 0;
    Batch() = default;
    explicit Batch(const data::ImageBatch& b, const data::ImageBatchLayout& layout);
    explicit Batch(const data::DeviceBatch& b);
    std::vector<View> views(const std::vector<models::InputSpec>& inputs) const;
  };

  RunConfig& config_;
  const parallel::Mesh& mesh_;
  int threads_;  // that make images before the first step, where a GPU would wait for each
  std::function<void(const std::string&)> warn_;
  std::shared_ptr<const data::ImageSet> set_;
  std::optional<data::ImageLoader> loader_;
  std::optional<data::ImageEvalBatches> eval_;
  std::optional<data::DeviceImages> images_, eval_images_;  // on a GPU: what those make
  Batch batch_;
  Samples samples_;
};

}  // namespace hpcdl::train
