#pragma once
// Causal attention over sequences whose tokens several ranks share.

#include "hpcdl/graph.h"
#include "hpcdl/models/blocks.h"
#include "hpcdl/nn/context_share.h"

namespace hpcdl::models {

/// q (2 B, n, H*D), k and v (2 B, n, Hkv*D) of the tokens of this rank (nn/context_share.h); returns the rows of q. Throws
/// UsageError if the mode divides the heads and the ranks do not.
Var attend_across(const Var& q, const Var& k, const Var& v, const Heads& heads, const nn::ContextShare& ranks);

}  // namespace hpcdl::models
