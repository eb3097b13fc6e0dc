#include "hpcdl/io/gguf/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>

#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/split_patterns.h"
#include "hpcdl/io/gguf/token_types.h"

namespace hpcdl::io {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";

struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<std::int64_t> types = {};

  TokenType type(std::size_t id) const { return types.empty() ? TokenType::normal : static_cast<TokenType>(types[id]); }
};

std::vector<std::string_view> tokens_in(const GgufMetadata& m) {
  auto tokens = m.list<std::string_view>(kTokens);
  require(tokens.has_value() && !tokens->empty(), "io", "{}: expected a tokenizer in {}, found none", m.where(),
          kTokens);
  return std::move(*tokens);
}

Vocabulary vocabulary_in(const GgufMetadata& m) {
  Vocabulary v{.tokens = tokens_in(m)};
  if (auto types = m.list<std::int64_t>("tokenizer.ggml.token_type")) v.types = std::move(*types);
  require(v.types.empty() || v.types.size() == v.tokens.size(), "io",
          "{}: tokenizer.ggml.token_type: expected {} types, one for each token, found {}", m.where(), v.tokens.size(),
          v.types.size());
  return v;
}

std::optional<TokenId> id_in(const GgufMetadata& m, std::string_view name, std::size_t tokens) {
  const auto key = fmt::format("tokenizer.ggml.{}_token_id", name);
  const auto id = m.get<std::int64_t>(key);
  if (!id || *id == 0xFFFFFFFF || *id == -1) return std::nullopt;  // as llama.cpp writes none
  require(*id >= 0 && *id < static_cast<std::int64_t>(tokens), "io",
          "{}: {}: expected the number of one of {} tokens, found {}", m.where(), key, tokens, *id);
  return static_cast<TokenId>(*id);
}

TokenList token_list(const Vocabulary& v) {
  TokenList list;
  list.reserve(v.tokens.size());
  for (std::size_t i = 0; i < v.tokens.size(); ++i)
    list.emplace_back(std::string(v.tokens[i]), static_cast<TokenId>(i));
  return list;
}

std::vector<AddedToken> added_tokens(const Vocabulary& v) {
  std::vector<AddedToken> added;
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    const auto type = v.type(i);
    const bool special = type == TokenType::control || type == TokenType::unknown;
    if ((special || type == TokenType::user_defined) && !v.tokens[i].empty())
      added.push_back({.content = std::string(v.tokens[i]), .id = static_cast<TokenId>(i), .special = special});
  }
  return added;
}

using ById = std::unordered_map<std::string_view, TokenId>;

ById by_spelling(const std::vector<std::string_view>& tokens) {
  ById ids;
  ids.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], static_cast<TokenId>(i));
  return ids;
}

using Merges = std::vector<std::pair<TokenId, TokenId>>;

/// "left right" each; neither holds a space in the byte-level alphabet.
Merges listed_merges(const GgufMetadata& m, const ById& ids) {
  const auto texts = m.list<std::string_view>("tokenizer.ggml.merges");
  require(texts.has_value(), "io", "{}: expected the merges of the tokenizer in tokenizer.ggml.merges, found none",
          m.where());
  Merges merges;
  merges.reserve(texts->size());
  for (const auto text : *texts) {
    const auto space = text.find(' ', 1);
    const auto left = ids.find(text.substr(0, space));
    const auto right = space == std::string_view::npos ? ids.end() : ids.find(text.substr(space + 1));
    require(left != ids.end() && right != ids.end(), "io",
            "{}: tokenizer.ggml.merges: expected two tokens with a space between them, found {}", m.where(),
            shown(text));
    merges.emplace_back(left->second, right->second);
  }
  return merges;
}

/// The merges that make a token are all its divisions into two tokens; those of the token with the largest score come first.
/// Among equals the order is that of transformers, which makes merges for the same vocabularies.
Merges merges_by_score(const Vocabulary& v, const std::vector<double>& scores, const ById& ids) {
  struct Merge {
    double score;
    std::size_t left_size, right_size;
    TokenId left, right;
  };
  std::vector<Merge> all;
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    if (v.type(i) != TokenType::normal && v.type(i) != TokenType::user_defined) continue;
    const auto token = v.tokens[i];
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      if ((static_cast<unsigned char>(token[cut]) & 0xC0) == 0x80) continue;  // inside of a character
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right != ids.end()) all.push_back({scores[i], cut, token.size() - cut, left->second, right->second});
    }
  }
  std::ranges::stable_sort(all, [](const Merge& a, const Merge& b) {
    return std::tie(a.score, a.left_size, a.right_size) > std::tie(b.score, b.left_size, b.right_size);
  });
  Merges merges;
  merges.reserve(all.size());
  for (const auto& m : all) merges.emplace_back(m.left, m.right);
  return merges;
}

/// The post-processor that puts tokens before and behind a text.
Json around_text(const Vocabulary& v, std::optional<TokenId> before, std::optional<TokenId> behind) {
  Json single = Json::array(), special = Json::object();
  const auto add = [&](TokenId id) {
    const std::string token(v.tokens[static_cast<std::size_t>(id)]);
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    special[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  };
  if (before) add(*before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (behind) add(*behind);
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

/// The sections of tokenizer.json that follow from the flags of the file.
Json post_processor(const GgufMetadata& m, const Vocabulary& v, bool begins_unsaid) {
  const auto size = v.tokens.size();
  const bool begins = m.get_or("tokenizer.ggml.add_bos_token", begins_unsaid);
  const bool ends = m.get_or("tokenizer.ggml.add_eos_token", false);
  const auto before = begins ? id_in(m, "bos", size) : std::nullopt;
  const auto behind = ends ? id_in(m, "eos", size) : std::nullopt;
  return before || behind ? around_text(v, before, behind) : Json();
}

Tokenizer gguf_of_bytes(const GgufMetadata& m, const Vocabulary& v, const ById& ids) {
  const auto& split = split_pattern(m.get_or<std::string_view>("tokenizer.ggml.pre", "default"), m.where());
  Json steps = Json::array();
  for (const auto pattern : split.patterns)
    if (!pattern.empty())
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", split.as_gpt2}});
  const Json sections = {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
                         {"post_processor", post_processor(m, v, split.begins)}};
  auto model = std::make_shared<const BpeModel>(
      BpeVocab{.tokens = token_list(v), .merges = listed_merges(m, ids), .ignore_merges = split.whole_words});
  return Tokenizer::from_model(std::move(model), sections.dump(), added_tokens(v));
}

Tokenizer gguf_of_characters(const GgufMetadata& m, const Vocabulary& v, const ById& ids) {
  const auto scores = m.list<double>("tokenizer.ggml.scores");
  require(scores && scores->size() == v.tokens.size(), "io",
          "{}: tokenizer.ggml.scores: expected {} scores, one for each token, found {}", m.where(), v.tokens.size(),
          scores ? scores->size() : 0);
  constexpr const char* kSpace = "\xE2\x96\x81";
  const bool prefix = m.get_or("tokenizer.ggml.add_space_prefix", true);
  const auto replace = [](const char* from, const char* to) -> Json {
    return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  Json normalizers = Json::array(), decoders = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizers.push_back(replace(" ", kSpace));
  decoders.push_back(replace(kSpace, " "));
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  const Json sections = {{"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
                         {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                         {"post_processor", post_processor(m, v, true)}};
  const auto unknown = id_in(m, "unknown", v.tokens.size());
  auto model = std::make_shared<const BpeModel>(
      BpeVocab{.tokens = token_list(v),
               .merges = merges_by_score(v, *scores, ids),
               .unk = unknown ? std::string(v.tokens[static_cast<std::size_t>(*unknown)]) : "",
               .fuse_unk = true,
               .byte_level = false,
               .byte_fallback = true});
  return Tokenizer::from_model(std::move(model), sections.dump(), added_tokens(v));
}

}  // namespace

Tokenizer tokenizer_of(const GgufMetadata& m) {
  const auto v = vocabulary_in(m);
  const auto ids = by_spelling(v.tokens);
  const auto kind = m.need<std::string_view>("tokenizer.ggml.model");
  require(kind == "gpt2" || kind == "llama", "io", "{}: tokenizer.ggml.model: expected gpt2 or llama, found {}",
          m.where(), shown(kind));
  try {
    auto tokenizer = kind == "gpt2" ? gguf_of_bytes(m, v, ids) : gguf_of_characters(m, v, ids);
    if (const auto end = id_in(m, "eos", v.tokens.size())) tokenizer.set_end_of_text(*end);
    return tokenizer;
  } catch (const Error& e) {
    if (std::string_view(e.what()).find(m.where()) != std::string_view::npos) throw;
    throw Error(fmt::format("{} (in {})", e.what(), m.where()));
  }
}

std::vector<TokenId> end_tokens_of(const GgufMetadata& m) {
  static constexpr std::string_view kNames[] = {"<|eot_id|>",    "<|eom_id|>", "<|im_end|>",      "<|end|>",
                                                "<end_of_turn>", "<EOT>",      "<|end_of_text|>", "<|endoftext|>"};
  std::set<TokenId> ends;
  if (!m.has(kTokens)) return {};
  const auto v = vocabulary_in(m);
  for (const auto* name : {"eos", "eot", "eom"})
    if (const auto id = id_in(m, name, v.tokens.size())) ends.insert(*id);
  for (std::size_t i = 0; i < v.tokens.size(); ++i)
    if (v.type(i) == TokenType::control && std::ranges::find(kNames, v.tokens[i]) != std::end(kNames))
      ends.insert(static_cast<TokenId>(i));
  return {ends.begin(), ends.end()};
}

std::optional<GgufChatTemplate> chat_template_of(const GgufMetadata& m, std::string_view name) {
  const std::string plain = "tokenizer.chat_template";
  const auto source = m.get<std::string_view>(name == "default" ? plain : fmt::format("{}.{}", plain, name));
  if (!source) return std::nullopt;
  GgufChatTemplate out{.source = std::string(*source)};
  const auto tokens = tokens_in(m);
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}};
  for (const auto& [key, variable] : kNames)
    if (const auto id = id_in(m, key, tokens.size()))
      out.special_tokens.emplace_back(variable, tokens[static_cast<std::size_t>(*id)]);
  return out;
}

}  // namespace hpcdl::io
