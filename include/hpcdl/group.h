#pragma once
// Ranks that run collectives together.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"

namespace hpcdl::comm {

/// How the values of all ranks are reduced. avg: the sum, divided once by the number of ranks (floats only).
enum class Reduce : std::uint8_t { sum, max, avg };

/// The operations of a group; also their names in counters, traces and verdicts.
enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  send,
  receive,
  barrier,
  split
};

constexpr bool one_to_one(Collective c) { return c == Collective::send || c == Collective::receive; }

/// The list of all collective algorithms: enumerators, rows (comm/algo/algorithm.h) and names are made from this
/// list.
#define HPCDL_COLLECTIVE_ALGORITHMS(ONE) \
  ONE(ring) ONE(ring_blocking) ONE(halving) ONE(tree) ONE(pairwise) ONE(shared) ONE(star) ONE(hierarchical) ONE(native)

/// The algorithm. automatic: chosen by size and links from a measured table. native: the underlying library (MPI,
/// NCCL).
enum class Algorithm : std::uint8_t {
  automatic,
#define HPCDL_ENUMERATOR(name) name,
  HPCDL_COLLECTIVE_ALGORITHMS(HPCDL_ENUMERATOR)
#undef HPCDL_ENUMERATOR
};

constexpr std::string_view reduce_name(Reduce r) {
  constexpr std::string_view names[] = {"sum", "max", "avg"};
  return names[static_cast<int>(r)];
}
constexpr std::string_view collective_name(Collective c) {
  constexpr std::string_view names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast",
                                        "send",       "receive",        "barrier",    "split"};
  return names[static_cast<int>(c)];
}
/// "auto" and the names of the list.
inline constexpr std::string_view kAlgorithmNames[] = {"auto",
#define HPCDL_NAME(name) #name,
                                                       HPCDL_COLLECTIVE_ALGORITHMS(HPCDL_NAME)
#undef HPCDL_NAME
};
constexpr std::string_view algorithm_name(Algorithm a) { return kAlgorithmNames[static_cast<int>(a)]; }

}  // namespace hpcdl::comm

namespace hpcdl::comm {

class DeviceGroup;
class Ledger;
class Window;
using Clock = std::chrono::steady_clock;

/// Counters of a group on this rank.
struct Counters {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;       // of the tensors
  std::int64_t wire_bytes = 0;  // sent by this rank
  double seconds = 0;           // CPU: time in collectives, in any thread
  double waited_seconds = 0;    // CPU: time of the callers in Work::wait()
};

/// A collective that has been given to a group. On a CPU it may be under way until wait() returns; its tensors must
/// stay as they are until then. On a GPU the stream orders it, and there is nothing to wait for. Throws PeerLost if
/// the group's deadline passes.
class Work {
 public:
  Work() = default;  // done
  void wait();
  bool done() const;
  /// When it ran, for a queued call that is done; otherwise both are equal. Ask a copy: wait() clears it.
  std::pair<Clock::time_point, Clock::time_point> took() const;

  class State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// A copy is the same group. All ranks call the same collectives on tensors of the same spec in the same order: ranks
/// that differ never exchange wrong data, but fail by the deadline with an error that names the difference. Queued calls
/// wait for no calls of other groups, and messages for no collectives; calls of a GPU, and those of the library of
/// Algorithm::native, need one order over all groups of a world. Tensors are contiguous, of floats or integers, on the device of the stream; data that only
/// move may have any dtype. Results have the same bits on every rank, and for the same inputs and algorithm in every
/// run. A group of one rank copies, and waits for nothing.
class Group {
 public:
  Group();  // of one rank
  /// A group without processes, for programs that are recorded and not run: its calls throw.
  static Group described(int rank, int size, std::string name);
  bool is_described() const;
  int rank() const;
  int size() const;
  const std::string& name() const;
  /// Rank in the world of a rank of this group.
  int world_rank(int rank) const;
  /// See Transport::host().
  int host(int rank) const;
  std::string host_name(int rank) const;
  /// "threads", "mpi", "tcp"; "none" for a group of one rank.
  std::string_view transport() const;

  /// In place.
  Work all_reduce(const Stream& s, const Tensor& x, Reduce op = Reduce::sum, Algorithm a = Algorithm::automatic) const;
  /// in: (size * n), out: (n) elements, the rank's part of the reduction. `out` may lie in its place in `in`.
  Work reduce_scatter(const Stream& s, const Tensor& out, const View& in, Reduce op = Reduce::sum,
                      Algorithm a = Algorithm::automatic) const;
  /// in: (n), out: (size * n) elements. `in` may lie in its place in `out`.
  Work all_gather(const Stream& s, const Tensor& out, const View& in, Algorithm a = Algorithm::automatic) const;
  /// Part r of `in` goes to rank r; part r of `out` comes from rank r. Both (size * n) elements, apart.
  Work all_to_all(const Stream& s, const Tensor& out, const View& in, Algorithm a = Algorithm::automatic) const;
  Work broadcast(const Stream& s, const Tensor& x, int root) const;
  Work send(const Stream& s, const View& x, int to) const;
  Work receive(const Stream& s, const Tensor& x, int from) const;
  Work barrier(const Stream& s) const;

  /// The same group, but its CPU collectives are done when the call returns: they run in the caller if nothing is
  /// queued, without another thread or an allocation. For callers that would wait at once.
  Group blocking() const;

  /// The same group, but its sums on GPUs leave most of a GPU to other work at the same time, and take longer. The
  /// same bits.
  Group beside() const;

  /// Collective. Ranks with one color form a new group, ordered by (key, rank).
  Group split(int color, int key, std::string name) const;
  /// Collective; CPU. Memory in which collectives between the ranks of one host need no copies: give it to gradients.
  /// Contents are zero. Block i is of the i-th rank of this group on this host; block(local_rank()) is mine. Null if
  /// the transport has no shared memory, or if a host has too many ranks of the group to share it.
  std::shared_ptr<Window> share(std::int64_t bytes) const;
  /// Index of this rank among those of the group on its host.
  int local_rank() const;

  /// Collective. Connects the GPUs of the ranks now; otherwise the first collective on a GPU does it, which must not be
  /// one under capture.
  void connect(Device device) const;
  /// The part of this group on GPUs; null before they are connected.
  std::shared_ptr<DeviceGroup> device_group() const;

  Counters counters() const;
  /// The ledger of what this rank is doing; one for all groups of a world.
  Ledger& ledger() const;
  /// Waits for running collectives, together with all other ranks. Later calls throw.
  void close();
  /// This rank gives up: its calls throw, and its peers lose it at once if the transport can tell them.
  void abandon(std::string_view why) const noexcept;

  class Impl;
  explicit Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
  bool blocking_ = false, beside_ = false;
};

}  // namespace hpcdl::comm
