#include "hpcdl/serve/loaded_encoder.h"

#include "hpcdl/core/error.h"
#include "hpcdl/io/model_folder.h"

namespace hpcdl::serve {

namespace {

std::filesystem::path folder_of_encoder(const std::string& model) {
  auto folder = io::find_model_folder(model);
  require(models::is_encoder(folder), "embed",
          "{} holds a model that continues texts: expected an encoder, whose config.json has \"model_type\": \"bert\"",
          folder.string());
  return folder;
}

}  // namespace

LoadedEncoder::LoadedEncoder(const EncoderOptions& o)
    : pool_(o.threads),
      tokenizer_(io::Tokenizer::load(folder_of_encoder(o.model))),
      model_(models::TextEncoder::open(io::find_model_folder(o.model), {o.dtype, &pool_})) {
  require(tokenizer_.vocab_size() <= model_.config().vocab, "embed",
          "the tokenizer has {} tokens, the model {}: tokenizer and model do not belong together",
          tokenizer_.vocab_size(), model_.config().vocab);
  model_.to_device(Stream(device_from_name(o.device), pool_));
  embedder_.emplace(model_, pool_, o.budget);
}

}  // namespace hpcdl::serve
