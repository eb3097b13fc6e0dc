#pragma once
// Collectives timed on the ranks of a group, comparing algorithms with each other and with the native library (MPI,
// NCCL), in turns.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/group.h"
#include "hpcdl/machine/roofs.h"
#include "tools/compare/statistics.h"

namespace hpcdl::lab {

/// Where the tensors lie.
enum class Memory : std::uint8_t { own, window };
constexpr const char* memory_name(Memory m) { return m == Memory::own ? "private" : "window"; }

/// The sides that are compared at one size.
struct CommSide {
  comm::Algorithm algorithm = comm::Algorithm::automatic;
  Memory memory = Memory::own;
  std::string name() const;  // "shared (window)"
  bool operator==(const CommSide&) const = default;
};

struct CommCase {
  comm::Collective what = comm::Collective::all_reduce;
  std::int64_t bytes = 0;  // of the larger tensor of a rank
  DType dtype = DType::f32;
  comm::Reduce op = comm::Reduce::sum;
};

/// Parts of the larger tensor: one for all_reduce, otherwise one for each rank.
int parts(const CommCase& c, int ranks);
/// Elements of a part: as many as fit into `bytes`, at least one.
std::int64_t part_elements(const CommCase& c, int ranks);

struct CommOptions {
  double seconds = 1;     // for a whole case, of all sides
  double target = 0.004;  // of one side's turn in a round
  int rounds = 0;         // 0: until ratios are narrow, or the time is over
  bool check = false;
};

struct CommResult {
  CommSide side;
  compare::Spread seconds;               // of one call, on the slowest rank
  double native_seconds = 0;             // 0: not measured
  std::optional<compare::Spread> ratio;  // time of native / time of this side, round by round
  std::optional<double> max_error;       // against sums in double, relative to the largest
  std::int64_t wire_bytes = 0;           // that rank 0 sends in one call
  int rounds = 0, calls = 0;             // calls in a turn

  /// Bytes / time; and that times the share that a link must carry, which is comparable between numbers of ranks (as in
  /// nccl-tests).
  double algbw(const CommCase& c) const { return static_cast<double>(c.bytes) / seconds.median; }
  double busbw(const CommCase& c, int ranks) const;
};

/// Collective: all ranks call it with the same arguments, and get the same times, by the protocol of every bench
/// (compare/protocol.h). Between GPUs (`s` is a stream of this rank's), calls are timed as graphs of several: the time
/// of launching from the host is excluded for all sides.
std::vector<CommResult> bench_collective(const comm::Group& g, const Stream& s, const CommCase& c,
                                         const std::vector<CommSide>& sides, const CommOptions& options);

/// The sides that can run, with window sides if the ranks share memory. Between GPUs: auto and native (NCCL), and for
/// all_reduce the kernels that write into peers' memory, if they can.
std::vector<CommSide> comm_sides(const comm::Group& g, const Stream& s, const CommCase& c, bool native);
/// Whether the transport has a native library.
bool has_native(const comm::Group& g);
int hosts_of(const comm::Group& g);

struct CommRow {
  CommCase what;
  std::vector<CommResult> results;
};

/// The file with the choices, next to the other remembered measurements of this machine; see comm::algo::Policy.
std::filesystem::path comm_policy_file();
/// Writes the fastest algorithm of each size to it.
void save_comm_policy(const std::vector<CommRow>& rows, const comm::Group& g);

/// The network roof between the ranks according to the fastest side of each size; none if `rows` has no collective that
/// records use, or no size takes long enough to determine the bandwidth.
std::optional<NetworkRoof> network_roof(const std::vector<CommRow>& rows, int ranks, int hosts,
                                        const std::string& device);
/// Stores it with the roofs of this machine if it is better than the stored one. A file that cannot be written is not
/// an error.
void remember_network(const NetworkRoof& network);

nlohmann::ordered_json comm_json(const CommCase& c, const CommResult& r, const comm::Group& g);
/// One line for each size, one column for each side: microseconds and how many times as fast as native.
std::string comm_table(const std::vector<CommRow>& rows, int ranks);
/// Bus bandwidth over size, as a self-contained SVG.
std::string comm_picture(const std::vector<CommRow>& rows, const std::string& title, int ranks);

}  // namespace hpcdl::lab
