#include "hpcdl/train/plan_run.h"

#include "hpcdl/core/available_memory.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/facts.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::train {

namespace {

/// Ranks of this host, which share its memory.
int ranks_of_host(const comm::Group& world) {
  int n = 0;
  for (int r = 0; r < world.size(); ++r) n += world.host(r) == world.host(world.rank());
  return n;
}

}  // namespace

MemoryAdvice advise(RunConfig& config, const Task& task, const parallel::Mesh& mesh, std::int64_t host_limit,
                    bool always) {
  const auto device = device_from_name(config.train.device);
  auto& t = config.train;
  auto room = available_memory(device, ranks_of_host(mesh.world()), host_limit);
  if (t.memory_limit > 0 && t.memory_limit < room.bytes) room = {t.memory_limit, "train.memory_limit"};
  const MemoryAdvice::Plan plan = [&](const MemoryChange& c) {
    const auto before = t;
    t.batch = c.batch, t.accumulate = c.accumulate, t.recompute = c.recompute, t.dtype = c.dtype;
    const auto options = step_options(config);
    t = before;
    auto ledger = plan_memory([&] { return task.make_model(); }, options, c.accumulate, device);
    if (!device.is_cuda()) ledger.staged += task.bytes_ahead(c.batch), ledger.other += task.bytes_of_data();
    return ledger;
  };
  MemoryAdvice advice({t.batch, t.accumulate, t.recompute, t.dtype}, room, plan);
  if (parallel::any_rank(mesh.world(), !advice.fits()) || always) advice.look_for_smaller(plan);
  return advice;
}

MemoryAdvice plan_run(RunConfig& config, const Hooks& hooks) {
  expect_same_config(config, hooks.world, hooks.facts);
  check_config(config);
  share_global_batch(config, hooks.world.size());
  config.model.resolve();
  const parallel::Mesh mesh(hooks.world,
                            {.dp = static_cast<int>(config.parallel.dp), .tp = static_cast<int>(config.parallel.tp)});
  Pool pool(config.train.threads);
  const auto task = make_task(config, mesh, pool, hooks.console);
  return advise(config, *task, mesh, hooks.host_memory_limit, true);
}

}  // namespace hpcdl::train
