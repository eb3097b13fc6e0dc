#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace hpcdl::infer {

/// Finds where the last tokens of a text occurred before, as the dictionary of LZ77 does.
class NgramIndex {
 public:
  struct Match {
    std::int64_t next = 0;    // the place after the earlier occurrence
    std::int64_t length = 0;  // equal tokens before it; 0: there is none
  };
  /// The longest of the latest occurrences of the last tokens of `text`, which continues that of the call before.
  Match find(std::span<const std::int32_t> text);

  /// Tokens of the shortest match.
  static constexpr std::int64_t kShortest = 2;

 private:
  void add_until(std::span<const std::int32_t> text, std::int64_t end);

  std::unordered_map<std::uint64_t, std::int32_t> latest_;  // by the last kShortest tokens: the place after them
  std::vector<std::int32_t> earlier_;                       // by that place: the one before with the same tokens; -1
};

}  // namespace hpcdl::infer
