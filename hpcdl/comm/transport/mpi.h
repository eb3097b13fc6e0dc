#pragma once
// MPI below: Open MPI, MPICH and others, whichever the build found.

#include <functional>
#include <memory>
#include <string>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// Whether this build has MPI.
bool has_mpi();

/// MPI's start waits for all ranks, and nothing ends it but the end of the process: these two are called in another
/// thread, with a sentence, to leave it. Null: it waits for ever.
struct MpiStart {
  double timeout = 0;                                          // seconds
  std::function<void(const std::string& sentence)> late = {};  // when they are over
  std::function<bool()> asked_to_stop = {};                    // called several times a second
  std::function<void(const std::string& sentence)> leave_asked = {};
};

/// The ranks that mpirun or srun --mpi=... has started. Starts MPI unless somebody has; it ends with the process, which
/// waits for the other ranks then, unless one of them was lost. Throws UsageError where this build has no MPI, Error
/// where MPI can be used by one thread alone. Algorithm::native is MPI's blocking collective, which knows no deadline
/// (the watchdog has one for it): it is there to compare with.
std::unique_ptr<Transport> mpi_transport(const MpiStart& start = {});
/// "Open MPI 4.1.4": the library that this build uses; empty without one.
std::string mpi_library();

/// Collective over all ranks: rank 0's text. For whoever needs an address before there is a world.
std::string mpi_broadcast(const std::string& text);

}  // namespace hpcdl::comm
