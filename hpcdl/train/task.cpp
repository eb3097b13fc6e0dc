#include "hpcdl/train/task.h"

#include "hpcdl/train/facts.h"
#include "hpcdl/train/image_task.h"
#include "hpcdl/train/text_task.h"

namespace hpcdl::train {

namespace {

std::unique_ptr<Task> open_task(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console) {
  if (io::is_image_family(config.model.family))
    return std::make_unique<ImageTask>(config, mesh, pool.threads(), console);
  return std::make_unique<TextTask>(config, mesh, pool, console);
}

}  // namespace

std::unique_ptr<Task> make_task(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console) {
  auto task = open_task(config, mesh, pool, console);
  if (mesh.world().size() == 1) return task;
  auto facts = task->facts();
  const auto of_model = model_facts(config);
  facts.insert(facts.end(), of_model.begin(), of_model.end());
  parallel::expect_agreement(mesh.world(), facts);
  return task;
}

}  // namespace hpcdl::train
