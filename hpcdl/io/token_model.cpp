#include "hpcdl/io/token_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"

namespace hpcdl::io {

TokenModel::TokenModel(TokenList tokens) : tokens_(std::move(tokens)) {
  const std::int64_t bound = 8 * static_cast<std::int64_t>(tokens_.size()) + 1024;
  by_spelling_.reserve(tokens_.size());
  for (const auto& [token, id] : tokens_) {
    require(id >= 0 && id < bound, "io", "tokenizer.json: token '{}' has id {}, far beyond the {} tokens there are",
            token, id, tokens_.size());
    if (id >= size()) by_id_.resize(static_cast<std::size_t>(id) + 1);
    const std::string*& owner = by_id_[static_cast<std::size_t>(id)];
    require(owner == nullptr, "io", "tokenizer.json: tokens '{}' and '{}' share the id {}", owner ? *owner : "", token,
            id);
    owner = &token;
    require(by_spelling_.emplace(token, id).second, "io", "tokenizer.json: token '{}' is listed twice", token);
  }
}

TokenId TokenModel::find(std::string_view token) const {
  const auto found = by_spelling_.find(token);
  return found == by_spelling_.end() ? -1 : found->second;
}

std::vector<TokenId> TokenModel::find_byte_tokens() const {
  std::vector<TokenId> out;
  for (int b = 0; b < 256; ++b) out.push_back(find(fmt::format("<0x{:02X}>", b)));
  return out;
}

bool TokenModel::append_bytes(const std::vector<TokenId>& byte_tokens, std::string_view text,
                              std::vector<TokenId>& out) {
  const auto id_of = [&](char c) { return byte_tokens[static_cast<unsigned char>(c)]; };
  if (byte_tokens.empty() || std::any_of(text.begin(), text.end(), [&](char c) { return id_of(c) < 0; })) return false;
  std::transform(text.begin(), text.end(), std::back_inserter(out), id_of);
  return true;
}

/// ordered_json finds a key by scanning all keys, so a vocabulary is written by hand. In parts, because the tokens of a
/// text that is one long word are as long as the text.
void TokenModel::write_vocabulary(const std::function<void(std::string_view)>& to) const {
  to("{");
  std::string_view between = "\n";
  for (TokenId id = 0; id < size(); ++id) {
    if (!spelling(id)) continue;
    to(between), to(json_text(*spelling(id))), to(fmt::format(": {}", id));
    between = ",\n";
  }
  to("}");
}

std::string json_text(std::string_view text) { return nlohmann::json(std::string(text)).dump(); }

}  // namespace hpcdl::io
