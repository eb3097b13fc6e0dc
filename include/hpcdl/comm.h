#pragma once
// Ranks: as threads of this process, or as processes that a launcher has started. group.h has their collectives.

#include <functional>
#include <memory>

#include "hpcdl/device.h"
#include "hpcdl/group.h"

namespace hpcdl::comm {

class Joined;

/// Runs f(world) on n threads, each of which is one rank, and waits for all. If ranks throw, the first exception is
/// thrown again.
void run_ranks(int n, const std::function<void(const Group& world)>& f);

/// The ranks that torchrun, srun, mpirun, `hpcdl launch` or another launcher has started, of which this process is one;
/// a single rank without a launcher.
class World {
 public:
  /// Collective: all ranks connect. Throws Error if they do not within five minutes, and UsageError if the launcher's
  /// variables contradict each other.
  World();
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  /// Without close() before: the other ranks are told that this one gave up.
  ~World();

  const Group& group() const;
  int rank() const { return group().rank(); }
  int size() const { return group().size(); }
  /// The GPU of this rank, by its number on this host; the CPU in a build or on a machine without GPUs.
  Device device() const;
  /// Collective: the work is done. Throws PeerLost if a rank was lost.
  void close();

 private:
  std::unique_ptr<Joined> joined_;
};

/// The sum over the ranks, the same bits everywhere: losses, counts. Collective.
double sum(const Group& group, double value);

}  // namespace hpcdl::comm
