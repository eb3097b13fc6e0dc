#include "tools/tune/programs.h"

#include "hpcdl/infer/engine.h"
#include "hpcdl/train/synthetic_run.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::lab::tune {
namespace {

Wishes wishes_of_all(const std::vector<const Instance*>& programs, Device device, Pool& pool) {
  StepParams params;
  Stream s(device, pool, &params);
  Wishes all;
  for (const auto* exe : programs) all.merge(wishes_of(*exe, s));
  return all;
}

}  // namespace

Wishes wishes_of_training(train::RunConfig& config, Pool& pool, Device device) {
  const auto model = train::model_without_data(config, config.train.seed);
  const train::TrainStep step(*model, pool, train::step_options(config), device);
  return wishes_of_all(step.programs(std::min<std::int64_t>(config.train.accumulate, 2)), device, pool);
}

Wishes wishes_of_generation(const std::filesystem::path& folder, Pool& pool, Device device) {
  auto model = models::LanguageModel::open(folder);
  model.to_device(Stream(device, pool));
  constexpr auto kContext = 2 * infer::kLeastChunk;
  infer::Engine engine(model, pool, {.context = std::min<std::int64_t>(model.config().context, kContext)});
  return wishes_of_all(engine.programs(kContext - 1), device, pool);
}

}  // namespace hpcdl::lab::tune
