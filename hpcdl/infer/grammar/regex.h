#pragma once
// Regular expressions, in the syntax of RE2 as far as it describes sets of texts.

#include <memory>
#include <string>
#include <string_view>

#include "hpcdl/infer/grammar/expression.h"

namespace hpcdl::infer::grammar {

/// Which texts a pattern means. `whole`: those it matches from the first to the last character, "." not being a line
/// feed. `search`: those in which it matches somewhere, as "pattern" of JSON schema; "." is none of the line ends of
/// ECMAScript.
enum class Match { whole, search };

/// The expression of a pattern, without anchors: "^" and "$" stand only where a match begins or ends. Throws Error that
/// begins with `what`.
Expression parse_regex(std::string_view pattern, Match match, const std::string& what = "the regular expression");
std::unique_ptr<const Rules> rules_of_regex(std::string_view pattern);

}  // namespace hpcdl::infer::grammar
