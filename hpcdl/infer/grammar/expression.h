#pragma once
// What regular expressions and rules of GBNF are made of.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "hpcdl/infer/grammar/builder.h"
#include "hpcdl/infer/grammar/char_set.h"

namespace hpcdl::infer::grammar {

struct Expression {
  enum class Kind : std::uint8_t {
    chars,     // one character of `set`
    sequence,  // `parts`, one after the other; without parts: the empty text
    choice,    // one of `parts`; without parts: nothing matches
    repeat,    // parts[0], `min` to `max` times
    rule,      // a call of `rule`
    begin,     // ^
    end        // $
  };
  Kind kind = Kind::sequence;
  CharSet set = {};
  std::vector<Expression> parts = {};
  int min = 0, max = 0;  // kUnbounded
  RuleId rule = 0;

  static Expression chars(CharSet set) { return {.kind = Kind::chars, .set = std::move(set)}; }
  static Expression sequence(std::vector<Expression> parts);
  static Expression choice(std::vector<Expression> parts);
  static Expression repeat(Expression part, int min, int max);
};

/// How many characters the texts of an expression can have; `max` is kEndless without a bound. A call counts as 0 or
/// more.
struct Lengths {
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();
  std::int64_t min, max;
};
Lengths lengths(const Expression& e);

/// The number of nodes.
std::size_t size(const Expression& e);

/// Adds the texts of `e` as ways between two states. It must be without anchors.
void build(Builder& builder, const Expression& e, StateId from, StateId to, Encoding encoding);
/// The same for its texts of `min` to `max` characters (or kUnbounded), inside a JSON string. It must be without calls.
/// Throws Error that begins with `what` if that needs too many states.
void build_within(Builder& builder, const Expression& e, StateId from, int min, int max, StateId to,
                  const std::string& what);

}  // namespace hpcdl::infer::grammar
