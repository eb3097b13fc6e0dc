#include "cli/demo_text.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <string_view>
#include <unordered_set>

#include "hpcdl/core/error.h"
#include "hpcdl/data/byte_stream.h"
#include "hpcdl/rng.h"

namespace hpcdl::cli {

namespace {

namespace fs = std::filesystem;

enum class Form { plain, pod, rst, python };

struct Place {
  const char* folder;
  std::vector<std::string_view> endings;
  Form form;
  double share;  // of the wanted text at most
};

const std::vector<Place>& places() {
  static const std::vector<Place> list = {
      {"/usr/share/common-licenses", {""}, Form::plain, 0.15},
      {"/usr/share/perl", {".pod", ".pm"}, Form::pod, 0.5},
      {"/usr/share/perl5", {".pod", ".pm"}, Form::pod, 0.3},
      {"/usr/share/cmake-3.25/Help", {".rst"}, Form::rst, 0.5},
      {"/usr/share/cmake-3.28/Help", {".rst"}, Form::rst, 0.5},
      {"/usr/share/cmake-3.31/Help", {".rst"}, Form::rst, 0.5},
      {"/usr/lib/python3", {".py"}, Form::python, 0.3},
      {"/usr/lib/python3.11", {".py"}, Form::python, 0.4},
      {"/usr/lib/python3.12", {".py"}, Form::python, 0.4},
      {"/usr/lib/python3.13", {".py"}, Form::python, 0.4},
      {"/usr/share/doc",
       {"README", "README.gz", "README.Debian", "README.md", "README.md.gz", "NEWS.gz", "NEWS", ".txt", ".txt.gz",
        "FAQ", "FAQ.gz"},
       Form::plain,
       0.4},
      {"/usr/share/doc", {"copyright"}, Form::plain, 0.3},
      {"/usr/share/doc", {"changelog.Debian.gz", "changelog.gz"}, Form::plain, 0.2},
  };
  return list;
}

bool wanted(const fs::path& file, const Place& place) {
  const auto name = file.filename().string();
  return std::any_of(place.endings.begin(), place.endings.end(), [&](std::string_view e) { return name.ends_with(e); });
}

std::vector<fs::path> files_of(const Place& place) {
  std::vector<fs::path> files;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(place.folder, fs::directory_options::skip_permission_denied, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error))
    if (it->is_regular_file(error) && !it->is_symlink(error) && wanted(it->path(), place)) files.push_back(it->path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_some(const fs::path& file) {
  constexpr std::size_t kLimit = std::size_t{2} << 20;
  std::string text;
  try {
    const auto stream = data::open_stream(file);
    for (std::size_t before = 1; before != text.size() && text.size() < kLimit;) {
      before = text.size();
      stream->read(text, kLimit - text.size());
    }
  } catch (const Error&) {
    text.clear();  // unreadable or damaged: skipped, because other files have enough text
  }
  return text;
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

/// Removes the markup of words in POD and reStructuredText.
std::string without_markup(std::string_view line, Form form) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (form == Form::pod && i + 1 < line.size() && line[i + 1] == '<' &&
        std::string_view("BCIFLEXS").find(line[i]) != std::string_view::npos) {
      ++i;
      continue;
    }
    if (form == Form::pod && line[i] == '>') continue;
    if (form == Form::rst && (line[i] == '`' || line[i] == '*')) continue;
    if (form == Form::rst && line[i] == ':' && i + 1 < line.size() &&
        std::isalpha(static_cast<unsigned char>(line[i + 1]))) {
      const auto end = line.find(":`", i + 1);
      if (end != std::string_view::npos && end - i < 20) {
        i = end + 1;
        continue;
      }
    }
    out += line[i];
  }
  return out;
}

/// Calls take(paragraph) with lines joined. Only what the form marks as text: POD sections, docstrings.
template <class F> void for_paragraphs(const std::string& text, Form form, F&& take) {
  std::string paragraph;
  bool inside = form == Form::plain || form == Form::rst;
  std::size_t at = 0;
  const auto flush = [&] {
    if (!paragraph.empty()) take(paragraph);
    paragraph.clear();
  };
  while (at < text.size()) {
    const auto end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    const auto body = trimmed(line);
    if (form == Form::pod && line.starts_with('=')) {
      flush();
      inside = !line.starts_with("=cut");
    } else if (form == Form::python && line.find("\"\"\"") != std::string_view::npos) {
      flush();
      if (line.find("\"\"\"") == line.rfind("\"\"\"")) inside = !inside;
    } else if (body.empty() || (form == Form::pod && line.starts_with(' '))) {  // indented POD is code
      flush();
    } else if (inside) {
      if (!paragraph.empty()) paragraph += ' ';
      paragraph += without_markup(body, form);
    }
  }
  flush();
}

/// Two paragraphs are the same if their letters are.
std::size_t fingerprint(const std::string& paragraph) {
  std::string letters;
  for (const char c : paragraph)
    if (std::isalpha(static_cast<unsigned char>(c)))
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::hash<std::string>{}(letters);
}

}  // namespace

bool is_prose(const std::string& p) {
  if (p.size() < 120 || p.size() > 4000) return false;
  std::size_t letters = 0, spaces = 0, odd = 0, capitals = 0;
  for (const char c : p) {
    const auto u = static_cast<unsigned char>(c);
    if (u >= 0x7f || (u < 32 && c != '\t')) return false;
    if (std::isalpha(u)) ++letters;
    else if (c == ' ') ++spaces;
    else if (std::string_view("{}[]<>|\\=_$@#%^~/*+").find(c) != std::string_view::npos) ++odd;
    if (std::isupper(u)) ++capitals;
  }
  const double n = static_cast<double>(p.size());
  const auto share = [n](std::size_t k) { return static_cast<double>(k) / n; };
  if (share(letters) < 0.72 || share(spaces) < 0.12 || share(spaces) > 0.24 || share(odd) > 0.02 ||
      share(capitals) > 0.12)
    return false;
  if (!std::isupper(static_cast<unsigned char>(p.front()))) return false;
  const std::string_view tail(".!?:;)\"");
  if (tail.find(p.back()) == std::string_view::npos) return false;
  int common = 0;
  for (const char* word : {" the ", " of ", " to ", " is ", " and ", " a ", " in ", " that ", " for "})
    if (p.find(word) != std::string::npos) ++common;
  return common >= 3;
}

std::size_t begin_of_part(std::string_view text, std::size_t from, std::size_t until) {
  for (const std::string_view end : {"\n\n", "\n", " "})
    if (const auto at = text.find(end, from); at != text.npos && at + end.size() < until) return at + end.size();
  while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
  return from;
}

std::size_t first_words(std::string_view text, int count, std::size_t most) {
  std::size_t end = 0;
  for (int i = 0; i < count && end < text.size(); ++i) {
    const auto begin = text.find_first_not_of(" \n", end);
    const auto next = begin == text.npos ? text.size() : std::min(text.find_first_of(" \n", begin), text.size());
    if (next > most) return end > 0 ? end : begin_of_part(text, std::min(most, text.size()), 0);
    end = next;
  }
  return end;
}

std::string whole_words(const std::string& text) {
  const auto in_a_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || (c & 0x80); };
  if (text.empty() || !in_a_word(text.back())) return text;
  const auto blank = text.find_last_of(" \n");
  return blank == text.npos ? text : text.substr(0, blank) + " ...";
}

FoundText find_text(std::int64_t bytes) {
  FoundText found;
  std::unordered_set<std::size_t> seen;
  std::vector<std::string> units;  // one per file
  std::int64_t total = 0;
  for (const auto& place : places()) {
    const auto limit =
        std::min<std::int64_t>(bytes - total, static_cast<std::int64_t>(place.share * static_cast<double>(bytes)));
    std::int64_t taken = 0;
    for (const auto& file : files_of(place)) {
      if (taken >= limit) break;
      std::int64_t here = 0;
      std::string unit;
      for_paragraphs(read_some(file), place.form, [&](const std::string& p) {
        if (taken + here >= limit || !is_prose(p) || !seen.insert(fingerprint(p)).second) return;
        unit += p + "\n\n";
        here += std::ssize(p) + 2;
      });
      taken += here;
      if (here > 0) units.push_back(std::move(unit));
    }
    total += taken;
    if (taken > 0 && std::find(found.places.begin(), found.places.end(), place.folder) == found.places.end())
      found.places.emplace_back(place.folder);
  }
  // Shuffled, so that the end, which evaluation takes, is of the same kind as the rest.
  found.files = std::ssize(units);
  const Rng rng{1, 1};
  for (std::size_t i = units.size(); i > 1; --i) std::swap(units[i - 1], units[rng.below(i, i)]);
  for (const auto& unit : units) found.text += unit;
  return found;
}

}  // namespace hpcdl::cli
