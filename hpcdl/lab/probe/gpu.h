#pragma once

#include "hpcdl/lab/probe/probe.h"

namespace hpcdl::lab {

/// Describes a GPU without measuring: everything of Gpu that is not a Figure. Throws if this build or machine has no
/// such GPU.
Gpu describe_gpu(int index);

/// Fills `gpus` and `gpu_links` with every GPU that this process sees; if there is none, `gpu_note` says why.
/// `quick`: only what roofs need, in less than a second per GPU; otherwise about five.
void probe_gpus(Probe& probe, bool quick, const OnProgress& progress);

}  // namespace hpcdl::lab
