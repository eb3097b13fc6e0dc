#pragma once
// The cost of starting work: threads, records, pages, and moving a cache line to another core.

#include "hpcdl/core/pool.h"
#include "hpcdl/lab/probe/probe.h"

namespace hpcdl::lab {

// The listed objects must outlive the rounds.
void add_launch(Rounds& rounds, std::vector<Launch>& list, const std::vector<Pool*>& pools, double seconds);
void add_replay(Rounds& rounds, Pool& one_thread, Figure& empty, Figure& small, double seconds);
void add_first_touch(Rounds& rounds, std::vector<FirstTouch>& list, const std::vector<Pool*>& pools);
void add_core_to_core(Rounds& rounds, std::vector<CoreToCore>& list);

}  // namespace hpcdl::lab
