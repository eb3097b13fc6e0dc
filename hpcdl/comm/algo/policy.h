#pragma once
// Which algorithm for which call.

#include <span>
#include <string>
#include <vector>

#include "hpcdl/comm/reduce.h"

namespace hpcdl::comm::algo {

/// What the choice depends on.
struct Situation {
  Collective what = Collective::all_reduce;
  std::int64_t bytes = 0;  // of the whole tensor
  int ranks = 2;
  int hosts = 1;
  bool shared = true;  // ranks of one host have shared memory
  bool window = false;  // the tensors lie in it
};

/// All that do this collective, in the order of Algorithm.
std::span<const Algorithm> algorithms_of(Collective what);
/// Those of them that can be used there. native: the transport has a library of its own.
std::vector<Algorithm> possible(const Situation& s, bool native);

/// Whether with this algorithm an element's bits are independent of where it stands in the tensor, and so of where tensors are cut into
/// buckets. Rounding in another order is all that could make a difference; two ranks have one order.
bool position_independent(Algorithm a, int ranks);

/// Never automatic.
Algorithm default_choice(const Situation& s);

}  // namespace hpcdl::comm::algo
