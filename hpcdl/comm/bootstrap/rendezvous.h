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
  /// file://PATH       rank 0 listens at a free port, and writes its addresses to PATH plus the number of the job: a
  /// folder that all see mpi               the same, told by MPI's broadcast env               what the launcher says:
  /// MASTER_ADDR and MASTER_PORT, or the first node of a Slurm step auto              on one host file:// in the
  /// temporary folder; otherwise env, where there is something; otherwise mpi
  std::string method = "auto";
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
  /// For mpi: gives every rank rank 0's text. Collective. Null: this build or launch has no MPI.
  std::function<std::string(const std::string&)> broadcast = {};
  /// Whether this rank is asked to stop; then all that have come leave.
  Store::Asked asked_to_stop = {};
  /// Told once, after `silent`, what this rank still waits for. One that comes when rank 0 has already left, as where
  /// that was asked to stop, finds the same as one that is early: nothing that rank 0 could leave behind would be safe
  /// to believe, as some launchers give every launch the same name.
  std::function<void(const std::string& sentence)> say = {};
  std::chrono::milliseconds silent = std::chrono::seconds(10);
  /// Of this job, the same on all ranks; empty: none. Not set: job_secret().
  std::optional<std::string> secret = {};
};

/// Collective over all ranks of the launch. Throws UsageError for a method that cannot work here, PeerLost that names
/// the ranks that did not come by the end of the timeout, Stopped when one was asked to stop before.
std::shared_ptr<Store> open_store(const Place& place, const RendezvousOptions& options = {});

/// With the local rank and the number of ranks on this host, where the launcher did not say.
Place with_local_rank(Place place, const Store& store);

}  // namespace hpcdl::comm
