#include "hpcdl/io/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

struct CodeRange {
  char32_t low, high;
};
#include "hpcdl/io/unicode_table.inc"
constexpr CodeRange kSpaces[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                 {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                 {0x205F, 0x205F}, {0x3000, 0x3000}};

template <std::size_t N> bool within(const CodeRange (&ranges)[N], char32_t point) {
  const auto* next =
      std::upper_bound(ranges, ranges + N, point, [](char32_t p, const CodeRange& r) { return p < r.low; });
  return next != ranges && point <= (next - 1)->high;
}

/// Capital letters newer than utf8proc: Unicode 16 and 17.
char32_t lower_of_new(char32_t c) {
  if (c == 0x1C89 || c == 0xA7CC || c == 0xA7CE || c == 0xA7D2 || c == 0xA7D4 || c == 0xA7DA) return c + 1;
  if (c == 0xA7CB) return 0x264;
  if (c == 0xA7DC) return 0x19B;
  if (c >= 0x10D50 && c <= 0x10D65) return c + 0x20;
  return c >= 0x16EA0 && c <= 0x16EB8 ? c + 0x1B : c;
}

constexpr char32_t kEnd = 0x110000;
constexpr int kPageBits = 8;

/// Two levels: pages of 256 code points, equal pages shared. About 60 KB.
struct ClassTable {
  std::vector<std::uint16_t> page_of;
  std::vector<CharClass> pages;

  ClassTable() {
    std::vector<CharClass> all(kEnd, CharClass::other);
    const auto mark = [&](const auto& ranges, CharClass c) {
      for (const CodeRange& r : ranges) std::fill(all.begin() + r.low, all.begin() + r.high + 1, c);
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

/// The well-formed character, or otherwise the maximal ill-formed part, at the beginning of a text.
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
  // Other_Alphabetic without the marks: circled and squared Latin letters.
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

bool is_control(char32_t point) { return within(kControls, point); }
bool is_punctuation(char32_t point) { return within(kPunctuation, point); }
bool is_nonspacing_mark(char32_t point) { return within(kNonspacing, point); }
bool is_mark(char32_t point) { return within(kMarks, point); }

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c < 0x80) out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    else if (c == 0x130) out += "i\u0307";
    else append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(lower_of_new(c)))));
  }
  return out;
}

std::string to_upper(std::string_view text) {
  static constexpr std::string_view kLigatures[] = {"FF", "FI", "FL", "FFI", "FFL", "ST", "ST"};  // from U+FB00
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == 0xDF) out += "SS";
    else if (c >= 0xFB00 && c <= 0xFB06) out += kLigatures[c - 0xFB00];
    else append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
  return out;
}

namespace {

/// Decomposes each character; marks are not ordered yet.
std::vector<utf8proc_int32_t> decomposed(std::string_view text, int options) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(next_code_point(text, at));
    if (c < 0x80) {
      out.push_back(c);
      continue;
    }
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    int boundary = 0;
    const auto n = utf8proc_decompose_char(c, parts, 32, static_cast<utf8proc_option_t>(options), &boundary);
    require(n >= 0 && n <= 32, "io", "normalising text: {}", n < 0 ? utf8proc_errmsg(n) : "a long decomposition");
    out.insert(out.end(), parts, parts + n);
  }
  return out;
}

/// Canonical order: runs of marks are sorted by class, with a stable order within a class. utf8proc uses insertion
/// sort, which takes too long for a long run.
void sort_marks(std::vector<utf8proc_int32_t>& points) {
  struct Mark {
    utf8proc_propval_t order;
    utf8proc_int32_t point;
  };
  std::vector<Mark> run;
  const auto flush = [&](std::size_t end) {
    if (run.size() > 1) {
      std::stable_sort(run.begin(), run.end(), [](const Mark& a, const Mark& b) { return a.order < b.order; });
      for (std::size_t i = 0; i < run.size(); ++i) points[end - run.size() + i] = run[i].point;
    }
    run.clear();
  };
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto order = points[i] < 0x80 ? utf8proc_propval_t{0} : utf8proc_get_property(points[i])->combining_class;
    if (order == 0) flush(i);
    else run.push_back({order, points[i]});
  }
  flush(points.size());
}

/// Composes in place, from `begin` to `end`; returns the new end.
std::size_t compose(std::vector<utf8proc_int32_t>& points, std::size_t begin, std::size_t end) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto n = utf8proc_normalize_utf32(points.data() + begin, static_cast<utf8proc_ssize_t>(end - begin), kOptions);
  require(n >= 0, "io", "normalising text: {}", utf8proc_errmsg(n));
  return begin + static_cast<std::size_t>(n);
}

}  // namespace

std::string normalize(NormalForm form, std::string_view text) {
  if (all_ascii(text)) return std::string(text);
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const int compat = form == NormalForm::nfkc || form == NormalForm::nfkd ? UTF8PROC_COMPAT : 0;
  auto points = decomposed(text, UTF8PROC_STABLE | compat | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE));
  sort_marks(points);
  std::string out;
  out.reserve(text.size());
  // U+11A7 stands before the first final consonant of Hangul and composes with nothing, but utf8proc treats it as a
  // syllable without one, and drops it: so the parts before and after it are composed separately.
  constexpr utf8proc_int32_t kNoFinal = 0x11A7;
  for (std::size_t begin = 0; begin < points.size();) {
    const auto next = std::find(points.begin() + static_cast<std::ptrdiff_t>(begin) + 1, points.end(), kNoFinal);
    const auto end = static_cast<std::size_t>(next - points.begin());
    const auto last = composes ? compose(points, begin, end) : end;
    for (std::size_t i = begin; i < last; ++i) append_utf8(out, static_cast<char32_t>(points[i]));
    begin = end;
  }
  return out;
}

}  // namespace hpcdl::io
