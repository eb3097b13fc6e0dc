#include "tools/pipe/run_costs.h"

#include "hpcdl/machine/speed_of_light.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/pipe/layer_costs.h"
#include "hpcdl/pipe/micro_batch.h"
#include "hpcdl/train/step_programs.h"
#include "hpcdl/train/synthetic_run.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::lab::pipe {

namespace engine = hpcdl::pipe;

engine::Costs costs_of_run(train::RunConfig& config, const Roofs& roofs) {
  config.parallel.dp = config.parallel.cp = config.parallel.tp = 1;
  const bool divides = config.parallel.vocabulary == VocabularyPlace::pipeline;
  const auto mesh =
      divides ? parallel::Mesh::described({.pp = static_cast<int>(config.parallel.pp)}, 0) : parallel::Mesh();
  const auto model = train::model_without_data(config, {}, mesh);
  const auto options = train::step_options(config);
  Pool pool(1);
  Stream stream(pool);
  const train::StepPrograms step(*model, options, stream);
  const auto pass = engine::record_micro_batch(*model,
                                               {.batch = options.batch,
                                                .length = options.length,
                                                .forward = options.forward,
                                                .autocast = options.autocast,
                                                .numerics = options.numerics},
                                               Write::accumulate);
  const auto& program = pass.recording.program;
  const auto& update = step.update()->planned->program;
  const auto seconds = [&](const Record& r) { return light(program, r, roofs).seconds; };
  engine::Costs costs{.layers = engine::layer_costs(program, update, seconds),
                      .vocabulary = engine::vocabulary_cost(program, update, seconds)};
  if (const auto* network = network_of(roofs, 2)) costs.link = {network->latency, network->bandwidth};
  return costs;
}

}  // namespace hpcdl::lab::pipe
