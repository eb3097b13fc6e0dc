#pragma once
// Texts that must have a form: JSON, JSON of a schema, a regular expression, or a grammar in GBNF. What each accepts
// and refuses: docs/grammars.md.
//
//   auto vocabulary = std::make_shared<const Vocabulary>(tokenizer);        // once per tokenizer
//   auto grammar = Grammar::json_schema(R"({"type": "object", ...})");      // once per schema; many texts share it
//   std::shared_ptr<TokenConstraint> constraint = constrain(grammar, vocabulary, eos_ids);  // once per text

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/infer/grammar/vocabulary.h"
#include "hpcdl/infer/token_constraint.h"

namespace hpcdl::infer {

namespace grammar {
struct Rules;
class TokenMasks;
}  // namespace grammar

/// A set of texts. Immutable and safe from many threads; it keeps the masks of the states that texts have met, so
/// requests with the same schema should share one.
class Grammar {
 public:
  /// Any JSON object, nested at most about 100 deep.
  static std::shared_ptr<const Grammar> json_object();
  /// A JSON schema, draft 2020-12. Throws Error with the JSON pointer of what cannot be enforced or met.
  static std::shared_ptr<const Grammar> json_schema(std::string_view schema);
  /// The whole text matches a regular expression in the syntax of RE2. Throws Error with the place of a mistake.
  static std::shared_ptr<const Grammar> regex(std::string_view pattern);
  /// A grammar in the notation of llama.cpp; the text is its rule "root". Throws Error with the line of a mistake.
  static std::shared_ptr<const Grammar> gbnf(std::string_view text);

  explicit Grammar(std::unique_ptr<const grammar::Rules> rules);
  ~Grammar();
  Grammar(const Grammar&) = delete;

  /// Whether the whole text is in the set.
  bool accepts(std::string_view text) const;
  const grammar::Rules& rules() const { return *rules_; }
  /// The masks that texts over `vocabulary` share. Ones that have grown too large are replaced by empty ones.
  std::shared_ptr<grammar::TokenMasks> masks(const std::shared_ptr<const Vocabulary>& vocabulary) const;

 private:
  std::unique_ptr<const grammar::Rules> rules_;
  mutable std::mutex lock_;
  mutable std::vector<std::shared_ptr<grammar::TokenMasks>> masks_;  // one per vocabulary in use
};

/// The constraint of one text. Ids of the vocabulary are allowed if the text can still be completed after them, and
/// `eos` ids exactly where the text may end. mask() and accept() throw Error for a grammar so ambiguous that following
/// it would take too long. One thread at a time.
std::shared_ptr<TokenConstraint> constrain(std::shared_ptr<const Grammar> grammar,
                                           std::shared_ptr<const Vocabulary> vocabulary,
                                           std::span<const std::int32_t> eos);

}  // namespace hpcdl::infer
