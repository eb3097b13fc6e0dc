#pragma once
// How the ranks of a launch find rank 0's store.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "hpcdl/comm/bootstrap/place.h"
#include "hpcdl/comm/bootstrap/store.h"

namespace hpcdl::comm {

struct RendezvousOptions {
  /// tcp://HOST:PORT   rank 0 listens there
  /// file://PATH       rank 0 listens at a free port, and writes its addresses to PATH plus the number of the job;
  ///                   all hosts must see the folder
  /// mpi               the same, but sends the addresses by a broadcast of MPI
  /// env               MASTER_ADDR and MASTER_PORT, or the first node of a Slurm step
  /// auto              on one host file:// in the temporary folder; otherwise env if it is set; otherwise mpi
  std::string method = "auto";
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
  /// For mpi: gives every rank the text of rank 0. Collective. Null: this build or launch has no MPI.
  std::function<std::string(const std::string&)> broadcast = {};
  /// Whether this rank is asked to stop; then all connected ranks stop.
  Store::Asked asked_to_stop = {};
  /// Called once, after `silent`, with what this rank still waits for. A rank that comes after rank 0 has left, for
  /// example because that was asked to stop, sees the same as one that is early: nothing that rank 0 could leave
  /// would be safe to trust, because some launchers give every launch the same name.
  std::function<void(const std::string& sentence)> say = {};
  std::chrono::milliseconds silent = std::chrono::seconds(10);
  /// The secret of this job, the same on all ranks; empty: none. Not set: job_secret().
  std::optional<std::string> secret = {};
};

/// Collective over all ranks of the launch. Throws UsageError for a method that cannot work here, PeerLost that names
/// the ranks that did not connect within the timeout, Stopped if one was asked to stop before.
std::shared_ptr<Store> open_store(const Place& place, const RendezvousOptions& options = {});

/// Adds the local rank and the number of ranks on this host, if the launcher did not give them.
Place with_local_rank(Place place, const Store& store);

}  // namespace hpcdl::comm
