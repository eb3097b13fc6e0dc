#pragma once
// A small model folder that can be served: a tokenizer of bytes, a chat template, random weights.

#include <filesystem>
#include <functional>
#include <string>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::serve {

inline constexpr std::int64_t kTestContext = 4096;
inline constexpr const char* kTestTemplate =
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if tools %}tools:{{ tools | tojson }}\n{% endif %}{% if mood %}mood:{{ mood }}\n{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

/// One token for each byte, and the end of a text.
inline io::Tokenizer byte_tokenizer() {
  io::BpeVocab vocab;
  const auto& alphabet = io::byte_level_alphabet();
  for (std::size_t i = 0; i < alphabet.size(); ++i) vocab.tokens.emplace_back(alphabet[i], static_cast<int>(i));
  vocab.tokens.emplace_back(io::kEndOfText, 256);
  return io::Tokenizer::from_bpe(std::move(vocab), {{.content = std::string(io::kEndOfText), .id = 256}});
}

/// It has a few ids more than the tokenizer.
inline io::ModelConfig test_model() {
  io::ModelConfig c;
  c.family = io::Family::llama;
  c.layers = 2, c.heads = 4, c.kv_heads = 2, c.width = 32, c.ffn = 64, c.context = kTestContext, c.vocab = 260;
  c.eos = {256};
  return c;
}

/// `change` sees the model before it is written.
inline void write_test_model(const std::filesystem::path& folder, io::ModelConfig c = test_model(),
                             const std::function<void(models::LanguageModel&)>& change = {}) {
  models::resolve(c);
  auto model = models::LanguageModel::create(c, 3, false);
  for (auto& p : model.parameters())  // larger than fresh weights, so that texts are not all alike
    for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 8;
  if (change) change(model);
  model.save(folder);
  byte_tokenizer().save_folder(folder, static_cast<int>(kTestContext));
  io::write_file_atomic(folder / "chat_template.jinja", kTestTemplate);
}

}  // namespace hpcdl::serve
