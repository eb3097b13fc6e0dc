#pragma once
// The records of one program that is run again and again on its own, such as a pass of inference.

#include "hpcdl/instance.h"
#include "tools/profile/report.h"

namespace hpcdl::lab {

/// Runs `pass` 2 * runs times, after some that are not measured: half of them recorded, half of them plain, in turns. What
/// it reads must lie where its last run found it. The report's steps are these runs.
Report profile_pass(const Instance& pass, Stream& s, const Roofs& roofs, int runs = 10);

/// The ranked records of a report as text; `count` 0: all of them.
std::string ranked_text(const Report& report, std::size_t count);

}  // namespace hpcdl::lab
