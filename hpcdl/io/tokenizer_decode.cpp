#include "hpcdl/io/tokenizer_decode.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/io/tokenizer_json.h"
#include "hpcdl/io/tokenizer_normalize.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

/// The byte of "<0x41>".
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc{} && end == token.data() + 5 ? std::optional(static_cast<char>(value)) : std::nullopt;
}

std::string with_replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// Spaces before punctuation and in contractions of English go.
std::string cleaned(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kAll[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kAll) text = with_replaced(std::move(text), from, to);
  return text;
}

std::string one_character(const Json& section, const char* key, std::string_view where) {
  const std::string text = text_of(section, key, where);
  std::size_t at = 0;
  if (!text.empty()) next_code_point(text, at);
  require(!text.empty() && at == text.size(), "io", "tokenizer.json: '{}' of {} is not one character", key, where);
  return text;
}

std::size_t count_of(const Json& section, const char* key) {
  const Json& value = member_of(section, key, "decoder Strip");
  require(value.is_number_unsigned() && value.get<std::uint64_t>() < 1000, "io",
          "tokenizer.json: '{}' of decoder Strip is not a number below 1000", key);
  return value.get<std::size_t>();
}

}  // namespace

Decoder Decoder::from_json(const Json& section) {
  Decoder out;
  if (section.is_null()) out.stages_.emplace_back(Join{});
  else out.add(section, 0);
  return out;
}

void Decoder::add(const Json& section, int depth) {
  const std::string type = text_of(section, "type", "decoder");
  if (type == "Sequence") {
    require(depth < 8, "io", "tokenizer.json: decoder sequences are nested too deeply");
    for (const Json& part : array_of(section, "decoders", "decoder")) add(part, depth + 1);
    return;
  }
  require(!fused_ || type == "Strip" || type == "Fuse", "io",
          "tokenizer.json: decoder '{}' after Fuse is not supported", type);
  require(!byte_level_ || type == "ByteLevel", "io", "tokenizer.json: decoder '{}' after ByteLevel is not supported",
          type);
  if (type == "ByteLevel") {
    require(stages_.empty(), "io", "tokenizer.json: decoder ByteLevel after others is not supported");
    byte_level_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Replace") {
    stages_.emplace_back(
        Replace{read_pattern(section, "decoder Replace"), text_of(section, "content", "decoder Replace")});
  } else if (type == "ByteFallback") {
    stages_.emplace_back(ByteFallback{});
  } else if (type == "Strip") {
    require(count_of(section, "stop") == 0, "io", "tokenizer.json: decoder Strip at the end ('stop') is not supported");
    stages_.emplace_back(Strip{one_character(section, "content", "decoder Strip"), count_of(section, "start"), fused_});
  } else if (type == "Metaspace") {
    const Json scheme = section.value("prepend_scheme", Json("always"));
    stages_.emplace_back(Metaspace{one_character(section, "replacement", "decoder Metaspace"),
                                   scheme != "never" && flag_of(section, "add_prefix_space", true)});
  } else if (type == "WordPiece") {
    stages_.emplace_back(WordPiece{text_of(section, "prefix", "decoder WordPiece"), flag_of(section, "cleanup", true)});
  } else {
    fail("io",
         "tokenizer.json: decoder '{}' is not supported (ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, "
         "WordPiece and Sequence are)",
         type);
  }
}

std::string Decoder::bytes_of(std::string_view spelling) const {
  DecodeState state(*this);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    state.progress_[i].seen = 1;
    if (const auto* strip = std::get_if<Strip>(&stages_[i])) state.progress_[i].done = strip->once;
    // A run of bytes is text only as a whole.
    if (!std::holds_alternative<ByteFallback>(stages_[i])) continue;
    if (const auto byte = byte_of(spelling)) return std::string(1, *byte);
  }
  std::string out;
  state.push(spelling, out);
  state.finish(out);
  return out;
}

void DecodeState::flush(std::size_t stage, std::string& out) {
  const std::string bytes = std::exchange(progress_[stage].bytes, {});
  if (bytes.empty()) return;
  if (find_invalid_utf8(bytes) == std::string::npos) return step(stage + 1, bytes, out);
  // As in the library, one bad byte spoils the whole run.
  for (std::size_t i = 0; i < bytes.size(); ++i) step(stage + 1, "\uFFFD", out);
}

void DecodeState::finish(std::string& out) {
  for (std::size_t i = 0; i < progress_.size(); ++i) flush(i, out);
}

void DecodeState::step(std::size_t stage, std::string token, std::string& out) {
  if (stage == progress_.size()) {
    out += token;
    return;
  }
  Progress& now = progress_[stage];
  const Decoder::Stage& s = decoder_.stages_[stage];
  if (const auto* replace = std::get_if<Decoder::Replace>(&s)) {
    token = replace_all(replace->pattern, replace->content, token);
  } else if (std::holds_alternative<Decoder::ByteFallback>(s)) {
    if (const auto byte = byte_of(token)) {
      now.bytes += *byte;
      return;
    }
    flush(stage, out);
  } else if (const auto* strip = std::get_if<Decoder::Strip>(&s)) {
    if (!strip->once) now = {};
    std::string_view rest = token;
    while (!now.done && now.seen < strip->start && rest.starts_with(strip->content)) {
      rest.remove_prefix(strip->content.size());
      ++now.seen;
    }
    now.done = now.done || !rest.empty() || now.seen == strip->start;
    token = std::string(rest);
  } else if (const auto* meta = std::get_if<Decoder::Metaspace>(&s)) {
    token = with_replaced(std::move(token), meta->replacement, now.seen++ == 0 && meta->drop_first ? "" : " ");
  } else if (const auto* piece = std::get_if<Decoder::WordPiece>(&s)) {
    if (now.seen++ > 0) token = token.starts_with(piece->prefix) ? token.substr(piece->prefix.size()) : " " + token;
    if (piece->cleanup) token = cleaned(std::move(token));
  } else if (now.seen++ > 0) {
    token = " " + token;  // Join
  }
  step(stage + 1, std::move(token), out);
}

}  // namespace hpcdl::io
