#pragma once

#include <string>

#include "hpcdl/infer/grammar/expression.h"

namespace hpcdl::infer::grammar {

/// The texts that an expression matches as a whole; with `search`, those in which it matches somewhere. Throws Error
/// that begins with `what` for an anchor inside, where a match neither begins nor ends.
Expression without_anchors(Expression e, bool search, const std::string& what);

}  // namespace hpcdl::infer::grammar
