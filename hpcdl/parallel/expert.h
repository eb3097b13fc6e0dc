#pragma once
// Expert parallelism: the ranks that divide the experts of mixtures. How they do so is data (nn/expert_share.h); the bytes
// that they send: ops/exchange for each exchange.

#include "hpcdl/nn/expert_share.h"
#include "hpcdl/parallel/axis.h"

namespace hpcdl::parallel {

class ExpertParallel final : public nn::ExpertShare {
 public:
  explicit ExpertParallel(comm::Group group) : ranks_(std::move(group)) {
    axis = ranks_.axis(), rank = ranks_.group().rank();
  }
  ExpertParallel(const ExpertParallel&) = delete;
  ExpertParallel& operator=(const ExpertParallel&) = delete;

 private:
  GroupAxis ranks_;
};

}  // namespace hpcdl::parallel
