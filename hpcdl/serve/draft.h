#pragma once

#include <optional>
#include <string>

#include "hpcdl/infer/engine.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/pool.h"

namespace hpcdl::serve {

/// What proposes tokens for a model, by the word that `--spec` takes: none; ngram; or a model folder, or a name in the
/// local Hugging Face cache, with a smaller model that has the same vocabulary.
class Draft {
 public:
  /// The model must outlive this. `tokenizer`: that of the model; null: it has none. Throws Error if the two models do not belong together.
  Draft(const std::string& word, const models::LanguageModel& model, const io::Tokenizer* tokenizer, Pool& pool);
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  /// Refers to this.
  infer::EngineOptions::Speculation options() const {
    return {.ngrams = ngrams_, .draft = model_ ? &*model_ : nullptr};
  }

 private:
  bool ngrams_ = false;
  std::optional<models::LanguageModel> model_;
};

}  // namespace hpcdl::serve
