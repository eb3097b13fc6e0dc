#pragma once
// Changes a text before it is split: the normalizer section of tokenizer.json.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hpcdl/io/precompiled_map.h"
#include "hpcdl/io/tokenizer_regex.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {

class Normalizer {
 public:
  /// Reads NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, Precompiled, BertNormalizer and
  /// Sequences of them; throws Error that names anything else.
  static Normalizer from_json(const nlohmann::json& section);

  bool empty() const { return stages_.empty(); }
  /// The text is well-formed UTF-8.
  std::string apply(std::string_view text) const;

 private:
  struct Lowercase {};
  struct StripAccents {};
  struct Strip {
    bool left, right;
  };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Bert {
    bool clean, spaced_chinese, strip_accents, lowercase;
  };
  using Stage = std::variant<NormalForm, Lowercase, StripAccents, Strip, Prepend, Replace, PrecompiledMap, Bert>;

  void add(const nlohmann::json& section, int depth);
  static std::string run(NormalForm form, std::string_view text) { return normalize(form, text); }
  static std::string run(const Lowercase&, std::string_view text) { return to_lower(text); }
  static std::string run(const StripAccents&, std::string_view text);
  static std::string run(const Strip& strip, std::string_view text);
  static std::string run(const Prepend& prepend, std::string_view text);
  static std::string run(const Replace& replace, std::string_view text);
  static std::string run(const PrecompiledMap& map, std::string_view text) { return map.apply(text); }
  static std::string run(const Bert& bert, std::string_view text);

  std::vector<Stage> stages_;
};

/// The pattern of a section: {"String": ...} or {"Regex": ...}.
Regex read_pattern(const nlohmann::json& section, std::string_view where);
/// Every match of the pattern becomes `content`.
std::string replace_all(const Regex& pattern, std::string_view content, std::string_view text);

}  // namespace hpcdl::io
