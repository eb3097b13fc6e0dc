#pragma once

#include "hpcdl/core/pool.h"
#include "hpcdl/lab/probe/probe.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::lab {

void list_peaks(simd::IsaKind isa, const std::vector<std::string>& dtypes, int threads, std::vector<Peak>& peaks);
/// `list` and `pools` (by thread count) must outlive the rounds.
void add_peaks(Rounds& rounds, std::vector<Peak>& list, const std::vector<Pool*>& pools, double seconds);

}  // namespace hpcdl::lab
