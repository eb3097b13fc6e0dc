#pragma once
// Splits a text into words: the pre_tokenizer section of tokenizer.json.

#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hpcdl/io/tokenizer_regex.h"
#include "hpcdl/io/tokenizer_scan.h"

namespace hpcdl::io {

class PreTokenizer {
 public:
  /// Reads ByteLevel, Split, Digits and Sequences of them; throws Error that names anything else.
  static PreTokenizer from_json(const nlohmann::json& section);

  /// Calls f(word) for each word in turn. The text is well-formed UTF-8 and not empty. If it continues a text
  /// that was cut, no space is added in front.
  template <class F> void for_each_word(std::string_view text, F&& f, bool begins = true) const {
    if (const auto* scan = stages_.size() == 1 ? std::get_if<WordScan>(&stages_[0]) : nullptr) {
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = scan->word_end(text, at);
        f(text.substr(at, end - at));
        at = end;
      }
      return;
    }
    std::deque<std::string> owned;
    for (const std::string_view word : words(text, owned, begins)) f(word);
  }

  /// Whether a text may be cut at find_safe_cut() and its parts split independently.
  bool cuttable() const { return cuttable_; }

 private:
  struct PrefixSpace {};
  struct Digits {
    bool individual;
  };
  struct Pattern {
    Regex regex;
    bool keep_matches, keep_gaps;
  };
  using Stage = std::variant<WordScan, PrefixSpace, Digits, Pattern>;
  using Words = std::vector<std::string_view>;

  void add(const nlohmann::json& section, int depth);
  void add_split(const nlohmann::json& section);
  /// `owned` keeps the words that are not part of `text`.
  Words words(std::string_view text, std::deque<std::string>& owned, bool begins) const;
  static void apply(const WordScan& stage, std::string_view text, Words& out);
  static void apply(const Digits& stage, std::string_view text, Words& out);
  static void apply(const Pattern& stage, std::string_view text, Words& out);

  std::vector<Stage> stages_;
  bool byte_level_ = false, cuttable_ = false;
};

}  // namespace hpcdl::io
