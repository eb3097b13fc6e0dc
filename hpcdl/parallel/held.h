#pragma once
// When a pass holds values that come into its memory shortly before it needs them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/program.h"

namespace hpcdl::parallel {

/// State that programs name, of a part of the model that comes as a whole.
struct OwnedState {
  std::string name, owner;
  std::int64_t bytes = 0;
};

/// A time during which a pass holds the values of an owner.
struct Held {
  std::string owner;
  std::size_t gather = 0, first = 0, last = 0;  // records: before which they begin to come; that use the owner
};

/// When the pass holds what, in the order of `gather`. A part of the model is used in several visits: once in
/// forward, once in backward, where it may be recomputed. Its values begin to come with the visit that is `ahead` visits
/// earlier, not counting those of parts that are much smaller than most: a norm hides nothing. They stay between two
/// visits if they would have to come again before their memory is free.
std::vector<Held> held_states(const Program& pass, std::span<const OwnedState> states, int ahead);

}  // namespace hpcdl::parallel
