#include <algorithm>
#include <charconv>

#include "cli/verb.h"
#include "hpcdl/data/tokenize.h"

namespace hpcdl::cli {
namespace {

std::string_view without_blanks_around(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const auto first = text.find_first_not_of(kBlanks);
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

std::string quoted(const std::string& word) {
  if (!word.empty() &&
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%") ==
          std::string::npos)
    return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::vector<std::int32_t> encode_text(const io::Tokenizer& tokenizer, const std::vector<std::string>& paths, Pool& pool,
                                      std::int64_t limit) {
  std::vector<std::filesystem::path> list(paths.begin(), paths.end());
  std::vector<std::int32_t> ids;
  data::encode_files(data::resolve_text_files(list), {}, tokenizer, pool,
                     [&](std::span<const data::TokenId> part) { ids.insert(ids.end(), part.begin(), part.end()); });
  if (!ids.empty() && tokenizer.end_of_text() == ids.front())
    ids.erase(ids.begin());  // separates documents; there is none before the first
  if (limit > 0 && std::ssize(ids) > limit) ids.resize(static_cast<std::size_t>(limit));
  return ids;
}

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at <= text.size();) {
    const auto comma = std::min(text.find(',', at), text.size());
    const auto word = without_blanks_around(std::string_view(text).substr(at, comma - at));
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0)
      fail_usage("tokens", "expected token ids separated by commas, found \"{}\"", word);
    ids.push_back(id);
    at = comma + 1;
  }
  return ids;
}

}  // namespace hpcdl::cli
