#include "hpcdl/io/load_options.h"

#include "hpcdl/core/error.h"

namespace hpcdl::io {

LoadOptions LoadOptions::on(Device where) const {
  if (!where.is_cuda() && vram > 0)
    fail_usage("model", "--vram limits the memory of a GPU: give --ram, or --device cuda");
  if (!where.is_cuda()) return *this;
  if (ram > 0 || mode == LoadMode::direct)
    fail_usage("model",
               "layers stream from files on a CPU only: on a GPU, --vram lets them stream from host memory; leave out "
               "--ram and --load direct");
  auto o = *this;
  o.device = where;
  if (mode == LoadMode::automatic) o.mode = LoadMode::mapped;
  return o;
}

}  // namespace hpcdl::io
