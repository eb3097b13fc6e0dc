#include "hpcdl/io/tokenizer.h"

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl::io {

void Tokenizer::finish() {
  TokenId size = model_->size();
  for (const AddedToken& t : added_) size = std::max(size, t.id + 1);
  bytes_.assign(static_cast<std::size_t>(size), {});
  spellings_ = bytes_;
  special_.assign(bytes_.size(), false);
  auto kept = std::make_shared<std::deque<std::string>>();
  std::string bytes;
  const auto add = [&](std::string_view token, TokenId id) {
    std::string_view& of = bytes_[static_cast<std::size_t>(id)] = spellings_[static_cast<std::size_t>(id)] = token;
    if (!decoder_->byte_level()) bytes = decoder_->bytes_of(token);
    else if (!from_byte_level(token, bytes)) return;
    if (bytes != token) of = kept->emplace_back(bytes);
  };
  for (const auto& [token, id] : model_->tokens()) add(token, id);
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& t : added_) {
    const auto i = static_cast<std::size_t>(t.id);
    add(kept->emplace_back(t.content), t.id);
    // Bytes of an added token are what it says, whatever the alphabet.
    if (decoder_->byte_level()) bytes_[i] = spellings_[i];
    special_[i] = t.special;
    (t.normalized ? normalized : raw).push_back(t);
  }
  kept_ = std::move(kept);
  for (AddedToken& t : normalized) t.content = normalizer_->apply(t.content);
  raw_ = std::make_shared<const AddedTokens>(std::move(raw));
  normalized_ = std::make_shared<const AddedTokens>(std::move(normalized));
  for (const std::string_view name : {kEndOfText, std::string_view("<|end_of_text|>"), std::string_view("</s>"),
                                      std::string_view("<|im_end|>"), std::string_view("<eos>")})
    if (!end_of_text_) end_of_text_ = find(name);
}

std::string_view Tokenizer::spelling_of(TokenId id) const {
  bytes_of(id);
  return spellings_[static_cast<std::size_t>(id)];
}

bool Tokenizer::added_token_over(std::string_view text, std::size_t at) const {
  return raw_->over(text, at) || normalized_->over(text, at);
}

std::vector<TextPiece> Tokenizer::pieces(std::string_view text, std::deque<std::string>& owned) const {
  const std::size_t bad = find_invalid_utf8(text);
  require(bad == std::string_view::npos, "io", "text is not UTF-8: byte 0x{:02X} at offset {} begins no character",
          static_cast<unsigned>(bad == std::string_view::npos ? 0 : static_cast<unsigned char>(text[bad])), bad);
  std::vector<TextPiece> raw, out;
  raw_->split(text, raw);
  const auto at_start = [](TextPiece& piece, std::string_view of) {
    piece.at_start = piece.id < 0 && piece.text.data() == of.data();
  };
  if (!raw.empty()) at_start(raw.front(), text);
  if (normalizer_->empty() && normalized_->empty()) return raw;
  for (const TextPiece& piece : raw) {
    if (piece.id >= 0) {
      out.push_back(piece);
      continue;
    }
    std::string_view now = piece.text;
    if (!normalizer_->empty()) now = owned.emplace_back(normalizer_->apply(now));
    const std::size_t first = out.size();
    normalized_->split(now, out);
    if (piece.at_start && out.size() > first) at_start(out[first], now);
  }
  return out;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special) const {
  // A cache is only worthwhile for more text than its setup costs.
  constexpr std::size_t kWorthCache = 1 << 16;
  std::optional<WordCache> cache;
  if (text.size() >= kWorthCache) cache.emplace(*model_);
  std::vector<TokenId> out;
  if (add_special) out = prefix_;
  std::deque<std::string> owned;
  for (const TextPiece& piece : pieces(text, owned)) {
    if (piece.id >= 0) {
      out.push_back(piece.id);
      continue;
    }
    splitter_->for_each_word(
        piece.text,
        [&](std::string_view word) { cache ? cache->encode_word(word, out) : model_->encode_word(word, out); },
        piece.begins, piece.at_start);
  }
  if (add_special) out.insert(out.end(), suffix_.begin(), suffix_.end());
  return out;
}

std::string_view Tokenizer::bytes_of(TokenId id) const {
  require(id >= 0 && id < vocab_size(), "io", "token id {} is outside the vocabulary of {}", id, vocab_size());
  return bytes_[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<std::size_t>(id)];
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  if (!decoder_->byte_level()) {
    StreamDecoder stream(*this, skip_special);
    for (const TokenId id : ids) bytes += stream.push(id);
    return bytes + stream.finish();
  }
  for (const TokenId id : ids)
    if (const std::string_view b = bytes_of(id); !(skip_special && is_special(id))) bytes += b;
  return replace_invalid_utf8(bytes);
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  for (const AddedToken& t : added_)
    if (t.content == token) return t.id;
  const TokenId id = model_->find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<TokenId> Tokenizer::begin_of_text() const {
  return prefix_.empty() ? std::nullopt : std::optional(prefix_.front());
}

std::string StreamDecoder::push(TokenId id) {
  const std::string_view bytes = tokenizer_.bytes_of(id);
  std::string out;
  if (skip_special_ && tokenizer_.is_special(id)) return out;
  if (!tokenizer_.decoder_->byte_level()) return state_.push(tokenizer_.spelling_of(id), out), out;
  held_ += bytes;
  const std::size_t whole = complete_utf8_prefix(held_);
  out = replace_invalid_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = replace_invalid_utf8(held_);
  held_.clear();
  state_.finish(out);
  return out;
}

}  // namespace hpcdl::io
