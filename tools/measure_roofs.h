#pragma once
// The roofs of this machine: remembered, or measured now.

#include "hpcdl/device.h"
#include "hpcdl/machine/roofs.h"
#include "hpcdl/pool.h"

namespace hpcdl::lab {

/// Takes a second, or a few if caches of hundreds of MiB require as much memory to be touched first.
Roofs measure_roofs(Pool& pool);

enum class Remember { measured, best };

/// The roofs in probe_file() (machine/remembered.h) for this instruction set and thread count; if there are none, those of
/// measure_roofs(), which are then stored. `best` measures again and keeps the higher value of each (a busy machine
/// measures too low). A file that cannot be read or written is not an error.
Roofs roofs(Pool& pool, Remember remember = Remember::measured);
/// The same for the device that programs run on: for a GPU, measured in less than a second if the file does not have
/// it; otherwise for `pool`.
Roofs roofs(Device device, Pool& pool, Remember remember = Remember::measured);

}  // namespace hpcdl::lab
