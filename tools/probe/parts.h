#pragma once
// The parts of a probe besides bandwidth (sweeps.h). All listed objects must outlive the rounds.

#include "hpcdl/pool.h"
#include "hpcdl/simd/isa.h"
#include "tools/probe/probe.h"

namespace hpcdl::lab {

// Arithmetic; `pools`: by thread count.
void list_peaks(simd::IsaKind isa, const std::vector<std::string>& dtypes, int threads, std::vector<Peak>& peaks);
void add_peaks(Rounds& rounds, std::vector<Peak>& list, const std::vector<Pool*>& pools, double seconds);

// The cost of starting work: threads, records, pages, and moving a cache line to another core.
void add_launch(Rounds& rounds, std::vector<Launch>& list, const std::vector<Pool*>& pools, double seconds);
void add_replay(Rounds& rounds, Pool& one_thread, Figure& empty, Figure& small, double seconds);
void add_first_touch(Rounds& rounds, std::vector<FirstTouch>& list, const std::vector<Pool*>& pools);
void add_core_to_core(Rounds& rounds, std::vector<CoreToCore>& list);

/// Writes a file of `bytes` into `folder`, reads it in each way for about `seconds` in total, and removes it. What
/// cannot be measured is described in the notes; nothing throws.
Disk probe_disk(const std::filesystem::path& folder, std::int64_t bytes, double seconds, const OnProgress& progress);

/// Describes a GPU without measuring: everything of Gpu that is not a Figure. Throws if this build or machine has no
/// such GPU.
Gpu describe_gpu(int index);
/// Fills `gpus` and `gpu_links` with every GPU that this process sees; if there is none, `gpu_note` says why.
/// `quick`: only what roofs need, in less than a second per GPU; otherwise about five.
void probe_gpus(Probe& probe, bool quick, const OnProgress& progress);

}  // namespace hpcdl::lab
