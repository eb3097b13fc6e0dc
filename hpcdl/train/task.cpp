#include "hpcdl/train/task.h"

#include "hpcdl/train/image_task.h"
#include "hpcdl/train/text_task.h"

namespace hpcdl::train {

std::unique_ptr<Task> make_task(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console) {
  if (io::is_image_family(config.model.family))
    return std::make_unique<ImageTask>(config, mesh, pool.threads(), console);
  return std::make_unique<TextTask>(config, mesh, pool, console);
}

}  // namespace hpcdl::train
