#pragma once
// From "a launcher started this process" to a group of all ranks with a watchdog.

#include <functional>
#include <memory>
#include <string>

#include "hpcdl/comm/bootstrap/rendezvous.h"
#include "hpcdl/comm/watch/watch.h"
#include "hpcdl/group.h"

namespace hpcdl::comm {

struct JoinOptions {
  std::string method = "auto";     // see RendezvousOptions
  std::string transport = "auto";  // tcp, mpi; auto: mpi if MPI has started the ranks and this build has it
  double init_timeout = 300;       // seconds within which all ranks must connect
  double timeout = 600;            // seconds, for every collective
  /// See WatchOptions::leave.
  std::function<void(const std::string& sentence)> leave = {};
  /// See WatchOptions::program.
  std::string program = {};
  /// Whether this rank is asked to stop while ranks wait for each other: then all connected ranks throw Stopped.
  Store::Asked asked_to_stop = {};
  /// Called instead, in another thread, while MPI waits for its ranks, because nothing can end that wait: must end the
  /// process.
  std::function<void(const std::string& sentence)> leave_asked = {};
  /// See RendezvousOptions::say.
  std::function<void(const std::string& sentence)> say = {};
};

/// The ranks of one launch, of which this process is one.
class Joined {
 public:
  Joined() = default;  // a single process
  const Place& place() const { return place_; }
  const Group& world() const { return world_; }
  /// Null for a single process.
  const std::shared_ptr<Store>& store() const { return store_; }
  const std::shared_ptr<Watch>& watch() const { return watch_; }

  /// This rank ends by an error: the others are told at once.
  void fail(std::string_view why);
  /// The run is over, for all ranks. Throws PeerLost if one was lost.
  void close();

 private:
  friend Joined join(const Place& place, const JoinOptions& options);
  Place place_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<Watch> watch_;
  Group world_;
};

/// Collective over all ranks of the launch. See open_store() for what it throws.
Joined join(const Place& place, const JoinOptions& options);

}  // namespace hpcdl::comm
