#pragma once
// Gradients of experts that ranks divide among themselves: each rank sums those of its experts over the ranks that have the
// same ones. They stay whole, whatever DataParallel divides of other gradients.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/group.h"
#include "hpcdl/parallel/reduce_pass.h"
#include "hpcdl/parallel/unit_exchange.h"
#include "hpcdl/state/table.h"

namespace hpcdl::parallel {

class ExpertGradients {
 public:
  /// Plans the layout. ranks: that have the same experts as this one. pass: says when gradients are complete.
  ExpertGradients(comm::Group ranks, const StateTable& table, const Program& pass, const BucketOptions& buckets);

  /// Lets them lie in `block`, of elements() f32; without memory is enough to record. Before the other functions.
  void place(const Tensor& block, const ReduceOptions& options);
  /// Where the gradient of e, entry number `index` of the table and of an expert, lies.
  Tensor at(const StateEntry& e, std::size_t index) const;
  /// Its first element in a block of elements().
  std::int64_t offset(std::size_t index) const { return offset_[index]; }
  std::int64_t elements() const { return plan_.elements; }
  /// The pass, after which the gradients are sums over the ranks.
  Recording reduced(Recording pass) const;
  /// Null if no other rank has the same experts.
  const UnitExchange* exchange() const { return exchange_.get(); }

 private:
  comm::Group ranks_;
  std::vector<ReadyGradient> order_;  // as the tensors of the plan
  std::vector<std::int64_t> offset_;  // of every entry of the table; 0 if it is not of an expert of this rank
  UnitPlan plan_;
  Tensor block_;
  std::unique_ptr<UnitExchange> exchange_;
};

}  // namespace hpcdl::parallel
