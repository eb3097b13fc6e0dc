#include "hpcdl/infer/grammar/char_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "hpcdl/io/unicode.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

/// The sets of all categories, by their names of one and of two letters.
std::map<std::string, CharSet, std::less<>> all_categories() {
  std::map<std::string, CharSet, std::less<>> sets;
  char32_t begin = 0;
  std::string name = utf8proc_category_string(0);
  for (char32_t c = 1; c <= CharSet::kLast + 1; ++c) {
    const std::string next = c > CharSet::kLast ? "" : utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
    if (next == name) continue;
    sets[name].add(CharSet::of(begin, c - 1));
    begin = c;
    name = next;
  }
  std::map<std::string, CharSet, std::less<>> groups;
  for (const auto& [two, set] : sets) groups[two.substr(0, 1)].add(set);
  sets.merge(groups);
  return sets;
}

/// Splits a range until the encodings of its characters are one range of each byte.
void add_utf8(char32_t first, char32_t last, std::vector<Utf8Range>& out) {
  constexpr std::array<char32_t, 4> kLastOfSize = {0x7F, 0x7FF, 0xFFFF, CharSet::kLast};
  for (const char32_t end : kLastOfSize)
    if (first <= end && end < last) return add_utf8(first, end, out), add_utf8(end + 1, last, out);
  if (first > 0x7F)
    for (int i = 1; i <= 3; ++i) {
      const char32_t low = (char32_t{1} << 6 * i) - 1;  // the bits of the last i bytes
      if ((first & ~low) == (last & ~low)) break;
      if (first & low) return add_utf8(first, first | low, out), add_utf8((first | low) + 1, last, out);
      if ((last & low) != low) return add_utf8(first, (last & ~low) - 1, out), add_utf8(last & ~low, last, out);
    }
  std::string a, b;
  io::append_utf8(a, first);
  io::append_utf8(b, last);
  Utf8Range range{.size = static_cast<int>(a.size()), .bytes = {}};
  for (std::size_t i = 0; i < a.size(); ++i)
    range.bytes[i] = {static_cast<std::uint8_t>(a[i]), static_cast<std::uint8_t>(b[i])};
  out.push_back(range);
}

}  // namespace

CharSet CharSet::of(char32_t first, char32_t last) {
  CharSet set;
  if (first < kFirstSurrogate) set.ranges_.push_back({first, std::min<char32_t>(last, kFirstSurrogate - 1)});
  if (last > kLastSurrogate) set.ranges_.push_back({std::max<char32_t>(first, kLastSurrogate + 1), last});
  if (last < first) set.ranges_.clear();
  return set;
}

std::optional<CharSet> CharSet::category(std::string_view name) {
  static const auto sets = all_categories();
  const auto it = sets.find(name);
  return it == sets.end() ? std::nullopt : std::optional(it->second);
}

CharSet& CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalize();
  return *this;
}

void CharSet::normalize() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> merged;
  for (const Range& r : ranges_)
    if (!merged.empty() && r.first <= merged.back().last + 1) merged.back().last = std::max(merged.back().last, r.last);
    else merged.push_back(r);
  ranges_ = std::move(merged);
}

CharSet CharSet::operator~() const {
  CharSet out;
  char32_t next = 0;
  const auto gap = [&](char32_t first, char32_t end) {
    const CharSet between = first < end ? of(first, end - 1) : CharSet();
    out.ranges_.insert(out.ranges_.end(), between.ranges_.begin(), between.ranges_.end());
  };
  for (const Range& r : ranges_) {
    gap(next, r.first);
    next = r.last + 1;
  }
  gap(next, kLast + 1);
  return out;
}

CharSet CharSet::operator&(const CharSet& other) const {
  CharSet out;
  std::size_t i = 0, k = 0;
  while (i < ranges_.size() && k < other.ranges_.size()) {
    const Range &a = ranges_[i], &b = other.ranges_[k];
    const char32_t first = std::max(a.first, b.first), last = std::min(a.last, b.last);
    if (first <= last) out.ranges_.push_back({first, last});
    a.last < b.last ? ++i : ++k;
  }
  return out;
}

std::vector<Utf8Range> utf8_ranges(const CharSet& set) {
  std::vector<Utf8Range> out;
  for (const auto& r : set.ranges()) add_utf8(r.first, r.last, out);
  return out;
}

}  // namespace hpcdl::infer::grammar
