#pragma once
// Which rank this process is. One command runs unchanged under torchrun, srun, mpirun and others: each tells its
// processes in variables of its own.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::comm {

using Environment = std::map<std::string, std::string, std::less<>>;
Environment process_environment();

/// What a user may say instead: --dist.rank and so on.
struct PlaceOptions {
  int rank = -1, world = 0;  // -1, 0: not said
  int local_rank = -1, local_world = 0;
  std::string master = {};  // HOST:PORT of rank 0's store
};

struct Place {
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;    // among the ranks of this host; -1, 0: the launcher does not say
  std::string source = "single process";  // who says so
  std::string master_host;                // where rank 0 listens; empty: not said
  int master_port = 0;
  int ports = 1;       // how many from master_port on may be tried; the launcher itself may listen at one of them
  std::string run_id;  // the same on all ranks, another one in the next launch; empty: none known
  std::vector<std::string> hosts;  // of each rank, for messages; empty: not known
  std::string hint;                // something that the user may have meant otherwise; empty: nothing

  bool one_host() const { return local_world == world; }
};

/// The first complete source wins: options, torchrun, Slurm, Open MPI, Hydra (MPICH, Intel MPI), MVAPICH, Flux, PALS,
/// MLX; none: a single process. A shell in a Slurm allocation without `srun` is a single process with a hint. A source
/// with one process per host, or a single one, that differs from another is taken for what started that other launcher.
/// Throws UsageError that names both where sources contradict each other, and for values that make no sense.
Place find_place(const Environment& environment, const PlaceOptions& options = {});

/// "rank 3 of 8 (1 of 4 here), told by Slurm"
std::string describe(const Place& place);

/// The number of this rank's device: its local rank, or 0 where the scheduler shows each task one device of its own.
/// Throws UsageError when there are fewer devices than ranks.
int device_of(const Place& place, int visible_devices);

/// "host:port", "1.2.3.4:5", "[::1]:5". Throws UsageError.
std::pair<std::string, int> split_address(std::string_view text);

}  // namespace hpcdl::comm
