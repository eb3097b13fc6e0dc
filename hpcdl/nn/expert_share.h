#pragma once
// How ranks with parts of one batch divide the experts of every mixture (expert parallelism), as data: a decoder records
// the resulting exchanges, and parallel/ binds the ranks. Rank r of p has the r-th p-th of the experts, whole.

#include <cstdint>

#include "hpcdl/box.h"
#include "hpcdl/program/axis.h"

namespace hpcdl::nn {

struct ExpertShare {
  Axis axis;
  int rank = 0;

  int size() const { return axis.ranks; }
  /// The experts of this rank, of so many in each layer. Precondition: the ranks divide them.
  Interval mine(std::int64_t experts) const {
    const auto n = experts / size();
    return {rank * n, (rank + 1) * n};
  }
};

}  // namespace hpcdl::nn
