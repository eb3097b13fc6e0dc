#include "hpcdl/io/tokenizer_split.h"

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/tokenizer_json.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {

PreTokenizer PreTokenizer::from_json(const Json& section) {
  PreTokenizer result;
  result.add(section, 0);
  require(result.byte_level_, "io",
          "tokenizer.json: its pre_tokenizer has no ByteLevel; only byte-level BPE is supported");
  // A cut is safe if the last splitting stage is a known scan and the stages before it only split digits.
  std::size_t scans = 0, others = 0;
  for (const Stage& s : result.stages_) {
    scans += std::holds_alternative<WordScan>(s);
    others += std::holds_alternative<PrefixSpace>(s) || std::holds_alternative<Pattern>(s);
  }
  result.cuttable_ = scans > 0 && others == 0;
  return result;
}

void PreTokenizer::add(const Json& section, int depth) {
  const std::string type = section.is_null() ? "null" : text_of(section, "type", "pre_tokenizer");
  require(!byte_level_, "io", "tokenizer.json: pre_tokenizer '{}' comes after ByteLevel, which is not supported", type);
  if (type == "Sequence") {
    require(depth < 8, "io", "tokenizer.json: pre_tokenizer sequences are nested too deeply");
    for (const Json& part : array_of(section, "pretokenizers", "pre_tokenizer")) add(part, depth + 1);
  } else if (type == "ByteLevel") {
    if (flag_of(section, "add_prefix_space", true)) stages_.emplace_back(PrefixSpace{});
    if (flag_of(section, "use_regex", true)) stages_.emplace_back(*WordScan::of(kGpt2Pattern));
    byte_level_ = true;
  } else if (type == "Digits") {
    stages_.emplace_back(Digits{flag_of(section, "individual_digits", false)});
  } else if (type == "Split") {
    add_split(section);
  } else {
    fail("io", "tokenizer.json: pre_tokenizer '{}' is not supported (ByteLevel, Split, Digits and Sequence are)", type);
  }
}

void PreTokenizer::add_split(const Json& section) {
  const Json& pattern = member_of(section, "pattern", "pre_tokenizer Split");
  require(pattern.is_object() && pattern.size() == 1, "io",
          "tokenizer.json: a Split pattern is {{\"Regex\": ...}} or {{\"String\": ...}}");
  const bool is_regex = pattern.contains("Regex");
  const std::string text = text_of(pattern, is_regex ? "Regex" : "String", "pre_tokenizer Split");
  const std::string behavior = text_of(section, "behavior", "pre_tokenizer Split");
  const bool invert = flag_of(section, "invert", false), removed = behavior == "Removed";
  require(removed || behavior == "Isolated", "io",
          "tokenizer.json: Split behavior '{}' is not supported (Isolated and Removed are)", behavior);
  // The known scans leave no gaps, so removing the text between their words changes nothing.
  if (const auto scan = is_regex ? WordScan::of(text) : std::nullopt; scan && (!removed || invert)) {
    stages_.emplace_back(*scan);
    return;
  }
  stages_.emplace_back(Pattern{is_regex ? Regex(text) : Regex::literal(text), !removed || invert, !removed || !invert});
}

void PreTokenizer::apply(const WordScan& stage, std::string_view text, Words& out) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = stage.word_end(text, at);
    out.push_back(text.substr(at, end - at));
    at = end;
  }
}

void PreTokenizer::apply(const Digits& stage, std::string_view text, Words& out) {
  std::size_t begin = 0;
  const auto flush = [&](std::size_t end) {
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end;
  };
  bool was_number = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const bool number = char_class(next_code_point(text, at)) == CharClass::number;
    if (number != was_number || (number && stage.individual)) flush(here);
    was_number = number;
  }
  flush(text.size());
}

void PreTokenizer::apply(const Pattern& stage, std::string_view text, Words& out) {
  std::size_t done = 0;
  Regex::Match m{};
  for (std::size_t from = 0; from <= text.size() && stage.regex.find(text, from, m);) {
    if (stage.keep_gaps && m.begin > done) out.push_back(text.substr(done, m.begin - done));
    if (stage.keep_matches && m.end > m.begin) out.push_back(text.substr(m.begin, m.end - m.begin));
    done = from = m.end;
    if (m.end != m.begin) continue;
    // After an empty match the search continues one character further.
    if (from == text.size()) break;
    next_code_point(text, from);
  }
  if (stage.keep_gaps && done < text.size()) out.push_back(text.substr(done));
}

PreTokenizer::Words PreTokenizer::words(std::string_view text, std::deque<std::string>& owned, bool begins) const {
  Words now{text}, next;
  for (const Stage& stage : stages_) {
    next.clear();
    for (const std::string_view word : now) {
      std::visit(
          [&](const auto& s) {
            if constexpr (!std::is_same_v<std::decay_t<decltype(s)>, PrefixSpace>) apply(s, word, next);
            else
              next.push_back((!begins && word.data() == text.data()) || word.starts_with(' ')
                                 ? word
                                 : owned.emplace_back(fmt::format(" {}", word)));
          },
          stage);
    }
    now.swap(next);
  }
  return now;
}

}  // namespace hpcdl::io
