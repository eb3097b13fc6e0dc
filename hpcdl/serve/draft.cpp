#include "hpcdl/serve/draft.h"

#include <filesystem>

#include "hpcdl/core/error.h"
#include "hpcdl/io/model_folder.h"

namespace hpcdl::serve {

namespace {

void require_same_tokens(const std::string& word, const io::Tokenizer& a, const io::Tokenizer& b) {
  require(a.vocab_size() == b.vocab_size(), "speculation",
          "--spec {}: its tokenizer has {} tokens, that of the model {}: both need the same vocabulary", word,
          b.vocab_size(), a.vocab_size());
  for (io::TokenId id = 0; id < a.vocab_size(); ++id)
    require(a.bytes_of(id) == b.bytes_of(id), "speculation",
            "--spec {}: token {} is another one than in the model: both need the same vocabulary", word, id);
}

}  // namespace

Draft::Draft(const std::string& word, const models::LanguageModel& model, const io::Tokenizer* tokenizer, Pool& pool)
    : ngrams_(word == "ngram") {
  if (ngrams_ || word == "none") return;
  const auto folder = io::find_model_folder(word);
  if (tokenizer && io::has_tokenizer(folder)) require_same_tokens(word, *tokenizer, io::Tokenizer::load(folder));
  model_ = models::LanguageModel::open(folder);
  model_->prefetch();
  model_->to_device(Stream(model.device(), pool));
}

}  // namespace hpcdl::serve
