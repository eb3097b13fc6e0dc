#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl::io {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson write_added(const std::vector<AddedToken>& tokens) {
  OrderedJson list = OrderedJson::array();
  for (const AddedToken& a : tokens)
    list.push_back({{"id", a.id},
                    {"content", a.content},
                    {"single_word", a.single_word},
                    {"lstrip", a.lstrip},
                    {"rstrip", a.rstrip},
                    {"normalized", a.normalized},
                    {"special", a.special}});
  return list;
}

/// ordered_json finds a key by walking all keys: a vocabulary is written by hand.
std::string write_model(const BpeVocab& vocab, std::span<const std::string> spelling) {
  auto tokens = vocab.tokens;
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string out = R"({"type": "BPE", "dropout": null, "unk_token": )";
  out += vocab.unk.empty() ? "null" : OrderedJson(vocab.unk).dump();
  out += fmt::format(
      R"(, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": {}, "byte_fallback": false, "ignore_merges": {}, "vocab": {{)",
      vocab.fuse_unk, vocab.ignore_merges);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    out += fmt::format("{}\n{}: {}", i ? "," : "", OrderedJson(tokens[i].first).dump(), tokens[i].second);
  out += "}, \"merges\": [";
  const auto text = [&](TokenId id) { return OrderedJson(spelling[static_cast<std::size_t>(id)]).dump(); };
  for (std::size_t i = 0; i < vocab.merges.size(); ++i)
    out += fmt::format("{}\n[{}, {}]", i ? "," : "", text(vocab.merges[i].first), text(vocab.merges[i].second));
  return out + "]}";
}

}  // namespace

std::string Tokenizer::to_json() const {
  constexpr std::string_view kDecoder =
      R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
  std::vector<std::string> spelling(spelling_.size());
  for (const auto& [token, id] : model_->vocab().tokens) spelling[static_cast<std::size_t>(id)] = token;
  return fmt::format(
      "{{\n\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n\"added_tokens\": {},\n\"normalizer\": "
      "{},\n"
      "\"pre_tokenizer\": {},\n\"post_processor\": {},\n\"decoder\": {},\n\"model\": {}\n}}\n",
      write_added(added_).dump(), normalizer_json_, pre_tokenizer_json_, post_processor_json_, kDecoder,
      write_model(model_->vocab(), spelling));
}

void Tokenizer::save(const std::filesystem::path& file) const { write_file_atomic(file, to_json()); }

void Tokenizer::save_folder(const std::filesystem::path& folder, int context) const {
  make_folder(folder);
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"clean_up_tokenization_spaces", false},
                        {"model_max_length", context}};
  OrderedJson map = OrderedJson::object();
  const auto name = [&](const char* key, std::optional<TokenId> id) {
    if (id) config[key] = map[key] = spelling_[static_cast<std::size_t>(*id)];
  };
  const auto begin = begin_of_text();
  name("bos_token", begin ? begin : end_of_text_);
  name("eos_token", end_of_text_);
  OrderedJson decoder = OrderedJson::object();
  const OrderedJson added = write_added(added_);
  for (std::size_t i = 0; i < added_.size(); ++i) {
    OrderedJson entry = added[i];
    entry.erase("id");
    decoder[std::to_string(added_[i].id)] = entry;
  }
  config["added_tokens_decoder"] = decoder;
  save(folder / "tokenizer.json");
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
  write_file_atomic(folder / "special_tokens_map.json", map.dump(2) + "\n");
}

}  // namespace hpcdl::io
