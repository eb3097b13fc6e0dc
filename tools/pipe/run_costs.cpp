#include "tools/pipe/run_costs.h"

#include "hpcdl/machine/speed_of_light.h"
#include "hpcdl/pipe/layer_costs.h"
#include "hpcdl/pipe/micro_batch.h"
#include "hpcdl/train/step_programs.h"
#include "hpcdl/train/synthetic_run.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::lab::pipe {

namespace engine = hpcdl::pipe;

engine::Costs costs_of_run(train::RunConfig& config, const Roofs& roofs) {
  config.parallel.dp = config.parallel.cp = config.parallel.tp = 1;
  const auto model = train::model_without_data(config, {});
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
  engine::Costs costs{.layers = engine::layer_costs(program, step.update()->planned->program,
                                                    [&](const Record& r) { return light(program, r, roofs).seconds; })};
  if (const auto* network = network_of(roofs, 2)) costs.link = {network->latency, network->bandwidth};
  return costs;
}

}  // namespace hpcdl::lab::pipe
