#pragma once
// Gradients that are summed over ranks while backward still runs. They lie in one block, in the order in which backward
// completes them, so that a bucket is a range of memory: in memory that the ranks of a host share, if the group has it.
// The reductions are an edit of the recorded program: that of a bucket comes after the last record that uses one of its
// gradients.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/core/timed_event.h"
#include "hpcdl/graph.h"
#include "hpcdl/group.h"
#include "hpcdl/parallel/buckets.h"
#include "hpcdl/ticket.h"

namespace hpcdl::parallel {

struct ReduceOptions {
  BucketOptions buckets;
  /// false: waits for every reduction where it starts. The bits are the same.
  bool overlap = true;
  /// GPU: time stamps around every reduction, also in a captured pass, for take_times(). The bits are the same. A CPU
  /// always has these times.
  bool timed = false;
  /// automatic: see position_independent_sum().
  comm::Algorithm algorithm = comm::Algorithm::automatic;
};

/// CPU: an algorithm that gives every element the same bits at any position, so that buckets of any size give the same
/// sums: `shared` if all ranks see each other's memory, `hierarchical` on several
/// hosts if some have several ranks, `ring` for two ranks (whose sums have one order), otherwise `halving`.
comm::Algorithm position_independent_sum(const comm::Group& group, bool shared_memory);

struct ReadyGradient {
  std::string name;
  Spec spec;  // F32
};

/// CPU: time since construction. GPU: of the passes that take_times() has read.
struct ExchangeTimes {
  double seconds = 0;         // in which gradients were exchanged
  double waited_seconds = 0;  // part of that time in which the pass waited
  std::int64_t passes = 0;    // GPU
  double hidden() const { return seconds > 0 ? std::max(0.0, 1 - waited_seconds / seconds) : 0; }
};

/// The gradients, in the order in which the program completes those of the parameters of these names; at the end those
/// that it does not write.
std::vector<ReadyGradient> in_order_of_completion(const Program& program, std::vector<ReadyGradient> gradients);

class Gradients {
 public:
  /// order: all gradients, see in_order_of_completion(); those that no record writes stay 0. Collective: the same on
  /// every rank. Without memory if the group has no processes.
  Gradients(comm::Group group, std::vector<ReadyGradient> order, const ReduceOptions& options, Device device = {});
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  const BucketPlan& plan() const { return plan_; }
  const comm::Group& group() const { return group_; }
  /// Whether the ranks of the group see each other's gradients in memory.
  bool shared() const { return window_ != nullptr; }
  const ExchangeTimes& times() const { return times_; }
  /// GPU, timed: adds the last pass to times(). It must have ended, and no other may be queued. Otherwise does nothing.
  void take_times();
  /// The memory of a gradient; initially zero.
  Tensor gradient(std::string_view name) const;

  /// The pass, recorded with gradient() as the memory of gradients, with their reductions: after it has run, every
  /// gradient is the sum over all ranks. It must not outlive this. The same on every rank; runs of it are collective.
  Recording reduced(Recording pass) const;

 private:
  struct Args;  // of a record
  struct Reduced;
  struct Computed;
  static void reduce(Stream& s, const Grad* operands, const void* args);
  static Ticket start(Stream& s, const Grad* operands, const void* args);
  static void computed(Stream& s, const Grad* operands, const void* args);
  std::size_t bucket_of(const Args& a) const;

  comm::Group group_;
  std::vector<ReadyGradient> order_;
  std::map<std::string, int, std::less<>> index_;  // into order_
  ReduceOptions options_;
  Device device_;
  BucketPlan plan_;
  std::vector<std::string> names_;  // of buckets
  std::shared_ptr<comm::Window> window_;
  Buffer own_;  // if there is no window
  std::byte* data_ = nullptr;
  struct Stamps {
    TimedEvent begin, end;
  };
  std::vector<Stamps> stamps_;  // per bucket, in the last pass; empty unless requested
  TimedEvent computed_;         // the end of its other records
  ExchangeTimes times_;
};

}  // namespace hpcdl::parallel
