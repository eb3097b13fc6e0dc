#include "hpcdl/train/run_model.h"

#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/parallel/expert.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/parallel/vocabulary.h"
#include "hpcdl/train/init.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::train {

std::unique_ptr<models::Trainable> make_run_model(const RunConfig& config, const parallel::Mesh& mesh,
                                                  std::optional<std::uint64_t> seed) {
  if (io::is_image_family(config.model.family))
    return std::make_unique<models::ImageModel>(
        models::ImageModel::create(config.image, seed, true, models::Values::later));
  using Scheme = parallel::TensorParallel::Scheme;
  const auto& t = config.train;
  const models::Fp8Options fp8{.on = is_narrow(t.dtype),
                               .mx4 = t.dtype == Compute::mxfp4_emu,
                               .scales = t.fp8_scaling,
                               .first = t.fp8_first,
                               .last = t.fp8_last};
  const auto sharing = std::make_shared<parallel::TensorParallel>(
      mesh.tp(), config.parallel.sequence ? Scheme::sequence : Scheme::conjugate);
  const auto experts = std::make_shared<parallel::ExpertParallel>(mesh.experts());
  std::shared_ptr<parallel::VocabularyParallel> vocabulary;
  if (config.parallel.vocabulary == VocabularyPlace::pipeline)
    vocabulary = std::make_shared<parallel::VocabularyParallel>(mesh.pp(), static_cast<int>(config.parallel.barriers));
  if (config.adapter.given()) {
    Pool pool(seed ? config.train.threads : 1);
    const auto compute = step_options(config).forward.compute;
    return std::make_unique<models::LanguageModel>(models::LanguageModel::open_for_adapting(
        init_folder(config), config.adapter, seed, {compute, &pool}, sharing, config.base));
  }
  if (seed && !config.init.empty())
    return std::make_unique<models::LanguageModel>(models::LanguageModel::open_for_training(
        init_folder(config), sharing, fp8, experts, models::Values::later, vocabulary));
  return std::make_unique<models::LanguageModel>(models::LanguageModel::create(
      config.model, seed, true, sharing, fp8, experts, models::Values::later, vocabulary));
}

void write_model_config(const std::filesystem::path& folder, const RunConfig& config) {
  if (io::is_image_family(config.model.family)) models::write_image_config(folder, config.image);
  else models::write_hf_config(folder, config.model);
}

}  // namespace hpcdl::train
