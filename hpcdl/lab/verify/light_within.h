#pragma once

#include "hpcdl/lab/roofs.h"

namespace hpcdl::lab::verify {

/// What no kernel over `bytes` of working set can exceed on this CPU: rates of its arithmetic, and the bandwidth of
/// whatever cache or memory holds so much, as `cache_read`. All threads together are measured too slow when one of them
/// waits for a core, so each figure is at least that of one thread times their number. Takes a few ms, so that it can
/// be repeated beside the kernel until both have met a quiet moment.
Roofs light_within(double bytes);

}  // namespace hpcdl::lab::verify
