#include "hpcdl/io/precompiled_map.h"

#include <utf8proc.h>

#include <array>
#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

std::string from_base64(std::string_view text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static const auto kValues = [] {
    std::array<int, 256> v;
    v.fill(-1);
    for (std::size_t i = 0; i < kDigits.size(); ++i) v[static_cast<unsigned char>(kDigits[i])] = static_cast<int>(i);
    return v;
  }();
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const int value = kValues[static_cast<unsigned char>(c)];
    require(value >= 0, "io", "tokenizer.json: precompiled_charsmap is not base64");
    bits = (bits << 6 | static_cast<std::uint32_t>(value)) & 0xFFFF;
    if ((count += 6) < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xFF);
  }
  return out;
}

// A unit of the double array of SentencePiece.
std::uint32_t label(std::uint32_t unit) { return unit & 0x800000FFu; }
std::uint32_t offset(std::uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }

}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view base64) {
  const std::string bytes = from_base64(base64);
  std::uint32_t size = 0;
  auto data = std::make_shared<Data>();
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  require(size > 0 && size % 4 == 0 && size <= bytes.size() - sizeof size, "io",
          "tokenizer.json: precompiled_charsmap is cut: its table has {} bytes, but {} are there", size, bytes.size());
  data->units.resize(size / 4);
  std::memcpy(data->units.data(), bytes.data() + sizeof size, size);
  data->texts = bytes.substr(sizeof size + size);
  require(find_invalid_utf8(data->texts) == std::string::npos, "io",
          "tokenizer.json: precompiled_charsmap holds text that is not UTF-8");
  data_ = std::move(data);
}

std::optional<std::string_view> PrecompiledMap::find(std::string_view part) const {
  const auto& units = data_->units;
  const auto unit = [&](std::size_t i) { return i < units.size() ? units[i] : 0; };
  std::size_t at = offset(unit(0));
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    at ^= byte;
    const std::uint32_t u = unit(at);
    if (byte == 0 || label(u) != byte) return std::nullopt;
    at ^= offset(u);
    if (!has_leaf(u)) continue;
    const std::size_t begin = unit(at) & 0x7FFFFFFFu;
    if (begin > data_->texts.size()) return std::nullopt;
    const std::string_view text = std::string_view(data_->texts).substr(begin);
    return (static_cast<unsigned char>(text.empty() ? 0 : text[0]) & 0xC0) == 0x80
               ? std::nullopt
               : std::optional(text.substr(0, text.find('\0')));
  }
  return std::nullopt;
}

std::string PrecompiledMap::apply(std::string_view text) const {
  constexpr std::size_t kShort = 6;  // bytes; a longer cluster is replaced in parts
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    utf8proc_int32_t state = 0;
    auto last = static_cast<utf8proc_int32_t>(next_code_point(text, at));
    for (std::size_t next = at; at < text.size(); at = next) {
      const auto c = static_cast<utf8proc_int32_t>(next_code_point(text, next));
      if (utf8proc_grapheme_break_stateful(last, c, &state)) break;
      last = c;
    }
    const std::string_view cluster = text.substr(begin, at - begin);
    if (const auto whole = cluster.size() < kShort ? find(cluster) : std::nullopt) {
      out += *whole;
      continue;
    }
    for (std::size_t i = 0; i < cluster.size();) {
      const std::size_t from = i;
      next_code_point(cluster, i);
      const std::string_view one = cluster.substr(from, i - from);
      out += find(one).value_or(one);
    }
  }
  return out;
}

}  // namespace hpcdl::io
