#include "hpcdl/io/tokenizer_normalize.h"

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/tokenizer_json.h"

namespace hpcdl::io {
namespace {

constexpr std::pair<const char*, NormalForm> kForms[] = {
    {"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};

/// The blocks of Chinese characters that BERT puts spaces around.
bool is_chinese(char32_t c) {
  static constexpr std::pair<char32_t, char32_t> kBlocks[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  for (const auto& [low, high] : kBlocks)
    if (c >= low && c <= high) return true;
  return false;
}

/// Appends f(out, character) for each character.
template <class F> std::string each_character(std::string_view text, const F& f) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) f(out, next_code_point(text, at));
  return out;
}

}  // namespace

Normalizer Normalizer::from_json(const Json& section) {
  Normalizer out;
  if (!section.is_null()) out.add(section, 0);
  return out;
}

void Normalizer::add(const Json& section, int depth) {
  const std::string type = text_of(section, "type", "normalizer");
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    stages_.emplace_back(form);
    return;
  }
  if (type == "Sequence") {
    require(depth < 8, "io", "tokenizer.json: normalizer sequences are nested too deeply");
    for (const Json& part : array_of(section, "normalizers", "normalizer")) add(part, depth + 1);
  } else if (type == "Lowercase") {
    stages_.emplace_back(Lowercase{});
  } else if (type == "StripAccents") {
    stages_.emplace_back(StripAccents{});
  } else if (type == "Strip") {
    stages_.emplace_back(Strip{flag_of(section, "strip_left", true), flag_of(section, "strip_right", true)});
  } else if (type == "Prepend") {
    stages_.emplace_back(Prepend{text_of(section, "prepend", "normalizer Prepend")});
  } else if (type == "Replace") {
    stages_.emplace_back(
        Replace{read_pattern(section, "normalizer Replace"), text_of(section, "content", "normalizer Replace")});
  } else if (type == "Precompiled") {
    stages_.emplace_back(PrecompiledMap(text_of(section, "precompiled_charsmap", "normalizer Precompiled")));
  } else if (type == "BertNormalizer") {
    const bool lowercase = flag_of(section, "lowercase", true);
    stages_.emplace_back(Bert{flag_of(section, "clean_text", true), flag_of(section, "handle_chinese_chars", true),
                              flag_of(section, "strip_accents", lowercase), lowercase});
  } else {
    fail("io",
         "tokenizer.json: normalizer '{}' is not supported (NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
         "Prepend, Replace, Precompiled, BertNormalizer, Sequence and null are)",
         type);
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string now(text);
  for (const Stage& stage : stages_) now = std::visit([&](const auto& s) { return run(s, now); }, stage);
  return now;
}

std::string Normalizer::run(const StripAccents&, std::string_view text) {
  return each_character(text, [](std::string& out, char32_t c) {
    if (!is_mark(c)) append_utf8(out, c);
  });
}

std::string Normalizer::run(const Strip& strip, std::string_view text) {
  std::size_t begin = 0, end = text.size();
  for (std::size_t next = 0; strip.left && begin < end; begin = next)
    if (!is_space(next_code_point(text, next))) break;
  while (strip.right && end > begin) {
    std::size_t last = end - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    std::size_t at = last;
    if (!is_space(next_code_point(text, at))) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

std::string Normalizer::run(const Prepend& prepend, std::string_view text) {
  return text.empty() ? std::string() : prepend.text + std::string(text);
}

std::string Normalizer::run(const Replace& replace, std::string_view text) {
  return replace_all(replace.pattern, replace.content, text);
}

std::string Normalizer::run(const Bert& bert, std::string_view text) {
  std::string now(text);
  if (bert.clean)
    now = each_character(now, [](std::string& out, char32_t c) {
      if (!is_control(c)) append_utf8(out, is_space(c) ? ' ' : c);
    });
  if (bert.spaced_chinese)
    now = each_character(now, [](std::string& out, char32_t c) {
      const bool chinese = is_chinese(c);
      if (chinese) out += ' ';
      append_utf8(out, c);
      if (chinese) out += ' ';
    });
  if (bert.strip_accents)
    now = each_character(normalize(NormalForm::nfd, now), [](std::string& out, char32_t c) {
      if (!is_nonspacing_mark(c)) append_utf8(out, c);
    });
  return bert.lowercase ? to_lower(now) : now;
}

Regex read_pattern(const Json& section, std::string_view where) {
  const Json& pattern = member_of(section, "pattern", where);
  require(pattern.is_object() && pattern.size() == 1, "io",
          "tokenizer.json: the pattern of {} is {{\"Regex\": ...}} or {{\"String\": ...}}", where);
  const bool is_regex = pattern.contains("Regex");
  const std::string text = text_of(pattern, is_regex ? "Regex" : "String", where);
  return is_regex ? Regex(text) : Regex::literal(text);
}

std::string replace_all(const Regex& pattern, std::string_view content, std::string_view text) {
  std::string out;
  std::size_t done = 0;
  Regex::Match m{};
  for (std::size_t from = 0; from <= text.size() && pattern.find(text, from, m);) {
    out += text.substr(done, m.begin - done);
    out += content;
    done = from = m.end;
    if (m.end != m.begin) continue;
    if (from == text.size()) break;
    next_code_point(text, from);
  }
  return out.append(text.substr(done));
}

}  // namespace hpcdl::io
