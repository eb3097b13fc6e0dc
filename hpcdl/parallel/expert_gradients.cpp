#include "hpcdl/parallel/expert_gradients.h"

#include <map>
#include <string>
#include <utility>

namespace hpcdl::parallel {

ExpertGradients::ExpertGradients(comm::Group ranks, const StateTable& table, const Program& pass,
                                 const BucketOptions& buckets)
    : ranks_(std::move(ranks)) {
  std::vector<ReadyGradient> gradients;
  std::map<std::string, std::size_t, std::less<>> numbers;  // in the table
  for (std::size_t i = 0; const auto& e : table.parameters()) {
    const auto number = i++;
    if (!e.param->experts || e.memory.size() == 0) continue;
    gradients.push_back({e.name, e.memory.spec()});
    numbers.emplace(e.name, number);
  }
  offset_.resize(table.parameters().size());
  order_ = in_order_of_completion(pass, std::move(gradients));
  std::vector<std::int64_t> sizes;
  for (const auto& g : order_) sizes.push_back(g.spec.size());
  plan_ = plan_buckets(sizes, buckets);
  for (auto& unit : plan_.units) unit.name = "experts." + unit.name;
  for (std::size_t i = 0; i < order_.size(); ++i) offset_[numbers.at(order_[i].name)] = plan_.offset[i];
}

void ExpertGradients::place(const Tensor& block, const ReduceOptions& options) {
  block_ = block;
  if (ranks_.size() > 1)
    exchange_ = std::make_unique<UnitExchange>(ranks_, plan_, options, false, block.device(), "units of experts");
}

Tensor ExpertGradients::at(const StateEntry& e, std::size_t index) const {
  return Tensor(block_.data() ? block_.ptr<float>() + offset_[index] : nullptr, e.memory.spec(), block_.device());
}

Recording ExpertGradients::reduced(Recording pass) const {
  if (!exchange_) return pass;
  return reduce_pass(std::move(pass), *exchange_, order_, {.block = block_});
}

}  // namespace hpcdl::parallel
