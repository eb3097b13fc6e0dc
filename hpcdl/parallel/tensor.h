#pragma once
// Tensor parallelism: the ranks that share the layers of a model. A model describes how they do so as data
// (nn/sharing.h); the bytes it sends: ops/exchange for each exchange, wire_bytes() for a program.

#include "hpcdl/nn/sharing.h"
#include "hpcdl/parallel/axis.h"

namespace hpcdl::parallel {

class TensorParallel final : public nn::Sharing {
 public:
  explicit TensorParallel(comm::Group group, Scheme how = conjugate,
                          comm::Algorithm algorithm = comm::Algorithm::automatic)
      : ranks_(std::move(group), algorithm) {
    axis = ranks_.axis(), rank = ranks_.group().rank(), scheme = how;
  }
  TensorParallel(const TensorParallel&) = delete;
  TensorParallel& operator=(const TensorParallel&) = delete;

  const comm::Group& group() const { return ranks_.group(); }

 private:
  GroupAxis ranks_;
};

}  // namespace hpcdl::parallel
