#pragma once
// Builds the rules of a schema. Every schema of the document that is referred to is one rule, so that recursion is a
// call.

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hpcdl/infer/grammar/builder.h"
#include "hpcdl/infer/grammar/json_text.h"
#include "hpcdl/infer/grammar/schema_keywords.h"

namespace hpcdl::infer::grammar {

class SchemaCompiler {
 public:
  SchemaCompiler(const SchemaDocument& document, Builder& builder)
      : document_(document), builder_(builder), json_(builder) {}
  /// The rule of this schema; all rules that it needs are built. Throws Error with the pointer of what cannot be
  /// enforced or met.
  RuleId compile(const Place& root);

 private:
  /// The rule of a schema, built later if it is new.
  RuleId rule_of(const Place& place);
  /// A schema that was made here, not part of the document.
  Place keep(OrderedJson schema, std::string pointer);
  Place without(const Place& place, const char* keyword);
  static const OrderedJson& list_of(const Place& place, const char* keyword);

  void value(const Place& place, StateId from, StateId to);
  void all_of(const Place& place, StateId from, StateId to);
  void one_of(const Place& place, const char* keyword, StateId from, StateId to);
  void listed(const Place& place, StateId from, StateId to);
  void keep_those_of(const Place& rest, std::vector<OrderedJson>& values);
  StateId add_text(StateId from, const std::string& text, std::map<std::string, StateId>& ends);

  void number(const Place& place, bool fractions, StateId from, StateId to);
  void string(const Place& place, StateId from, StateId to);
  void array(const Place& place, StateId from, StateId to);
  void object(const Place& place, StateId from, StateId to);

  const SchemaDocument& document_;
  Builder& builder_;
  JsonText json_;
  std::unordered_map<const OrderedJson*, RuleId> rules_;
  std::deque<std::pair<Place, RuleId>> todo_;
  std::deque<OrderedJson> made_;
};

}  // namespace hpcdl::infer::grammar
