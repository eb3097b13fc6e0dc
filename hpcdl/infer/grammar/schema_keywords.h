#pragma once
// What the keywords of a schema say, checked, and combined where several schemas hold at once.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "hpcdl/core/error.h"

namespace hpcdl::infer::grammar {

using OrderedJson = nlohmann::ordered_json;

/// Kinds of JSON values, as bits. A number is an integer or has a fraction.
enum ValueKind : unsigned {
  kNull = 1,
  kBoolean = 2,
  kString = 4,
  kInteger = 8,
  kFraction = 16,
  kArray = 32,
  kObject = 64,
  kNumber = kInteger | kFraction,
  kAnyKind = 127
};

/// A schema with its place in the document, as a JSON pointer: "#/properties/age".
struct Place {
  const OrderedJson* schema;
  std::string pointer;
  Place at(std::string_view key) const;  // of a keyword's value
  const OrderedJson* find(const char* keyword) const;
  bool has(const char* keyword) const { return find(keyword) != nullptr; }
  template <class... A> [[noreturn]] void refuse(fmt::format_string<A...> f, A&&... args) const {
    fail("grammar", "schema, {}: {}", pointer, fmt::format(f, std::forward<A>(args)...));
  }
};

/// Whether a keyword only describes, and never restricts.
bool is_annotation(std::string_view keyword);
/// Refuses schemas that are no objects or booleans, and keywords that are unknown or cannot be enforced.
void check_keywords(const Place& place);
/// The kinds that "type" allows; without it, those of the keywords that are there, or all.
unsigned kinds_of_type(const Place& place);
unsigned kind_of(const OrderedJson& value);
/// A count such as "minItems"; `otherwise` if it is not there.
int count_of(const Place& place, const char* keyword, int otherwise);

/// The document of a schema, in which "$ref" points to others.
class SchemaDocument {
 public:
  explicit SchemaDocument(std::string_view text);
  Place root() const { return {&root_, "#"}; }
  /// The schema at the end of a chain of "$ref"s, which have no other restricting keywords beside them.
  Place resolved(Place place) const;
  /// The target of a "$ref".
  Place target(const Place& place) const;
  /// A schema that holds exactly where both do.
  OrderedJson both(const Place& a, const Place& b, int depth = 0) const;
  /// All kinds that values of the schema can have.
  unsigned kinds(const Place& place, int depth = 0) const;
  /// Whether no value meets both, as far as that is plain to see: other kinds, or other values of a required property.
  bool are_apart(const Place& a, const Place& b) const;

 private:
  static std::string decoded(const Place& there, const std::string& part);
  static OrderedJson names_of_kinds(unsigned kinds);
  /// Refuses documents that say so much by references that reading them would not end soon.
  void spend(const Place& place, std::size_t values) const;
  OrderedJson root_;
  mutable std::size_t spent_ = 0;
};

}  // namespace hpcdl::infer::grammar
