#include <algorithm>
#include <cstring>

#include "hpcdl/io/jinja/operators.h"
#include "hpcdl/io/jinja/text.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io::jinja {
namespace {

std::size_t before(std::string_view text, std::size_t at) {
  --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

/// Strips the characters for which f is true.
template <class F> std::string_view strip_if(std::string_view text, bool left, bool right, const F& f) {
  std::size_t begin = 0, end = text.size();
  for (std::size_t next = 0; left && begin < end; begin = next)
    if (!f(next_code_point(text, next))) break;
  while (right && end > begin) {
    const std::size_t last = before(text, end);
    std::size_t at = last;
    if (!f(next_code_point(text, at))) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

/// Length of the end of a line at text[at]; 0 if there is none.
std::size_t line_end(std::string_view text, std::size_t at) {
  const char c = text[at];
  if (c == '\r') return text.substr(at, 2) == "\r\n" ? 2 : 1;
  if ((c >= '\n' && c <= '\f') || (c >= '\x1c' && c <= '\x1e')) return 1;
  for (const std::string_view end : {"\u0085", "\u2028", "\u2029"})
    if (text.substr(at, end.size()) == end) return end.size();
  return 0;
}

std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t most, bool right) {
  std::vector<std::string_view> out;
  text = strip_spaces(text, !right, right);
  while (!text.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(out.size()) == most) {
      out.push_back(text);
      break;
    }
    // The longest part without white space at the end that is being split.
    std::size_t at = right ? text.size() : 0;
    while (right ? at > 0 : at < text.size()) {
      std::size_t next = right ? before(text, at) : at;
      const std::size_t begin = next;
      if (is_python_space(next_code_point(text, next))) break;
      at = right ? begin : next;
    }
    if (right) {
      out.push_back(text.substr(at));
      text = strip_spaces(text.substr(0, at), false, true);
    } else {
      out.push_back(text.substr(0, at));
      text = strip_spaces(text.substr(at), true, false);
    }
  }
  if (right) std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

bool is_python_space(char32_t point) { return is_space(point) || (point >= 0x1C && point <= 0x1F); }

std::string_view strip_spaces(std::string_view text, bool left, bool right) {
  return strip_if(text, left, right, is_python_space);
}

std::string_view strip(std::string_view text, const Value& characters, bool left, bool right, Run& run) {
  if (characters.none()) return strip_spaces(text, left, right);
  const std::string& set = need_text(run, characters, "the characters to strip");
  run.steps(static_cast<std::int64_t>(text.size() * (set.size() + 1) / 64));
  return strip_if(text, left, right, [&](char32_t c) {
    for (std::size_t at = 0; at < set.size();)
      if (next_code_point(set, at) == c) return true;
    return false;
  });
}

std::size_t find_in(std::string_view text, std::string_view what, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

std::size_t find_last_in(Run& run, std::string_view text, std::string_view what) {
  run.steps(static_cast<std::int64_t>(text.size() * std::min<std::size_t>(what.size(), 1 << 20) / 64));
  return text.rfind(what);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  return out;
}

std::string capitalized(std::string_view text) {
  std::size_t at = 0;
  if (text.empty()) return {};
  next_code_point(text, at);
  return to_upper(text.substr(0, at)) + to_lower(text.substr(at));
}

std::string titled(std::string_view text, std::string_view ends) {
  std::string out;
  bool begins = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const char32_t c = next_code_point(text, at);
    const std::string_view one = text.substr(here, at - here);
    out += begins ? to_upper(one) : to_lower(one);
    begins = ends.empty() ? char_class(c) != CharClass::letter
                          : is_space(c) || (c < 0x80 && ends.find(static_cast<char>(c)) != std::string_view::npos);
  }
  return out;
}

std::string replaced(Run& run, std::string_view text, std::string_view from, std::string_view to, std::int64_t count) {
  std::string out;
  std::size_t at = 0;
  run.steps(static_cast<std::int64_t>(text.size() / 64));
  if (from.empty()) {
    // Before every character, and at the end.
    for (; count != 0; --count) {
      run.bytes(to.size() + 4);
      out += to;
      if (at == text.size()) return out;
      const std::size_t begin = at;
      next_code_point(text, at);
      out += text.substr(begin, at - begin);
    }
    return out.append(text.substr(at));
  }
  for (; count != 0; --count) {
    const std::size_t found = find_in(text, from, at);
    if (found == std::string_view::npos) break;
    run.bytes(to.size());
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  return out.append(text.substr(at));
}

std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = line_end(text, at);
    if (n > 0) {
      out.push_back(text.substr(begin, at - begin + (keep_ends ? n : 0)));
      begin = at + n;
    }
    at += std::max<std::size_t>(n, 1);
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

std::vector<std::string_view> split(Run& run, std::string_view text, std::string_view separator, std::int64_t most,
                                    bool right) {
  if (separator.empty()) return split_at_spaces(text, most, right);
  std::vector<std::string_view> out;
  while (most < 0 || static_cast<std::int64_t>(out.size()) < most) {
    const std::size_t at = right ? find_last_in(run, text, separator) : find_in(text, separator);
    if (at == std::string_view::npos) break;
    out.push_back(right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  out.push_back(text);
  if (right) std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace hpcdl::io::jinja
