#include "hpcdl/io/tokenizer_added.h"

#include <algorithm>

#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

std::size_t previous_character(std::string_view text, std::size_t at) {
  --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool word_before(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  at = previous_character(text, at);
  return is_word(next_code_point(text, at));
}

bool word_behind(std::string_view text, std::size_t at) {
  return at < text.size() && is_word(next_code_point(text, at));
}

std::size_t skip_spaces_back(std::string_view text, std::size_t at) {
  while (at > 0) {
    const std::size_t before = previous_character(text, at);
    std::size_t next = before;
    if (!is_space(next_code_point(text, next))) break;
    at = before;
  }
  return at;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  for (std::size_t next = at; next < text.size(); at = next)
    if (!is_space(next_code_point(text, next))) break;
  return at;
}

unsigned char first_byte(const AddedToken& t) { return static_cast<unsigned char>(t.content[0]); }

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return first_byte(a) != first_byte(b) ? first_byte(a) < first_byte(b) : a.content.size() > b.content.size();
  });
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    auto& [begin, end] = by_first_[first_byte(tokens_[i])];
    if (begin == end) {
      begin = i;
      firsts_ += tokens_[i].content[0];
    }
    end = i + 1;
  }
}

const AddedToken* AddedTokens::match(std::string_view text, std::size_t at) const {
  const auto [begin, end] = by_first_[static_cast<unsigned char>(text[at])];
  for (std::uint32_t i = begin; i < end; ++i)
    if (text.substr(at, tokens_[i].content.size()) == tokens_[i].content) return &tokens_[i];
  return nullptr;
}

bool AddedTokens::over(std::string_view text, std::size_t at) const {
  for (const AddedToken& t : tokens_) {
    const std::size_t size = t.content.size();
    for (std::size_t begin = at - std::min(at, size); begin < at; ++begin)
      if ((begin + size != at || t.rstrip) && t.content.starts_with(text.substr(begin, size))) return true;
  }
  return false;
}

void AddedTokens::split(std::string_view text, std::vector<TextPiece>& out) const {
  std::size_t done = 0;
  const auto emit_text = [&](std::size_t end) {
    if (end > done) out.push_back({text.substr(done, end - done), -1});
  };
  // One first byte, as "<" of "<|endoftext|>", is the usual case: find() on a character is memchr.
  const auto next_candidate = [&](std::size_t from) {
    if (firsts_.size() == 1) return text.find(firsts_[0], from);
    const auto starts = [&](unsigned char c) { return by_first_[c].first != by_first_[c].second; };
    while (from < text.size() && !starts(static_cast<unsigned char>(text[from]))) ++from;
    return from;
  };
  for (std::size_t at = tokens_.empty() ? std::string_view::npos : next_candidate(0); at < text.size();) {
    const AddedToken* token = match(text, at);
    if (!token) {
      at = next_candidate(at + 1);
      continue;
    }
    const std::size_t end = at + token->content.size();
    if (!token->single_word || (!word_before(text, at) && !word_behind(text, end))) {
      emit_text(token->lstrip ? std::max(skip_spaces_back(text, at), done) : at);
      out.push_back({{}, token->id});
      done = token->rstrip ? skip_spaces(text, end) : end;
    }
    at = next_candidate(end);
  }
  emit_text(text.size());
}

}  // namespace hpcdl::io
