#pragma once

namespace hpcdl {

/// The first processor that this thread may run on: launchers that bind ranks give each its own, others give all ranks
/// of a host the same.
int lowest_cpu();

}  // namespace hpcdl
