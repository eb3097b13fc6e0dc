#include "hpcdl/train/image_task.h"

#include <algorithm>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/parallel/agree.h"

namespace hpcdl::train {

namespace {

namespace fs = std::filesystem;

/// What [model] and the data come to.
models::ImageConfig complete(const RunConfig& config, const data::ImageSet& set) {
  auto c = config.image;
  c.family = config.model.family == io::Family::resnet18 ? models::ImageFamily::resnet18 : models::ImageFamily::simple_cnn;
  if (c.classes == 0) c.classes = set.classes();
  if (c.classes < set.classes())
    fail_usage("model", "classes is {}, but {} has {}: leave model.classes out, or make it at least as many", c.classes, set.info().name, set.classes());
  c.resolve();
  return c;
}

}  // namespace

ImageTask::ImageTask(RunConfig& config, const parallel::Mesh& mesh, const Console& console)
    : config_(config), mesh_(mesh), warn_([&console](const std::string& line) {
        if (console.line) console.line("warning: " + line);
      }),
      set_(parallel::host_by_host(mesh.world(), [&] { return open(data::Split::train); })) {
  config_.image = complete(config, *set_);
}

/// The tensors of a batch in the order that a pass wants them.
std::vector<View> ImageTask::views(const data::ImageBatch& batch, const std::vector<models::InputSpec>& inputs) {
  rest_.resize(batch.mix.size());
  for (std::size_t i = 0; i < rest_.size(); ++i) rest_[i] = 1 - batch.mix[i];
  const std::pair<std::string_view, const void*> known[] = {{"images", batch.images.data()}, {"targets", batch.targets.data()}, {"mix", batch.mix.data()}, {"targets_b", batch.targets_b.data()}, {"mix_b", rest_.data()}};
  std::vector<View> list;
  for (const auto& [name, spec] : inputs) {
    const auto* it = std::find_if(std::begin(known), std::end(known), [&](const auto& k) { return k.first == name; });
    require(it != std::end(known), "train", "the model asks for \"{}\", which no batch of images holds", name);
    list.emplace_back(it->second, spec);
  }
  return list;
}

std::shared_ptr<const data::ImageSet> ImageTask::open(data::Split split) const {
  const auto& d = config_.data;
  return data::open_images(d.images, split, {.procedural_train = d.procedural, .procedural_test = std::max<std::int64_t>(d.procedural / 5, 1), .warn = warn_});
}

data::ImageLoaderOptions ImageTask::loader_options() const {
  const auto& d = config_.data;
  const int size = static_cast<int>(config_.image.size);
  return {.batch = config_.train.batch, .seed = config_.train.seed, .rank = mesh_.dp().rank(), .world = mesh_.dp().size(), .workers = d.workers, .prefetch = d.prefetch,
          .device = device_from_name(config_.train.device),
          .augment = {.height = size, .width = size, .crop = d.random_resized ? 0 : d.crop, .flip = d.flip, .random_resized = d.random_resized, .mixup = d.mixup, .normalise = d.normalise}};
}

std::string ImageTask::describe_data() const {
  return fmt::format("{} training images of {} ({} classes)", format_count(static_cast<double>(set_->count())), set_->info().name, set_->classes());
}

std::unique_ptr<models::Trainable> ImageTask::make_model() const {
  return std::make_unique<models::ImageModel>(models::ImageModel::create(config_.image, config_.train.seed, true));
}

std::int64_t ImageTask::bytes_ahead(std::int64_t batch) const {
  const auto o = loader_options();
  const data::Augmenter augment(*set_, o.augment, o.seed);
  return static_cast<std::int64_t>(data::BatchQueue::slots(o.workers, o.prefetch)) * data::ImageBatchLayout(batch, augment.height(), augment.width()).bytes;
}

void ImageTask::check_resumes(const fs::path& folder) const {
  if (models::read_image_config(folder) != config_.image)
    fail_usage("resume", "{} holds another model than [model] describes: use another output folder, or checkpoint.resume = \"none\"", folder.string());
}

void ImageTask::open_data(const data::LoaderState& start, bool evaluates) {
  loader_.emplace(set_, loader_options(), start);
  if (!evaluates) return;
  auto o = loader_options();
  o.workers = std::min(o.workers, 2);  // nothing is drawn
  eval_.emplace(open(data::Split::test), o);
}

std::int64_t ImageTask::accumulate(TrainStep& step, std::int64_t number, std::int64_t micro, bool last) {
  if (micro == std::ssize(samples_)) samples_.emplace_back();
  samples_[static_cast<std::size_t>(micro)].assign(batch_->ids.begin(), batch_->ids.end());
  step.accumulate(views(*batch_, step.inputs()), number, micro, last);
  return batch_->valid;
}

std::string ImageTask::describe_samples(std::int64_t micro, std::span<const std::int64_t> rows) const {
  const auto& all = samples_.at(static_cast<std::size_t>(micro));
  std::vector<std::string> list;
  const auto note = [&](std::int64_t id) {
    list.push_back(fmt::format("{} ({})", id, set_->info().classes.at(static_cast<std::size_t>(set_->target(id)))));
  };
  for (const auto row : rows) note(all.at(static_cast<std::size_t>(row)));
  if (rows.empty())
    for (const auto id : all) note(id);
  return fmt::format("samples {} of {}", fmt::join(list, ", "), set_->info().name);
}

std::optional<Score> ImageTask::evaluate(TrainStep& step, std::int64_t batches) {
  if (!eval_) return {};
  eval_->rewind();
  Score sum;
  const auto inputs = step.evaluation_inputs();
  for (std::int64_t i = 0; i < batches; ++i) {  // on each rank; batches go round them
    const auto* batch = eval_->next();
    if (!batch) break;
    const comm::InPhase phase(mesh_.world().ledger(), comm::Phase::compute);
    const auto result = step.evaluate(views(*batch, inputs));
    sum.loss += result.loss, sum.correct += result.correct;
    sum.counted += batch->valid;
  }
  return sum;
}

io::Json ImageTask::score_metrics(const Score& all) const {
  return {{"eval_loss", all.mean()}, {"eval_accuracy", all.accuracy()}, {"eval_samples", all.counted}};
}

std::string ImageTask::score_words(const Score& all) const {
  return fmt::format("loss {:.4f}, accuracy {:.2f}% over {} images", all.mean(), 100 * all.accuracy(), all.counted);
}

void ImageTask::save_beside(const fs::path& folder) const { models::write_image_config(folder, config_.image); }

void ImageTask::save_model(const models::Trainable& model, const fs::path& folder) const {
  if (mesh_.world().rank() == 0) model.save(folder);
}

}  // namespace hpcdl::train
