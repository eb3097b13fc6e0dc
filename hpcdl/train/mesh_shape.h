#pragma once

#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// The mesh that a run asks for.
inline parallel::MeshShape mesh_shape(const ParallelConfig& p) {
  return {.pp = static_cast<int>(p.pp),
          .dp = static_cast<int>(p.dp),
          .cp = static_cast<int>(p.cp),
          .tp = static_cast<int>(p.tp),
          .ep = static_cast<int>(p.ep)};
}

}  // namespace hpcdl::train
