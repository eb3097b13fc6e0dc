#pragma once
// Ranks that have different layers of one model: which of them this rank has, and what they do together besides the
// passes.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/group.h"
#include "hpcdl/parallel/axis.h"
#include "hpcdl/parallel/divided_norm.h"
#include "hpcdl/pipe/cut.h"
#include "hpcdl/pipe/schedule.h"
#include "hpcdl/state/table.h"

namespace hpcdl::train {

struct StageOptions {
  comm::Group group = {};  // one rank: no stages
  comm::Group world = {};  // all ranks of the run, which cut the layers alike
  std::string schedule = "1f1b";
  std::string order = "";                 // a file (pipe/order_file.h), instead of a schedule and its chunks
  int chunks = 1;                         // stages of each rank
  int micros = 1;                         // micro-batches of a step
  std::vector<std::int64_t> layers = {};  // of each stage; empty: stages of about equal cost
  /// How often all ranks wait for each other in a micro-batch because they divide the vocabulary (pipe/vocabulary.h); 0:
  /// they do not.
  int barriers = 0;
  bool tied = false;  // with barriers: the embedding and the head are one table; Stages sets it
};

/// The orders that these options choose: actions that compute. Throws UsageError if there are none, or if those of a file
/// cannot be trained by these ranks: it says what would fit. Collective over the world if they come from a file, which
/// must be the same on all hosts.
pipe::Schedule stage_orders(const StageOptions& options);

class Stages {
 public:
  /// Chooses the layers of every stage, and leaves the table those of this rank. `pass`: a training pass of the whole
  /// model. Throws UsageError if the model cannot be cut in this way: it says what would fit. The table must outlive
  /// this.
  Stages(const StageOptions& options, StateTable& table, const Program& pass);

  const comm::Group& group() const { return axis_.group(); }
  const pipe::Schedule& schedule() const { return schedule_; }
  const pipe::Partition& partition() const { return partition_; }
  /// Whether it is a stage of this rank.
  bool has(int stage) const { return schedule_.forward_rank[static_cast<std::size_t>(stage)] == group().rank(); }
  /// Whether the schedule computes gradients of weights apart from those of inputs.
  pipe::Backward backward() const;
  /// Collective: see Group::connect().
  void connect(Device device) const;
  /// An embedding that the head shares: ranks that have one of the two hold it, with the gradient of its own part.
  /// Records the sum of the parts, in place, on all of these ranks.
  void record_shared_sums(Graph& g) const;
  /// Gradients to which the passes of this rank add without ever overwriting them: to be cleared before each step.
  std::vector<const StateEntry*> added_to() const;
  /// The gradients of the whole model for the norm over all ranks, in the order of its table. `mine`: those of
  /// StateTable::updated(), in their order.
  parallel::DividedGradients gradients(parallel::DividedGradients mine) const;
  /// The axis of the ranks with different layers.
  Axis axis(std::string_view tensor) const { return axis_.axis(tensor); }
  /// Collective. Calls f() on all ranks; on the first one while StateEntry::host of all values is there.
  void with_whole_values(const std::function<void()>& f) const;

 private:
  /// A value of the whole model, in the order of the table.
  struct Value {
    const nn::Param* param;
    std::int64_t elements;  // on the ranks that hold it
    bool part;              // ranks along tp have different ones, or all of these
    int rank;               // that counts it, the first of those that hold it
  };
  /// Whether each rank has some rows of it.
  bool divides(const nn::Param& p) const { return schedule_.divides_vocabulary() && !p.part.all(); }
  void choose_layers(const StageOptions& options, const Program& pass);
  void choose_owners(const Program& pass);
  void join_holders(const std::vector<int>& ranks);
  static const StateEntry& entry(std::span<const StateEntry> list, const nn::Param& p);

  StateTable& table_;
  parallel::GroupAxis axis_;
  pipe::Schedule schedule_;
  pipe::Partition partition_;
  std::vector<Value> values_;
  std::map<const nn::Param*, int> first_rank_;       // of those that hold it
  std::vector<const nn::Param*> shared_, added_to_;  // of this rank
  std::unique_ptr<parallel::GroupAxis> holders_;     // of shared_
};

}  // namespace hpcdl::train
