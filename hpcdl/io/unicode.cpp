#include "hpcdl/io/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

struct Range {
  char32_t low, high;
};
#include "hpcdl/io/unicode_table.inc"
constexpr Range kSpaces[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
                             {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};

constexpr char32_t kEnd = 0x110000;
constexpr int kPageBits = 8;

/// Two levels: 256 code points a page, equal pages shared. About 60 KB.
struct ClassTable {
  std::vector<std::uint16_t> page_of;
  std::vector<CharClass> pages;

  ClassTable() {
    std::vector<CharClass> all(kEnd, CharClass::other);
    const auto mark = [&](const auto& ranges, CharClass c) {
      for (const Range& r : ranges) std::fill(all.begin() + r.low, all.begin() + r.high + 1, c);
    };
    mark(kLetters, CharClass::letter);
    mark(kNumbers, CharClass::number);
    mark(kSpaces, CharClass::space);
    constexpr std::size_t kPage = 1 << kPageBits;
    std::vector<std::string> seen;
    for (std::size_t at = 0; at < kEnd; at += kPage) {
      std::string page(reinterpret_cast<const char*>(&all[at]), kPage);
      auto found = std::find(seen.begin(), seen.end(), page);
      page_of.push_back(static_cast<std::uint16_t>(found - seen.begin()));
      if (found == seen.end()) {
        seen.push_back(page);
        pages.insert(pages.end(), all.begin() + static_cast<std::ptrdiff_t>(at),
                     all.begin() + static_cast<std::ptrdiff_t>(at + kPage));
      }
    }
  }
};

/// The well-formed character, or else the maximal ill-formed part, at the head of a text.
struct Step {
  int length;
  bool valid, truncated;
};

Step step_utf8(const unsigned char* p, std::size_t left) {
  const unsigned lead = p[0];
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte is the only one whose range depends on the lead.
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (int i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (static_cast<std::size_t>(i) >= left) return {i, false, true};
    if (p[i] < low || p[i] > high) return {i, false, false};
  }
  return {length, true, false};
}

bool all_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    if (std::uint64_t eight; text.size() - at >= sizeof eight) {
      std::memcpy(&eight, p + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const Step step = step_utf8(p + at, text.size() - at);
    if (!step.valid) return at;
    at += static_cast<std::size_t>(step.length);
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    const Step step = step_utf8(p + at, text.size() - at);
    out.append(step.valid ? text.substr(at, static_cast<std::size_t>(step.length)) : std::string_view("\xEF\xBF\xBD"));
    at += static_cast<std::size_t>(step.length);
  }
  return out;
}

std::size_t complete_utf8_prefix(std::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const std::size_t at = bytes.size() - back;
    if ((p[at] & 0xC0) == 0x80) continue;
    return step_utf8(p + at, back).truncated ? at : bytes.size();
  }
  return bytes.size();
}

void append_utf8(std::string& out, char32_t point) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
}

CharClass char_class(char32_t point) {
  static const ClassTable table;
  if (point >= kEnd) return CharClass::other;
  return table.pages[std::size_t{table.page_of[point >> kPageBits]} << kPageBits | (point & ((1 << kPageBits) - 1))];
}

bool is_word(char32_t point) {
  // Other_Alphabetic beyond the marks: circled and squared Latin letters.
  if ((point >= 0x24B6 && point <= 0x24E9) || (point >= 0x1F130 && point <= 0x1F149) ||
      (point >= 0x1F150 && point <= 0x1F169) || (point >= 0x1F170 && point <= 0x1F189))
    return true;
  if (point == 0x200C || point == 0x200D) return true;
  if (char_class(point) == CharClass::letter) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

std::string normalize(NormalForm form, std::string_view text) {
  if (all_ascii(text)) return std::string(text);
  const int compat = form == NormalForm::nfkc || form == NormalForm::nfkd ? UTF8PROC_COMPAT : 0;
  const int compose = form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  utf8proc_uint8_t* raw = nullptr;
  const auto n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &raw, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | compose | compat));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  require(n >= 0, "io", "normalising text: {}", utf8proc_errmsg(n));
  return {reinterpret_cast<const char*>(raw), static_cast<std::size_t>(n)};
}

}  // namespace hpcdl::io
