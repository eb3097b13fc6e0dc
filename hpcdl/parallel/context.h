#pragma once
// Context parallelism: the ranks that share the tokens of every sequence. How they do so is data (nn/context_share.h);
// the bytes that they send: ops/exchange for each exchange.

#include "hpcdl/nn/context_share.h"
#include "hpcdl/parallel/axis.h"

namespace hpcdl::parallel {

class ContextParallel final : public nn::ContextShare {
 public:
  ContextParallel(comm::Group group, Mode how) : ranks_(std::move(group)) {
    axis = ranks_.axis(), rank = ranks_.group().rank(), mode = how;
  }
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

 private:
  GroupAxis ranks_;
};

}  // namespace hpcdl::parallel
