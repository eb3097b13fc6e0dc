#pragma once
// Sets of Unicode code points, and their UTF-8 bytes.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace hpcdl::infer::grammar {

/// Never holds surrogates: they have no UTF-8.
class CharSet {
 public:
  struct Range {
    char32_t first, last;
    bool operator==(const Range&) const = default;
  };
  static constexpr char32_t kLast = 0x10FFFF;

  CharSet() = default;
  static CharSet of(char32_t first, char32_t last);
  static CharSet all() { return of(0, kLast); }
  /// A general category of Unicode: "L", "Lu", "Nd", ... None for another name.
  static std::optional<CharSet> category(std::string_view name);

  CharSet& add(const CharSet& other);
  CharSet operator~() const;
  CharSet operator&(const CharSet& other) const;
  /// In order, and apart from each other.
  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool operator==(const CharSet&) const = default;

 private:
  void normalize();
  std::vector<Range> ranges_;
};

struct ByteRange {
  std::uint8_t first, last;
};
/// Characters whose UTF-8 is one byte of each range.
struct Utf8Range {
  int size;
  std::array<ByteRange, 4> bytes;
};
std::vector<Utf8Range> utf8_ranges(const CharSet& set);

}  // namespace hpcdl::infer::grammar
