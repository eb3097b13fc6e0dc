#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "hpcdl/pipe/schedule.h"
#include "hpcdl/pipe/waits.h"

namespace hpcdl::pipe {

/// What is wrong with the actions of a schedule, by rank and number of the action: actions that are impossible, on the
/// wrong rank, missing, doubled, or in an order that cannot be right; after lower() also transfers without their other
/// end, and memory that is still in use. The first `most` faults; empty: none.
std::vector<std::string> faults(const Schedule& schedule, std::size_t most = 8);

/// The first action that comes after the same one of a later micro-batch, and both: gradients would be added in another
/// order than that of the micro-batches. Empty: there is none. The schedule must have no faults().
std::string out_of_turn(const Schedule& schedule);

/// The actions of a deadlock, each of which waits for the next one, and the last one for the first: "rank 0, action 4:
/// the forward of stage 0, micro-batch 2". Empty: there is none. The schedule must have no faults().
std::vector<std::string> deadlock(const Schedule& schedule, Wiring wiring);

/// Throws UsageError with the first fault or the deadlock of orders that only compute.
void require_sound(const Schedule& orders);

}  // namespace hpcdl::pipe
