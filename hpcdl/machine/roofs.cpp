#include "hpcdl/machine/roofs.h"

namespace hpcdl::lab {

const NetworkRoof* network_of(const Roofs& roofs, int ranks) {
  const NetworkRoof* fastest = nullptr;
  for (const auto& n : roofs.networks)
    if (n.ranks == ranks && (!fastest || n.bandwidth > fastest->bandwidth)) fastest = &n;
  return fastest;
}

}  // namespace hpcdl::lab
