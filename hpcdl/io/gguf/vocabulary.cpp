#include "hpcdl/io/gguf/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "hpcdl/core/error.h"
#include "hpcdl/io/chat_template.h"
#include "hpcdl/io/gguf/split_patterns.h"
#include "hpcdl/io/gguf/token_types.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl::io {
namespace {

/// The parts of a tokenizer.json that GGUF stores.
class TokenizerValues {
 public:
  TokenizerValues(const fs::path& folder, std::int64_t vocab)
      : file_(folder / "tokenizer.json"),
        root_(read_json(file_)),
        tokenizer_(Tokenizer::load(folder)),
        texts_(static_cast<std::size_t>(std::max<std::int64_t>(vocab, tokenizer_.vocab_size()))),
        types_(texts_.size(), static_cast<std::int32_t>(TokenType::unused)) {}

  void add_to(GgufValues& values) {
    const auto& model = root_.at("model");
    require(model.value("type", "BPE") == "BPE", "io",
            "{}: expected a BPE tokenizer, found {}: GGUF has no form for it that language models use", file_.string(),
            model.at("type").dump());
    const bool bytes = tokenizer_.model().byte_level();
    name_tokens();
    values.add("tokenizer.ggml.model", bytes ? "gpt2" : "llama");
    values.add("tokenizer.ggml.pre", bytes ? pattern_name() : "default");
    values.add("tokenizer.ggml.tokens", texts_);
    values.add("tokenizer.ggml.token_type", types_);
    if (bytes) values.add("tokenizer.ggml.merges", merges());
    else values.add("tokenizer.ggml.scores", scores()), values.add("tokenizer.ggml.add_space_prefix", prepends());
    values.add("tokenizer.ggml.add_bos_token", !tokenizer_.prefix().empty());
    values.add("tokenizer.ggml.add_eos_token", !tokenizer_.suffix().empty());
    if (const auto id = tokenizer_.begin_of_text()) values.add("tokenizer.ggml.bos_token_id", number(*id));
    if (const auto id = tokenizer_.end_of_text()) values.add("tokenizer.ggml.eos_token_id", number(*id));
    if (unknown_) values.add("tokenizer.ggml.unknown_token_id", number(*unknown_));
  }

 private:
  static std::uint32_t number(TokenId id) { return static_cast<std::uint32_t>(id); }

  void set(TokenId id, std::string_view text, TokenType type) {
    texts_[static_cast<std::size_t>(id)] = text;
    types_[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(type);
  }

  void name_tokens() {
    for (const auto& [text, id] : tokenizer_.model().tokens()) {
      const bool byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
      set(id, text, byte && !tokenizer_.model().byte_level() ? TokenType::byte : TokenType::normal);
    }
    if (root_.contains("added_tokens"))
      for (const auto& a : root_["added_tokens"]) {
        const auto text = a.at("content").get<std::string>();
        if (const auto id = tokenizer_.find(text))
          set(*id, text, tokenizer_.is_special(*id) ? TokenType::control : TokenType::user_defined);
      }
    const auto& unknown = root_["model"]["unk_token"];
    if (unknown.is_string()) unknown_ = tokenizer_.find(unknown.get<std::string>());
    if (unknown_) set(*unknown_, unknown.get<std::string>(), TokenType::unknown);
    for (std::size_t i = 0; i < texts_.size(); ++i)
      if (types_[i] == static_cast<std::int32_t>(TokenType::unused)) texts_[i] = fmt::format("[PAD{}]", i);
  }

  /// "left right" of each merge: tokenizer.json has either this form or pairs.
  std::vector<std::string> merges() const {
    std::vector<std::string> list;
    for (const auto& m : root_.at("model").at("merges"))
      list.push_back(m.is_string() ? m.get<std::string>()
                                   : fmt::format("{} {}", m.at(0).get<std::string>(), m.at(1).get<std::string>()));
    return list;
  }

  /// The token that is made by the first merge has the largest score.
  std::vector<float> scores() const {
    std::vector<float> all(texts_.size(), -1e6f);
    float rank = 0;
    for (const auto& merge : merges()) {
      const auto space = merge.find(' ', 1);
      const auto id = tokenizer_.find(merge.substr(0, space) + merge.substr(space + 1));
      rank -= 1;
      if (id && all[static_cast<std::size_t>(*id)] == -1e6f) all[static_cast<std::size_t>(*id)] = rank;
    }
    return all;
  }

  bool prepends() const {
    const auto says = [&](const char* section) { return root_.contains(section) ? root_[section].dump() : ""; };
    const auto split = says("pre_tokenizer");
    return says("normalizer").find("\"Prepend\"") != std::string::npos ||
           (split.find("\"Metaspace\"") != std::string::npos && split.find("\"never\"") == std::string::npos);
  }

  std::string pattern_name() const {
    SplitPattern found;
    std::vector<std::string> patterns;
    read_steps(root_.at("pre_tokenizer"), patterns, found.as_gpt2);
    const bool whole = root_.at("model").value("ignore_merges", false);
    for (const auto& row : split_patterns()) {
      const auto used =
          static_cast<std::size_t>(std::ranges::count_if(row.patterns, [](auto p) { return !p.empty(); }));
      if (row.as_gpt2 == found.as_gpt2 && row.whole_words == whole && patterns.size() == used &&
          std::equal(patterns.begin(), patterns.end(), row.patterns.begin()))
        return std::string(row.names.front());
    }
    fail("io", "{}: llama.cpp has no name for the way in which this tokenizer cuts text into words: {}", file_.string(),
         shown(root_.at("pre_tokenizer").dump(), 200));
  }

  void read_steps(const Json& step, std::vector<std::string>& patterns, bool& as_gpt2) const {
    const auto type = step.value("type", "");
    if (type == "Sequence")
      for (const auto& s : step.at("pretokenizers")) read_steps(s, patterns, as_gpt2);
    else if (type == "ByteLevel") as_gpt2 = step.value("use_regex", true);
    else if (type == "Digits" && step.value("individual_digits", false)) patterns.emplace_back("\\p{N}");
    else if (type == "Split" && step.at("pattern").contains("Regex"))
      patterns.push_back(step["pattern"]["Regex"].get<std::string>());
    else patterns.push_back(step.dump());  // equal to no pattern
  }

  fs::path file_;
  Json root_;
  Tokenizer tokenizer_;
  std::optional<TokenId> unknown_;
  std::vector<std::string> texts_;
  std::vector<std::int32_t> types_;
};

}  // namespace

void add_tokenizer(GgufValues& values, const fs::path& folder, std::int64_t vocab) {
  std::error_code ignored;
  if (!fs::exists(folder / "tokenizer.json", ignored)) return;
  TokenizerValues(folder, vocab).add_to(values);
  if (const auto chat = load_chat_template(folder)) values.add("tokenizer.chat_template", chat->source());
}

void copy_tokenizer(GgufValues& values, const GgufMetadata& from) {
  for (const auto& e : from.entries())
    if (e.key.starts_with("tokenizer.")) values.add(e.key, e.value);
}

}  // namespace hpcdl::io
