#pragma once
// MPI below: Open MPI, MPICH and others, whichever the build found.

#include <memory>
#include <string>

#include "hpcdl/comm/transport.h"

namespace hpcdl::comm {

/// Whether this build has MPI.
bool has_mpi();

/// The ranks that mpirun or srun --mpi=... has started. Starts MPI unless somebody has; it ends with the process, which waits for the other
/// ranks then, unless one of them was lost. Throws UsageError where this build has no MPI, Error where MPI can be used by one thread alone.
/// Algorithm::native is MPI's blocking collective, which knows no deadline: it is there to compare with.
std::unique_ptr<Transport> mpi_transport();

/// Collective over all ranks: rank 0's text. For whoever needs an address before there is a world.
std::string mpi_broadcast(const std::string& text);

}  // namespace hpcdl::comm
