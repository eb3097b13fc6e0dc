#pragma once
// Which rank this process is. One command runs unchanged under torchrun, srun, mpirun and others: each gives its
// processes its own variables.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::comm {

using Environment = std::map<std::string, std::string, std::less<>>;
Environment process_environment();

/// What a user may give instead: --dist.rank and so on.
struct PlaceOptions {
  int rank = -1, world = 0;  // -1, 0: not given
  int local_rank = -1, local_world = 0;
  std::string master = {};  // HOST:PORT of rank 0's store
};

struct Place {
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;    // among the ranks of this host; -1, 0: the launcher does not say
  std::string source = "single process";  // the source
  std::string master_host;                // where rank 0 listens; empty: not given
  int master_port = 0;
  int ports =
      1;  // number of ports from master_port on that may be tried; the launcher itself may listen at one of them
  std::string run_id;              // the same on all ranks, another one in the next launch; empty: none known
  std::vector<std::string> hosts;  // of each rank, for messages; empty: not known
  std::string hint;                // a warning about something that the user may not have intended; empty: none

  bool one_host() const { return local_world == world; }
};

/// The first complete source wins: options, torchrun, Slurm, Open MPI, Hydra (MPICH, Intel MPI), MVAPICH, Flux, PALS,
/// MLX; none: a single process. A shell in a Slurm allocation without `srun` is a single process with a hint. A source
/// with one process per host, or a single one, that differs from another is assumed to have started that other
/// launcher. Throws UsageError that names both if sources contradict each other, and for values that make no sense.
Place find_place(const Environment& environment, const PlaceOptions& options = {});

/// "rank 3 of 8 (1 of 4 here), told by Slurm"
std::string describe(const Place& place);

/// The number of this rank's device: its local rank, or 0 if the scheduler shows each task only its own device.
/// Throws UsageError if there are fewer devices than ranks.
int device_of(const Place& place, int visible_devices);

/// "host:port", "1.2.3.4:5", "[::1]:5". Throws UsageError.
std::pair<std::string, int> split_address(std::string_view text);

}  // namespace hpcdl::comm
