#include "hpcdl/train/synthetic_run.h"

#include "hpcdl/core/error.h"
#include "hpcdl/models/family.h"
#include "hpcdl/rng.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/init.h"
#include "hpcdl/train/run_model.h"

namespace hpcdl::train {

std::unique_ptr<models::Trainable> model_without_data(RunConfig& config, std::optional<std::uint64_t> seed,
                                                      const parallel::Mesh& mesh) {
  take_over_init(config);
  check_config(config);
  models::resolve(config.model);
  if (io::is_image_family(config.model.family)) {
    auto& image = config.image;
    image.family = models::image_family(config.model.family);
    if (image.classes == 0) image.classes = 10;
    image.resolve();
  } else if (config.model.vocab == 0) {
    config.model.vocab = config.data.vocab_size;
  }
  return make_run_model(config, mesh, seed);
}

DrawnBatch::DrawnBatch(const RunConfig& config, std::span<const models::InputSpec> inputs) {
  const auto ids =
      static_cast<std::uint64_t>(io::is_image_family(config.model.family) ? config.image.classes : config.model.vocab);
  std::uint64_t stream = 0;
  for (const auto& input : inputs) {
    const Rng rng{7, ++stream};
    const auto& t = tensors.emplace_back(input.spec).tensor;
    require(t.dtype() == DType::i32 || t.dtype() == DType::f32, "train",
            "the model reads \"{}\", which cannot be drawn", input.name);
    for (std::int64_t i = 0; i < t.size(); ++i) {
      const auto at = static_cast<std::uint64_t>(i);
      if (t.dtype() == DType::i32) t.ptr<std::int32_t>()[i] = static_cast<std::int32_t>(rng.below(at, ids));
      else t.ptr<float>()[i] = rng.uniform(at);
    }
    if (input.role == SlotRole::targets) targets = t.size();
  }
}

std::vector<View> DrawnBatch::views() const {
  std::vector<View> list;
  for (const auto& t : tensors) list.emplace_back(t.tensor);
  return list;
}

}  // namespace hpcdl::train
