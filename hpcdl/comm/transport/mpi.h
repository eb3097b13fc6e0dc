#pragma once
// A transport over MPI: Open MPI, MPICH or another one that the build found.

#include <functional>
#include <memory>
#include <string>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// Whether this build has MPI.
bool has_mpi();

/// The start of MPI waits for all ranks, and only the end of the process ends that wait: these two are called in
/// another thread, with a sentence, to end the process. Null: it waits for ever.
struct MpiStart {
  double timeout = 0;                                          // seconds
  std::function<void(const std::string& sentence)> late = {};  // when they are over
  std::function<bool()> asked_to_stop = {};                    // called several times a second
  std::function<void(const std::string& sentence)> leave_asked = {};
};

/// The ranks that mpirun or srun --mpi=... has started. Starts MPI unless it is running; it ends with the process,
/// which waits for the other ranks then, unless one of them was lost. Throws UsageError if this build has no MPI,
/// Error if MPI allows calls of one thread only. Algorithm::native is the blocking collective of MPI, which has no
/// deadline (the watchdog has one for it): it is meant for comparisons.
std::unique_ptr<Transport> mpi_transport(const MpiStart& start = {});
/// "Open MPI 4.1.4": the library that this build uses; empty without one.
std::string mpi_library();

/// Collective over all ranks: the text of rank 0. To exchange an address before there is a world.
std::string mpi_broadcast(const std::string& text);

}  // namespace hpcdl::comm
