#pragma once

#include "hpcdl/lab/probe/probe.h"

namespace hpcdl::lab {

/// What a GPU is, without measuring: everything of Gpu that is no Figure. Throws where this build or machine has no
/// such GPU.
Gpu describe_gpu(int index);

/// Fills `gpus` and `gpu_links` with every GPU that this process sees; where there is none, `gpu_note` says why.
/// `quick`: what roofs are made of, in less than a second per GPU; else about five.
void probe_gpus(Probe& probe, bool quick, const OnProgress& progress);

}  // namespace hpcdl::lab
