// Images with a class each.

#include <fmt/format.h>
#include <algorithm>
#include <span>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/data/images/device_images.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/data_source.h"
#include "hpcdl/train/progress.h"

namespace hpcdl::train {

namespace {

namespace fs = std::filesystem;

/// The model that follows from [model] and the data.
models::ImageConfig complete(const RunConfig& config, const data::ImageSet& set) {
  auto c = config.image;
  c.family = models::image_family(config.model.family);
  if (set.classes() < 2)
    fail_usage("data", "{}: {} is the only class; a classifier needs at least two", set.info().name,
               set.info().classes.at(0));
  c.labels = set.info().classes;
  if (c.classes == 0) c.classes = set.classes();
  if (c.classes < set.classes())
    fail_usage("model",
               "model.classes is {}, but {} has {}: leave model.classes out, or set it to at least that number",
               c.classes, set.info().name, set.classes());
  c.resolve();
  const auto& d = config.data;
  c.normalise = d.normalise;
  if (const auto& n = set.info().normalisation; d.normalise)
    c.mean.assign(n.mean.begin(), n.mean.end()), c.std.assign(n.std.begin(), n.std.end());
  if (!d.random_resized && d.crop >= c.size)
    fail_usage("data",
               "data.crop = {}: expected less than the width of an image; images of {} are resized to {} x {} "
               "(model.size): set data.crop to {} or less, or to 0 for no crop",
               d.crop, set.info().name, c.size, c.size, c.size - 1);
  return c;
}

Batch batch_of(const data::ImageBatch& b, const data::ImageBatchLayout& layout) {
  const Spec classes{{layout.batch}, DType::i32}, weights{{layout.batch}, DType::f32};
  return {{{"images", View(b.images.data(), layout.images())},
           {"targets", View(b.targets.data(), classes)},
           {"mix", View(b.mix.data(), weights)},
           {"targets_b", View(b.targets_b.data(), classes)},
           {"mix_b", View(b.mix_b.data(), weights)}},
          b.ids,
          b.valid};
}

Batch batch_of(const data::DeviceBatch& b) {
  return {
      {{"images", b.images}, {"targets", b.targets}, {"mix", b.mix}, {"targets_b", b.targets_b}, {"mix_b", b.mix_b}},
      b.ids,
      b.valid};
}

/// Nothing is drawn.
int evaluation_workers(const data::ImageLoaderOptions& o) { return std::min(o.workers, 2); }

class ImageSource final : public DataSource {
 public:
  /// Opens the training images, one rank of each host first, and takes the number of classes from them.
  ImageSource(RunConfig& config, const parallel::Mesh& mesh, int threads, const Console& console)
      : config_(config),
        mesh_(mesh),
        threads_(threads),
        warn_([&console](const std::string& line) {
          if (console.line) console.line("warning: " + line);
        }),
        set_(parallel::host_by_host(mesh.world(), [&] { return open(data::Split::train); })) {
    config_.image = complete(config, *set_);
  }

  Units units() const override { return {"samples", "samples_per_second", "img/s", "images", 1, true}; }
  std::string describe() const override {
    return fmt::format("{} training images of {} ({} classes)", format_count(static_cast<double>(set_->count())),
                       set_->info().name, set_->classes());
  }

  std::string describe_samples(std::span<const std::int64_t> samples) const override {
    std::vector<std::string> list;
    for (const auto id : samples)
      list.push_back(fmt::format("{} ({})", id, set_->info().classes.at(static_cast<std::size_t>(set_->target(id)))));
    return fmt::format("samples {} of {}", fmt::join(list, ", "), set_->info().name);
  }

  /// Only a few images, evenly spread: decoding all of them may take minutes.
  std::vector<parallel::Fact> facts() const override {
    constexpr std::int64_t kDecoded = 64;
    const auto count = set_->count();
    std::vector<std::int32_t> targets;
    for (std::int64_t i = 0; i < count; ++i) targets.push_back(set_->target(i));
    auto sum = io::crc32c(std::as_bytes(std::span(targets)));
    data::Picture picture;
    for (std::int64_t i = 0, n = std::min(count, kDecoded); i < n; ++i) {
      set_->decode(count / n * i, picture);
      sum = io::crc32c(std::as_bytes(std::span(picture.pixels)), sum);
    }
    return {{"data.images", fmt::format("{} images of {} with checksum {:08x}", count, set_->info().name, sum)},
            {"the list of classes", fmt::format("{}", fmt::join(config_.image.labels, ", "))}};
  }

  std::int64_t rows() const override { return set_->count(); }
  DataMemory memory(std::int64_t batch) const override {
    const auto o = loader_options();
    const data::Augmenter augment(*set_, o.augment, o.seed);
    const auto training = data::BatchQueue::slots(o.workers, o.prefetch),
               evaluation = data::BatchQueue::slots(evaluation_workers(o), o.prefetch);
    const data::ImageBatchLayout layout(batch, augment.height(), augment.width(), o.bytes ? DType::u8 : DType::f32);
    const auto to_come = set_->bytes_to_come();
    return {.ahead = static_cast<std::int64_t>(training + evaluation) * layout.bytes,
            .held = to_come == 0 ? 0 : to_come + open(data::Split::test)->bytes_to_come()};
  }

  void check_resumes(const fs::path& folder) const override {
    auto saved = models::read_image_config(folder);
    const auto labels = std::exchange(saved.labels, config_.image.labels);
    saved.mean = config_.image.mean, saved.std = config_.image.std;  // other images to continue with
    if (saved.normalise != config_.image.normalise)
      fail_usage("resume",
                 "{} was trained with data.normalise = {}: keep this value, use another output folder, or set "
                 "checkpoint.resume = \"none\"",
                 folder.string(), saved.normalise);
    if (saved != config_.image)
      fail_usage("resume",
                 "{} holds another model than [model] describes: use another output folder, or set checkpoint.resume = "
                 "\"none\"",
                 folder.string());
    if (!labels.empty() && !data::same_classes(labels, config_.image.labels))
      fail_usage("resume",
                 "{} has learned the classes {}, but {} has {}: use another output folder, or set checkpoint.resume = "
                 "\"none\"",
                 folder.string(), fmt::join(labels, ", "), set_->info().name, fmt::join(config_.image.labels, ", "));
  }

  void save_beside(const fs::path&) const override {}  // config.json names the classes

  void open(const data::LoaderState& start, bool evaluates, const Stream& compute) override {
    loader_.emplace(set_, loader_options(), start);
    const bool gpu = compute.device().is_cuda();
    // The batches of a step and, until its result is known, those of the next one.
    if (gpu)
      images_.emplace([this] { return &loader_->next(); }, loader_->layout(), compute, loader_->table(),
                      static_cast<int>(2 * config_.train.accumulate));
    if (!evaluates) return;
    auto o = loader_options();
    o.workers = evaluation_workers(o);
    eval_.emplace(open(data::Split::test), o);
    if (gpu) eval_images_.emplace([this] { return eval_->next(); }, eval_->layout(), compute, eval_->table());
  }

  Batch next() override { return images_ ? batch_of(*images_->next()) : batch_of(loader_->next(), loader_->layout()); }

  data::LoaderState position() const override { return loader_->state(); }
  double waited_seconds() const override { return images_ ? images_->starved_seconds() : loader_->waited_seconds(); }
  bool begin_evaluation() override {
    if (eval_) eval_->rewind();
    return eval_.has_value();
  }

  std::optional<Batch> next_evaluation() override {
    if (eval_images_) {
      const auto* b = eval_images_->next();
      return b ? std::optional(batch_of(*b)) : std::nullopt;
    }
    const auto* b = eval_->next();
    return b ? std::optional(batch_of(*b, eval_->layout())) : std::nullopt;
  }

 private:
  data::ImageLoaderOptions loader_options() const {
    const auto& d = config_.data;
    const int size = static_cast<int>(config_.image.size);
    const auto device = device_from_name(config_.train.device);
    return {.batch = config_.train.batch,
            .seed = config_.train.seed,
            .rank = mesh_.dp().rank(),
            .world = mesh_.dp().size(),
            .workers = d.workers,
            .prefetch = d.prefetch,
            .device = device,
            .bytes = device.is_cuda() && d.mixup <= 0,
            .augment = {.height = size,
                        .width = size,
                        .crop = d.random_resized ? 0 : d.crop,
                        .flip = d.flip,
                        .random_resized = d.random_resized,
                        .mixup = d.mixup,
                        .normalise = d.normalise}};
  }

  std::shared_ptr<const data::ImageSet> open(data::Split split) const {
    const auto& d = config_.data;
    return data::open_images(d.images, split,
                             {.procedural_train = d.procedural,
                              .procedural_test = std::max<std::int64_t>(d.procedural / 5, 1),
                              .warn = warn_,
                              .coarse = d.coarse,
                              .make_now = device_from_name(config_.train.device).is_cuda() ? threads_ : 0});
  }

  RunConfig& config_;
  const parallel::Mesh& mesh_;
  int threads_;  // makes images before the first step, so that a GPU does not wait for each of them
  std::function<void(const std::string&)> warn_;
  std::shared_ptr<const data::ImageSet> set_;
  std::optional<data::ImageLoader> loader_;
  std::optional<data::ImageEvalBatches> eval_;
  std::optional<data::DeviceImages> images_, eval_images_;  // on a GPU: the batches that they make
};

}  // namespace

std::unique_ptr<DataSource> open_image_source(RunConfig& config, const parallel::Mesh& mesh, Pool& pool,
                                              const Console& console) {
  if (!io::is_image_family(config.model.family)) return nullptr;
  return std::make_unique<ImageSource>(config, mesh, pool.threads(), console);
}

}  // namespace hpcdl::train
