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

}  // namespace

void Tokenizer::write_json(const std::function<void(std::string_view)>& to) const {
  to(fmt::format(
      "{{\n\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n\"added_tokens\": {},\n\"normalizer\": "
      "{},\n"
      "\"pre_tokenizer\": {},\n\"post_processor\": {},\n\"decoder\": {},\n\"model\": ",
      write_added(added_).dump(), normalizer_json_, pre_tokenizer_json_, post_processor_json_, decoder_json_));
  model_->write_json(to);
  to("\n}\n");
}

std::string Tokenizer::to_json() const {
  std::string out;
  write_json([&](std::string_view part) { out += part; });
  return out;
}

void Tokenizer::save(const std::filesystem::path& file) const {
  constexpr std::size_t kWorthCall = 1 << 16;
  AtomicFile out(file);
  std::string parts;
  write_json([&](std::string_view part) {
    parts += part;
    if (parts.size() < kWorthCall) return;
    out.append(parts);
    if (parts.size() > 2 * kWorthCall) parts = {};
    parts.clear();
  });
  out.append(parts);
  out.commit();
}

void Tokenizer::save_folder(const std::filesystem::path& folder, int context) const {
  make_folder(folder);
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"clean_up_tokenization_spaces", false},
                        {"model_max_length", context}};
  OrderedJson map = OrderedJson::object();
  const auto name = [&](const char* key, std::optional<TokenId> id) {
    if (id) config[key] = map[key] = spelling_of(*id);
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
