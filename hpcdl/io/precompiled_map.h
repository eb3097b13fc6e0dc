#pragma once
// The character map of SentencePiece, which tokenizer.json holds in base64: texts and what replaces them, found by a
// double array (Aoe 1989).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io {

/// Immutable and cheap to copy.
class PrecompiledMap {
 public:
  /// Throws Error for what is not such a map.
  explicit PrecompiledMap(std::string_view base64);
  /// Replaces what the map knows: short grapheme clusters as a whole, and otherwise character by character.
  std::string apply(std::string_view text) const;

 private:
  /// What replaces the shortest known beginning of `part`.
  std::optional<std::string_view> find(std::string_view part) const;

  struct Data {
    std::vector<std::uint32_t> units;
    std::string texts;  // each ends with a NUL
  };
  std::shared_ptr<const Data> data_;
};

}  // namespace hpcdl::io
