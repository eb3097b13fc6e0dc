#include "hpcdl/train/trainer.h"

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/models/family.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/facts.h"
#include "hpcdl/train/init.h"
#include "hpcdl/train/loop.h"

namespace hpcdl::train {

RunSummary run(RunConfig& config, const Hooks& hooks) {
  if (config.output.empty() && !hooks.steps_only) fail_usage("train", "no output folder: give --out DIR or set output");
  expect_same_config(config, hooks.world, hooks.facts);
  take_over_init(config);
  check_config(config);  // mistakes are reported before the long preparation of the text
  share_global_batch(config, hooks.world.size());
  models::resolve(config.model);
  if (!hooks.steps_only) io::make_folder(config.output);
  return Loop(config, hooks).go();
}

void forget_run(const std::filesystem::path& folder) {
  for (const char* name : {"checkpoints", "model", "tensorboard", RunLog::kMetrics, "config.toml"})
    std::filesystem::remove_all(folder / name);
}

}  // namespace hpcdl::train
