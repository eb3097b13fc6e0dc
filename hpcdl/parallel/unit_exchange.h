#pragma once
// The exchanges of the units of a flat block (unit.h) between the ranks that share a batch, as records of programs:
// sums of gradients, and values that other ranks have updated. The passes that insert them: reduce_pass.h,
// gather_pass.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/core/timed_event.h"
#include "hpcdl/graph.h"
#include "hpcdl/group.h"
#include "hpcdl/parallel/unit.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/ticket.h"

namespace hpcdl::parallel {

struct ReduceOptions {
  BucketOptions buckets;
  /// false: waits for every exchange where it starts. The bits are the same.
  bool overlap = true;
  /// GPU: time stamps around every reduction, also in a captured pass, for take_times(). The bits are the same. A CPU
  /// always has these times.
  bool timed = false;
  /// Of sums. automatic: see position_independent_sum().
  comm::Algorithm algorithm = comm::Algorithm::automatic;
};

/// CPU: an algorithm that gives every element the same bits at any position, so that units of any size give the same
/// sums: `shared` if all ranks see each other's memory, `hierarchical` on several
/// hosts if some have several ranks, `ring` for two ranks (whose sums have one order), otherwise `halving`.
/// what: all_reduce or reduce_scatter, which has no `hierarchical`.
comm::Algorithm position_independent_sum(const comm::Group& group, bool shared_memory,
                                         comm::Collective what = comm::Collective::all_reduce);

/// CPU: time since construction. GPU: of the passes that take_times() has read.
struct ExchangeTimes {
  double seconds = 0;         // in which units were exchanged; of a GPU: in which gradients were
  double waited_seconds = 0;  // part of that time in which the pass waited
  std::int64_t passes = 0;    // GPU
  double hidden() const { return seconds > 0 ? std::max(0.0, 1 - waited_seconds / seconds) : 0; }
};

class UnitExchange {
 public:
  /// shared: whether the gradients of all ranks lie in memory that they share. name: to which programs with such records
  /// bind this.
  UnitExchange(comm::Group group, UnitPlan plan, const ReduceOptions& options, bool shared, Device device,
               std::string name = "units");
  UnitExchange(const UnitExchange&) = delete;
  UnitExchange& operator=(const UnitExchange&) = delete;

  const UnitPlan& plan() const { return plan_; }
  const comm::Group& group() const { return group_; }
  const ExchangeTimes& times() const { return times_; }
  /// GPU, timed: adds the last pass to times(). It must have ended, and no other may be queued. Otherwise does nothing.
  void take_times();

  /// Of programs with such records. It must outlive them.
  void bind(Bindings& bindings) const { bindings.bind(name_, static_cast<const void*>(this)); }

  // Each inserts one record before record `at`. `whole`: an operand with all elements of the unit, of any dtype for
  // values, f32 for gradients. They run beside the computation if options.overlap says so.
  /// `whole` becomes the sum over the ranks.
  void insert_sum(Edit& edit, std::size_t at, std::size_t unit, Operand whole) const;
  /// This rank's share becomes its part of the sum: in its place in `whole`, or in `share` if that is present.
  void insert_share_of_sum(Edit& edit, std::size_t at, std::size_t unit, Operand whole, const Operand& share) const;
  /// `whole` receives the shares of all ranks; this rank's own lies in its place, or in `share` if that is present.
  void insert_gather(Edit& edit, std::size_t at, std::size_t unit, Operand whole, const Operand& share) const;
  /// Message r of `mine` goes to rank r, and its place in `theirs` takes what rank r has for this one.
  void insert_swap(Edit& edit, std::size_t at, std::size_t unit, Operand theirs, Operand mine) const;
  /// After all reductions of a pass: a time stamp, if this takes any.
  void insert_end(Edit& edit) const;

 private:
  struct Args;  // of a record
  struct Sum;
  struct ShareOfSum;
  struct Gather;
  struct Swap;
  struct Computed;
  template <class Op> struct Runs;
  template <class Op>
  void insert(Edit& edit, std::size_t at, std::size_t unit, std::span<const Operand> operands, Lane lane) const;
  comm::Work begin(const comm::Group& group, const Stream& s, const Sum&, const Grad* t) const;
  comm::Work begin(const comm::Group& group, const Stream& s, const ShareOfSum&, const Grad* t) const;
  comm::Work begin(const comm::Group& group, const Stream& s, const Gather&, const Grad* t) const;
  comm::Work begin(const comm::Group& group, const Stream& s, const Swap&, const Grad* t) const;
  const std::string& name_of(const Args& a) const;

  comm::Group group_;
  UnitPlan plan_;
  ReduceOptions options_;
  std::string name_;
  comm::Algorithm share_algorithm_ = comm::Algorithm::automatic;  // of a share of a sum
  struct Stamps {
    TimedEvent begin, end;
  };
  mutable std::vector<Stamps> stamps_;  // per unit, in the last pass; empty unless requested
  mutable TimedEvent computed_;         // the end of its other records
  mutable ExchangeTimes times_;
};

}  // namespace hpcdl::parallel
