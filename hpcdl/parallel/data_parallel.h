#pragma once
// The ranks that share the batches of a training: what each of them holds of the gradients and of the state of the
// optimizer, and what they send each other. Source of the stages: Rajbhandari et al., "ZeRO: memory optimizations toward
// training trillion parameter models", SC 2020.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/graph.h"
#include "hpcdl/group.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/parallel/axis.h"
#include "hpcdl/parallel/divided_norm.h"
#include "hpcdl/parallel/expert_gradients.h"
#include "hpcdl/parallel/reduce_pass.h"
#include "hpcdl/parallel/span.h"
#include "hpcdl/parallel/unit_exchange.h"

namespace hpcdl::parallel {

struct DataParallelOptions {
  ReduceOptions reduce;
  /// What is divided among the ranks: 0 nothing, 1 the moments of the optimizer, 2 gradients, too, 3 all values, also
  /// frozen ones. The same bits. Values of which programs read 16-bit copies are divided from 1 on.
  int zero = 0;
  int span = 0;          // with zero, ranks that divide it, neighbours; 0: all. See span.h
  int gather_ahead = 1;  // with 3: see shard_pass.h
  // As which values and gradients travel, on a CPU; sums are f32. Other bits than with `none`.
  WireCode wire_weights = WireCode::none;  // with 3
  WireCode wire_gradients = WireCode::none;
  bool accumulate = false;     // gradients live through several micro-batches: they stay whole between these
  DType copies = DType::none;  // of StateTable::keep_copies()
  /// If ranks divide experts: those that have the same ones as this rank. Then there are no copies.
  comm::Group same_experts = {};
};

class DataParallel {
 public:
  /// Plans the layout and, with zero, divides the values of the model, which must not be on a GPU yet. pass: a program
  /// of the model, which says when gradients are complete. The group has at least two ranks; the model must outlive
  /// this.
  DataParallel(comm::Group group, models::Trainable& model, const Program& pass, const DataParallelOptions& options);
  /// The model has no gradients afterwards, until others are made for it.
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Makes the memory of gradients on the device of the model. Collective; without memory if the group has no
  /// processes. Before the other functions.
  void place_gradients();

  bool divided() const { return options_.zero > 0; }
  /// Whether ranks divide experts.
  bool divides_experts() const { return experts_ != nullptr; }
  /// Whether no rank keeps values whole: every pass gathers what it reads.
  bool sharded() const { return options_.zero == 3; }
  const UnitPlan& plan() const { return plan_; }
  const UnitExchange& exchange() const { return *exchange_; }
  ExchangeTimes times() const;
  /// See UnitExchange.
  void take_times() { exchange_->take_times(); }
  /// Whether the ranks of the group see each other's gradients in memory.
  bool shared() const { return window_ != nullptr; }
  /// Bytes that this rank keeps for gradients between two passes.
  std::int64_t gradient_bytes() const { return (apart() ? shares_ : block_).bytes(); }
  /// Collective. Calls f() while this process has the whole values on the host, where StateEntry::host of divided ones
  /// is theirs: files of whole models are written from there. Their pieces on the host must be up to date.
  void with_whole_values(const std::function<void()>& f) const;
  /// The axis of all ranks that share the batch.
  Axis axis(std::string_view tensor) const { return axis_.axis(tensor); }
  /// The axis of the ranks that divide the state.
  Axis axis_of_shares(std::string_view tensor) const {
    return (span_axis_.group().size() == group_.size() ? axis_ : span_axis_)
        .axis(tensor);  // a program knows one by name
  }

  // Edits of the passes of the model, recorded after place_gradients(). Runs of the result are collective; it must not
  // outlive this.
  /// Afterwards gradients are sums over all ranks; if they are divided, those of StateTable::updated().
  Recording reduced(Recording pass) const;
  /// The gradients are those of this rank alone, and nothing is exchanged: for micro-batches before the last one, and
  /// for searches. Divided gradients that do not live through micro-batches are lost.
  Recording alone(Recording pass) const;
  /// Divided values: the pass reads those that the ranks have updated. If they are sharded(), every pass needs this,
  /// otherwise the first one after an update.
  Recording gathered(Recording pass) const;
  /// The gradients of StateTable::updated(), in their order, for the norm of gradients of which some are divided, or of
  /// experts that are.
  DividedGradients gradients(Graph& g) const;

 private:
  void plan_layout(const Program& pass);
  void divide() const;
  void divide_frozen();
  DividedGradient counted(const StateEntry& p, Graph& g, std::size_t place) const;
  bool apart() const { return options_.zero >= 2 && !options_.accumulate; }
  GradientPlace place() const;

  comm::Group group_;
  models::Trainable& model_;
  DataParallelOptions options_;
  Span span_;
  GroupAxis axis_, span_axis_;
  std::vector<ReadyGradient> order_;      // as the tensors of the plan
  std::vector<std::size_t> index_;        // of each of them in the table
  std::vector<std::string> value_names_;  // by tensor of the plan: what programs read
  std::vector<std::string> copy_names_;
  UnitPlan plan_;
  // Elements of the block, from its beginning: of values that no rank keeps whole, and of what has a copy.
  std::int64_t divided_ = 0, copied_ = 0;
  std::unique_ptr<UnitExchange> exchange_;
  std::unique_ptr<ExpertGradients> experts_;
  std::unique_ptr<UnitExchange> across_;  // sums of shares, if several ranks have the same one
  UnitPlan frozen_plan_;                  // in bytes, of what no optimizer updates
  std::vector<std::string> frozen_names_;
  std::unique_ptr<UnitExchange> frozen_exchange_;
  std::shared_ptr<comm::Window> window_;  // of whole gradients
  Buffer memory_;                         // of them if there is no window, or of shares
  Tensor block_, shares_;
};

}  // namespace hpcdl::parallel
