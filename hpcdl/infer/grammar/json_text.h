#pragma once
// Rules for the parts of JSON texts that schemas share: blanks, strings, numbers, any value.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "hpcdl/infer/grammar/builder.h"

namespace hpcdl::infer::grammar {

using OrderedJson = nlohmann::ordered_json;

/// Each rule is made when it is first asked for.
class JsonText {
 public:
  explicit JsonText(Builder& builder) : b_(builder) {}

  /// Between two tokens of JSON: nothing, a space, or a line feed with up to 64 spaces or 32 tabs. Bounded, so that a
  /// model cannot write blanks for ever.
  RuleId blank();
  RuleId any();
  RuleId string();
  /// A string of `min` to `max` characters (or kUnbounded).
  RuleId string(int min, int max);
  RuleId number();
  /// -10^18 < x < 10^18
  RuleId integer();

  /// `open`, then blank() after it.
  void open(StateId from, char bracket, StateId to);
  /// blank(), then the bracket.
  void close(StateId from, char bracket, StateId to);
  /// "," and ":" with blank() after them.
  void comma(StateId from, StateId to) { open(from, ',', to); }
  void colon(StateId from, StateId to) { open(from, ':', to); }
  /// This value, objects with their keys in this order.
  void value(StateId from, const OrderedJson& value, StateId to);
  /// A string that is none of `names`, written with the escapes that json.dumps of Python uses.
  void other_key(StateId from, const std::set<std::string>& names, StateId to);

  static std::string quoted(const std::string& text);

 private:
  void character(StateId from, StateId to);
  void string_body(StateId from, int min, int max, StateId to);
  RuleId shared(std::optional<RuleId>& id, const char* name, void (JsonText::*fill)(StateId, StateId));
  void fill_blank(StateId from, StateId to);
  void fill_any(StateId from, StateId to);
  void fill_string(StateId from, StateId to);
  void fill_number(StateId from, StateId to);
  void fill_integer(StateId from, StateId to);

  Builder& b_;
  std::optional<RuleId> blank_, any_, string_, number_, integer_;
  std::map<std::pair<int, int>, RuleId> strings_;
};

/// Digits of whole numbers, compared with bounds exactly.
void build_integer(Builder& builder, StateId from, std::int64_t min, std::int64_t max, StateId to);

/// A bound of a number, exactly as it is written in decimal.
struct DecimalBound {
  bool negative = false;
  std::string whole, fraction;  // digits; whole has no leading zeros but "0" itself
  bool open = false;            // the bound itself is excluded
};
/// None if the number has more than 15 digits before or after the point.
std::optional<DecimalBound> decimal_bound(double bound, bool open);
/// Numbers without exponent, of at most 15 digits, so that different texts are different doubles.
void build_decimal(Builder& builder, StateId from, const std::optional<DecimalBound>& min,
                   const std::optional<DecimalBound>& max, StateId to);

}  // namespace hpcdl::infer::grammar
