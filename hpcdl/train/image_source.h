#pragma once
// Images with a class each.

#include "hpcdl/data/images/device_images.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/data_source.h"
#include "hpcdl/train/progress.h"

namespace hpcdl::parallel {
class Mesh;
}

namespace hpcdl::train {

class ImageSource final : public DataSource {
 public:
  /// Opens the training images, one rank of each host first, and takes the number of classes from them.
  ImageSource(RunConfig& config, const parallel::Mesh& mesh, int threads, const Console& console);

  Units units() const override { return {"samples", "samples_per_second", "img/s", "images", 1, true}; }
  std::string describe() const override;
  std::string describe_samples(std::span<const std::int64_t> samples) const override;
  std::vector<parallel::Fact> facts() const override;
  std::int64_t rows() const override { return set_->count(); }
  DataMemory memory(std::int64_t batch) const override;

  void check_resumes(const std::filesystem::path& folder) const override;
  void save_beside(const std::filesystem::path&) const override {}  // config.json names the classes

  void open(const data::LoaderState& start, bool evaluates, const Stream& compute) override;
  Batch next() override;
  data::LoaderState position() const override { return loader_->state(); }
  double waited_seconds() const override { return images_ ? images_->starved_seconds() : loader_->waited_seconds(); }
  bool begin_evaluation() override;
  std::optional<Batch> next_evaluation() override;

 private:
  data::ImageLoaderOptions loader_options() const;
  std::shared_ptr<const data::ImageSet> open(data::Split split) const;

  RunConfig& config_;
  const parallel::Mesh& mesh_;
  int threads_;  // makes images before the first step, so that a GPU does not wait for each of them
  std::function<void(const std::string&)> warn_;
  std::shared_ptr<const data::ImageSet> set_;
  std::optional<data::ImageLoader> loader_;
  std::optional<data::ImageEvalBatches> eval_;
  std::optional<data::DeviceImages> images_, eval_images_;  // on a GPU: the batches that they make
};

}  // namespace hpcdl::train
