#include "hpcdl/train/plan_run.h"

#include <malloc.h>
#include <sys/resource.h>

#include <filesystem>
#include <utility>

#include "hpcdl/core/available_memory.h"
#include "hpcdl/io/scratch_file.h"
#include "hpcdl/models/family.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/facts.h"
#include "hpcdl/train/init.h"
#include "hpcdl/train/mesh_shape.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::train {

namespace {

rlim_t limit_of(__rlimit_resource which) {
  rlimit l{};
  return getrlimit(which, &l) == 0 ? l.rlim_cur : RLIM_INFINITY;
}

/// Addresses that the run reserves beside its memory: mapped files and the stacks of threads that are not started
/// yet. `state`: bytes of weights and optimizer in memory, and `on_disk`, whose files are mapped when a run is resumed or
/// starts from a folder; the latter are mapped in any case.
std::int64_t reserved_addresses(const RunConfig& config, const Task& task, std::int64_t state, std::int64_t on_disk) {
  constexpr std::int64_t kUsualStack = 8 << 20, kAlignment = 8 << 20, kThreads = 4;  // loader, progress, signals, ranks
  const auto stack = limit_of(RLIMIT_STACK);
  const auto of_thread = stack == RLIM_INFINITY ? kUsualStack : static_cast<std::int64_t>(stack);
  std::error_code none;
  const bool goes_on =
      config.checkpoint.resume != "none" &&
      (config.checkpoint.resume != "auto" || std::filesystem::exists(config.output / "checkpoints", none));
  const bool maps_weights = goes_on || !config.init.empty();
  return task.data().memory(config.train.batch).mapped + (maps_weights ? state + on_disk : 0) + on_disk + kAlignment +
         (kThreads + config.data.workers) * of_thread;
}

}  // namespace

int ranks_of_host(const comm::Group& world) {
  int n = 0;
  for (int r = 0; r < world.size(); ++r) n += world.host(r) == world.host(world.rank());
  return n;
}

MemoryAdvice advise(RunConfig& config, const Task& task, const parallel::Mesh& mesh, std::int64_t host_limit,
                    int threads, bool always) {
  const auto device = device_from_name(config.train.device);
  auto& t = config.train;
  // The separate heap of a thread reserves 64 MiB.
  if (limit_of(RLIMIT_AS) != RLIM_INFINITY) mallopt(M_ARENA_MAX, 1);
  const MemoryAdvice::Plan plan = [&](const MemoryChange& c) {
    const auto before = t;
    const auto zero = std::exchange(config.parallel.zero, c.zero);
    const auto place = config.offload;
    config.offload.optimizer = c.optimizer, config.offload.parameters = c.parameters;
    t.batch = c.batch, t.accumulate = c.accumulate, t.recompute = c.recompute, t.dtype = c.dtype;
    auto options = step_options(config);
    take_ranks(options, mesh);
    const auto model = task.make_model({});
    t = before, config.parallel.zero = zero, config.offload = place;
    auto ledger = plan_memory(*model, options, c.accumulate, device);
    if (!device.is_cuda()) {
      const auto data = task.data().memory(c.batch);
      ledger.staged += data.ahead, ledger.other += data.held;
    }
    const auto& saves = config.checkpoint;
    if (!saves.asynchronous || saves.every.never() || config.offload.uses_disk()) ledger.copy = 0;
    add_estimates(ledger, {threads, mesh.world().size()}, device);
    return ledger;
  };
  const MemoryChange now{t.batch,
                         t.accumulate,
                         t.recompute,
                         t.dtype,
                         static_cast<int>(config.parallel.zero),
                         config.offload.optimizer,
                         config.offload.parameters};
  const auto ledger = plan(now);
  auto room = available_memory(device, ranks_of_host(mesh.world()), host_limit,
                               reserved_addresses(config, task, ledger.weights + ledger.optimizer, ledger.on_disk));
  if (t.memory_limit > 0 && t.memory_limit < room.bytes) room = {t.memory_limit, "train.memory_limit"};
  // Ranks that could divide more of the state.
  const int dividing = mesh.pp().size() > 1 && device.is_cuda() ? 1 : mesh.dp().size();
  if (config.offload.uses_disk()) io::require_scratch_folder(config.offload.folder);
  OtherRooms elsewhere;
  if (device.is_cuda()) {
    elsewhere.host = available_memory(Device::cpu(), ranks_of_host(mesh.world()), host_limit);
    elsewhere.optimizer_on_host = cannot_offload(config, Tier::host).empty();
    elsewhere.parameters_on_host = cannot_keep_weights_on_host(config).empty();
  }
  if (const auto& folder = config.offload.folder; !folder.empty()) {
    elsewhere.disk = {io::free_bytes(folder) / ranks_of_host(mesh.world()), "free in " + folder.string()};
    elsewhere.optimizer_on_disk = !device.is_cuda() && cannot_offload(config, Tier::disk).empty();
  }
  MemoryAdvice advice({now, ledger}, room, !task.units().classes, dividing, elsewhere);
  if (parallel::any_rank(mesh.world(), !advice.fits()) || always) advice.look_for_smaller(plan);
  return advice;
}

MemoryAdvice plan_run(RunConfig& config, const Hooks& hooks) {
  expect_same_config(config, hooks.world, hooks.facts);
  take_over_init(config);
  check_config(config);
  share_global_batch(config, hooks.world.size());
  models::resolve(config.model);
  const parallel::Mesh mesh(hooks.world, mesh_shape(config.parallel));
  Pool pool(config.train.threads);
  const Task task(config, mesh, pool, hooks.console);
  return advise(config, task, mesh, hooks.host_memory_limit, pool.threads(), true);
}

}  // namespace hpcdl::train
