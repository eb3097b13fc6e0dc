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
  /// Reads ByteLevel, Split, Digits, Metaspace, WhitespaceSplit, BertPreTokenizer, Sequences of them, and null; throws
  /// Error that names anything else.
  static PreTokenizer from_json(const nlohmann::json& section);

  /// Calls f(word) for each word in turn. The text is well-formed UTF-8 and not empty. If it continues a text
  /// that was cut, no space is added in front; `at_start` says that it is the very beginning of its document.
  template <class F> void for_each_word(std::string_view text, F&& f, bool begins = true, bool at_start = true) const {
    if (const auto* scan = stages_.size() == 1 ? std::get_if<WordScan>(&stages_[0]) : nullptr) {
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = scan->word_end(text, at);
        f(text.substr(at, end - at));
        at = end;
      }
      return;
    }
    std::deque<std::string> owned;
    for (const std::string_view word : words(text, owned, begins, at_start)) f(word);
  }

  /// Whether a text may be cut at find_safe_cut() and its parts split independently.
  bool cuttable() const { return cuttable_; }
  /// Words are bytes for a vocabulary in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }

 private:
  struct PrefixSpace {};
  struct Digits {
    bool individual;
  };
  enum class Joined { none, to_previous, to_next };  // what becomes of matches that are kept
  struct Pattern {
    Regex regex;
    bool keep_matches, keep_gaps;
    Joined joined = Joined::none;
  };
  enum class Prefix { never, first, always };
  /// Spaces become `replacement`, which is put in front and begins every word.
  struct Metaspace {
    std::string replacement;
    Prefix prefix;
    bool split;
    bool wants_prefix(std::string_view text, bool continues, bool at_start) const;
  };
  struct Whitespace {};
  struct Bert {};
  using Stage = std::variant<WordScan, PrefixSpace, Digits, Pattern, Metaspace, Whitespace, Bert>;
  using Words = std::vector<std::string_view>;

  void add(const nlohmann::json& section, int depth);
  void add_split(const nlohmann::json& section);
  void add_metaspace(const nlohmann::json& section);
  /// `owned` keeps the words that are not part of `text`.
  Words words(std::string_view text, std::deque<std::string>& owned, bool begins, bool at_start) const;
  static void apply(const WordScan& stage, std::string_view text, Words& out);
  static void apply(const Digits& stage, std::string_view text, Words& out);
  static void apply(const Pattern& stage, std::string_view text, Words& out);
  static void apply(const Whitespace& stage, std::string_view text, Words& out);
  static void apply(const Bert& stage, std::string_view text, Words& out);
  static void apply(const Metaspace& stage, std::string_view text, bool continues, bool at_start,
                    std::deque<std::string>& owned, Words& out);

  std::vector<Stage> stages_;
  bool byte_level_ = false, cuttable_ = false;
};

}  // namespace hpcdl::io
