#pragma once

#include "hpcdl/lab/roofs.h"

namespace hpcdl::lab::verify {

/// The most that a kernel with a working set of `bytes` can reach on this CPU: rates of its arithmetic, and the
/// bandwidth of the cache or memory that holds it, as `cache_read`. All threads together are measured too slow if
/// one of them waits for a core, so each figure is at least that of one thread times their number. Takes a few ms,
/// so that it can be repeated next to the kernel until both were measured in a quiet moment.
Roofs light_within(double bytes);

}  // namespace hpcdl::lab::verify
