#pragma once
// The choice for each shape. Looked up at every launch, so without text, file or lock.

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::lab::tune {

/// The largest size of v's bucket. Sizes of one bucket share a choice: up to 16 each size has its own bucket, above
/// that those with the same next number of four leading bits (at most an eighth apart).
constexpr std::int64_t bucket(std::int64_t v) {
  int shift = 0;
  while ((v >> shift) >= 16) ++shift;
  return ((v + (std::int64_t{1} << shift) - 1) >> shift) << shift;
}

/// An op and the properties of a call that determine the candidates: sizes in buckets, types, parts of the epilogue.
struct Key {
  std::string op;
  std::vector<std::int64_t> fields;
  auto operator<=>(const Key&) const = default;
};

std::uint64_t hash_of(std::string_view op, std::span<const std::int64_t> fields);

/// Replaces all choices of this process: never while queued work must repeat its bits.
void adopt(const std::map<Key, int>& choices);
/// The chosen candidate, or -1.
int chosen(std::string_view op, std::span<const std::int64_t> fields);

}  // namespace hpcdl::lab::tune
