#include "hpcdl/serve/constraints.h"

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl::serve {

namespace {

constexpr std::size_t kMostKept = 64;

std::shared_ptr<const infer::Grammar> made(Form form, std::string_view text) {
  switch (form) {
    case Form::json_object: return infer::Grammar::json_object();
    case Form::json_schema: return infer::Grammar::json_schema(text);
    case Form::regex: return infer::Grammar::regex(text);
    case Form::gbnf: break;
  }
  return infer::Grammar::gbnf(text);
}

}  // namespace

Constraints::Constraints(const io::Tokenizer& tokenizer, std::vector<std::int32_t> eos)
    : vocabulary_(
          std::async(std::launch::async, [tokenizer] { return std::make_shared<const infer::Vocabulary>(tokenizer); })),
      eos_(std::move(eos)) {}

std::shared_ptr<const infer::Grammar> Constraints::grammar(Form form, std::string_view text) {
  require(!eos_.empty(), "grammar",
          "a text of this model cannot be given a form: the model has no token that ends one");
  {
    const std::lock_guard lock(mutex_);
    const auto it =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& k) { return k.form == form && k.text == text; });
    if (it != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, it);
      return kept_.front().grammar;
    }
  }
  auto grammar = made(form, text);
  const std::lock_guard lock(mutex_);
  kept_.push_front({form, std::string(text), grammar});
  if (kept_.size() > kMostKept) kept_.pop_back();
  return grammar;
}

std::shared_ptr<infer::TokenConstraint> Constraints::constrain(std::shared_ptr<const infer::Grammar> grammar) const {
  return infer::constrain(std::move(grammar), vocabulary_.get(), eos_);
}

}  // namespace hpcdl::serve
