#pragma once
// A text encoder that is loaded to be used: its weights, its tokenizer, and what runs them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/infer/embedder.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/models/text_encoder.h"
#include "hpcdl/pool.h"

namespace hpcdl::serve {

struct EncoderOptions {
  std::string model;  // a folder, or a name in the local Hugging Face cache
  std::string device = "cpu";
  DType dtype = DType::none;   // none: that of the weights
  int threads = 0;             // 0: as many as can run at once
  std::int64_t budget = 1024;  // most tokens of a pass
};

class LoadedEncoder {
 public:
  /// Throws Error if the folder holds no encoder that is supported.
  explicit LoadedEncoder(const EncoderOptions& options);

  const io::Tokenizer& tokenizer() const { return tokenizer_; }
  const models::TextEncoder& model() const { return model_; }
  std::vector<std::int32_t> ids(std::string_view text, bool truncate) const {
    return infer::ids_for_embedding(tokenizer_, model_.embedding(), text, truncate);
  }
  /// See infer::Embedder::embed(). By one thread at a time.
  std::vector<std::vector<float>> embed(std::span<const std::vector<std::int32_t>> texts) {
    return embedder_->embed(texts);
  }

 private:
  Pool pool_;
  io::Tokenizer tokenizer_;
  models::TextEncoder model_;
  std::optional<infer::Embedder> embedder_;
};

}  // namespace hpcdl::serve
