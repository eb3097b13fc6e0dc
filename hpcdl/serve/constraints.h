#pragma once
// The forms that requests ask of their texts.

#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/infer/grammar/grammar.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl::serve {

enum class Form { json_object, json_schema, regex, gbnf };

/// Makes the constraints of texts of one model. Requests with the same form share its grammar, which takes long to
/// prepare. Safe from many threads.
class Constraints {
 public:
  /// `eos`: the ids that end a text.
  Constraints(const io::Tokenizer& tokenizer, std::vector<std::int32_t> eos);
  /// The grammar of a schema, a pattern or a grammar's text. Throws Error if it is wrong or cannot be enforced, or if
  /// the model has no token that ends a text.
  std::shared_ptr<const infer::Grammar> grammar(Form form, std::string_view text);
  /// The constraint of one text.
  std::shared_ptr<infer::TokenConstraint> constrain(std::shared_ptr<const infer::Grammar> grammar) const;

 private:
  struct Kept {
    Form form;
    std::string text;
    std::shared_ptr<const infer::Grammar> grammar;
  };
  /// Takes a quarter of a second for a large tokenizer, and most requests have no form: it is made while the model loads.
  std::shared_future<std::shared_ptr<const infer::Vocabulary>> vocabulary_;
  std::vector<std::int32_t> eos_;
  std::mutex mutex_;
  std::list<Kept> kept_;  // the most recent one first
};

}  // namespace hpcdl::serve
