#pragma once
// Facts that ranks compare before they work together: ranks with different settings would train a wrong model, or
// wait for each other in different collectives.

#include <span>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/group.h"

namespace hpcdl::parallel {

/// Something that must be the same on all ranks: "train.lr", "0.001".
struct Fact {
  std::string name, value;
};

/// Thrown if ranks differ, by all of them with the same words, so that no rank has to tell the others.
class Disagreement : public UsageError {
 public:
  using UsageError::UsageError;
};

/// Collective. Throws Disagreement unless all ranks have the same facts. Ranks that agree exchange 8 bytes each.
void expect_agreement(const comm::Group& group, std::span<const Fact> facts);

/// "train.lr is 0.001 on rank 0 and 0.002 on ranks 1 to 3; train.seed differs, too". The first fact that is not the
/// same on all ranks, in the order of the lowest rank that has it; empty: there is none.
std::string difference(const std::vector<std::vector<Fact>>& by_rank);

/// "rank 3", "ranks 0 and 2", "ranks 0 to 3, 6 and 8". Ascending, at least one.
std::string name_ranks(std::span<const int> ranks);

}  // namespace hpcdl::parallel
