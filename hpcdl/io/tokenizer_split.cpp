#include "hpcdl/io/tokenizer_split.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/tokenizer_json.h"
#include "hpcdl/io/tokenizer_normalize.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {

PreTokenizer PreTokenizer::from_json(const Json& section) {
  PreTokenizer result;
  if (!section.is_null()) result.add(section, 0);
  // A cut is safe if the last splitting stage is a known scan and the stages before it only split digits.
  std::size_t scans = 0, others = 0;
  for (const Stage& s : result.stages_) {
    scans += std::holds_alternative<WordScan>(s);
    others += !std::holds_alternative<WordScan>(s) && !std::holds_alternative<Digits>(s);
  }
  result.cuttable_ = scans > 0 && others == 0;
  return result;
}

void PreTokenizer::add(const Json& section, int depth) {
  const std::string type = text_of(section, "type", "pre_tokenizer");
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
  } else if (type == "Metaspace") {
    add_metaspace(section);
  } else if (type == "WhitespaceSplit") {
    stages_.emplace_back(Whitespace{});
  } else if (type == "BertPreTokenizer") {
    stages_.emplace_back(Bert{});
  } else {
    fail("io",
         "tokenizer.json: pre_tokenizer '{}' is not supported (ByteLevel, Split, Digits, Metaspace, WhitespaceSplit, "
         "BertPreTokenizer, Sequence and null are)",
         type);
  }
}

void PreTokenizer::add_metaspace(const Json& section) {
  static constexpr std::pair<std::string_view, Prefix> kSchemes[] = {
      {"always", Prefix::always}, {"first", Prefix::first}, {"never", Prefix::never}};
  const std::string scheme =
      section.contains("prepend_scheme") ? text_of(section, "prepend_scheme", "pre_tokenizer Metaspace") : "always";
  const auto* found =
      std::find_if(std::begin(kSchemes), std::end(kSchemes), [&](const auto& s) { return s.first == scheme; });
  require(found != std::end(kSchemes), "io",
          "tokenizer.json: prepend_scheme '{}' of Metaspace is not supported (always, first and never are)", scheme);
  const bool prefix = flag_of(section, "add_prefix_space", true);
  Metaspace stage{text_of(section, "replacement", "pre_tokenizer Metaspace"), prefix ? found->second : Prefix::never,
                  flag_of(section, "split", true)};
  std::size_t at = 0;
  if (!stage.replacement.empty()) next_code_point(stage.replacement, at);
  require(at > 0 && at == stage.replacement.size(), "io",
          "tokenizer.json: the replacement of Metaspace is '{}'; expected one character", stage.replacement);
  stages_.emplace_back(std::move(stage));
}

void PreTokenizer::add_split(const Json& section) {
  const Json& pattern = member_of(section, "pattern", "pre_tokenizer Split");
  const bool is_regex = pattern.is_object() && pattern.contains("Regex");
  const std::string behavior = text_of(section, "behavior", "pre_tokenizer Split");
  const bool invert = flag_of(section, "invert", false), removed = behavior == "Removed";
  const Joined joined = behavior == "MergedWithPrevious" ? Joined::to_previous
                        : behavior == "MergedWithNext"   ? Joined::to_next
                                                         : Joined::none;
  require(removed || joined != Joined::none || behavior == "Isolated", "io",
          "tokenizer.json: Split behavior '{}' is not supported (Isolated, Removed, MergedWithPrevious and "
          "MergedWithNext are)",
          behavior);
  require(joined == Joined::none || !invert, "io", "tokenizer.json: Split behavior '{}' with invert is not supported",
          behavior);
  // The known scans leave no gaps, so removing the text between their words changes nothing.
  if (const auto scan = is_regex ? WordScan::of(text_of(pattern, "Regex", "pre_tokenizer Split")) : std::nullopt;
      scan && joined == Joined::none && (!removed || invert)) {
    stages_.emplace_back(*scan);
    return;
  }
  stages_.emplace_back(
      Pattern{read_pattern(section, "pre_tokenizer Split"), !removed || invert, !removed || !invert, joined});
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
  bool after_match = false;
  const std::size_t first = out.size();
  const auto add = [&](std::size_t begin, std::size_t end, bool match) {
    if (begin == end) return;
    // One match joins its neighbour; of several in a row, the one beside it.
    const bool to_previous = stage.joined == Joined::to_previous && match && !after_match && out.size() > first;
    const bool to_next = stage.joined == Joined::to_next && !match && after_match;
    if (to_previous || to_next) out.back() = std::string_view(out.back().data(), out.back().size() + (end - begin));
    else out.push_back(text.substr(begin, end - begin));
    after_match = match;
  };
  Regex::Match m{};
  for (std::size_t from = 0; from <= text.size() && stage.regex.find(text, from, m);) {
    if (stage.keep_gaps) add(done, m.begin, false);
    if (stage.keep_matches) add(m.begin, m.end, true);
    done = from = m.end;
    if (m.end != m.begin) continue;
    // After an empty match the search continues one character further.
    if (from == text.size()) break;
    next_code_point(text, from);
  }
  if (stage.keep_gaps) add(done, text.size(), false);
}

void PreTokenizer::apply(const Whitespace&, std::string_view text, Words& out) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    if (!is_space(next_code_point(text, at))) continue;
    if (here > begin) out.push_back(text.substr(begin, here - begin));
    begin = at;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
}

void PreTokenizer::apply(const Bert&, std::string_view text, Words& out) {
  Words words;
  apply(Whitespace{}, text, words);
  for (const std::string_view word : words) {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t here = at;
      if (!is_punctuation(next_code_point(word, at))) continue;
      if (here > begin) out.push_back(word.substr(begin, here - begin));
      out.push_back(word.substr(here, at - here));
      begin = at;
    }
    if (begin < word.size()) out.push_back(word.substr(begin));
  }
}

bool PreTokenizer::Metaspace::wants_prefix(std::string_view text, bool continues, bool at_start) const {
  return !continues && !text.starts_with(replacement) &&
         (prefix == Prefix::always || (prefix == Prefix::first && at_start));
}

void PreTokenizer::apply(const Metaspace& stage, std::string_view text, bool continues, bool at_start,
                         std::deque<std::string>& owned, Words& out) {
  std::string& now = owned.emplace_back();
  for (const char c : text) c == ' ' ? now += stage.replacement : now += c;
  if (stage.wants_prefix(now, continues, at_start)) now.insert(0, stage.replacement);
  std::string_view rest = now;
  while (stage.split && !rest.empty()) {
    const std::size_t next =
        rest.find(stage.replacement, rest.starts_with(stage.replacement) ? stage.replacement.size() : 0);
    if (next == std::string_view::npos) break;
    out.push_back(rest.substr(0, next));
    rest.remove_prefix(next);
  }
  if (!rest.empty()) out.push_back(rest);
}

PreTokenizer::Words PreTokenizer::words(std::string_view text, std::deque<std::string>& owned, bool begins,
                                        bool at_start) const {
  Words now{text}, next;
  for (const Stage& stage : stages_) {
    next.clear();
    for (const std::string_view word : now) {
      const bool first = word.data() == text.data();
      if (const auto* metaspace = std::get_if<Metaspace>(&stage)) {
        apply(*metaspace, word, first && !begins, first && at_start, owned, next);
        continue;
      }
      std::visit(
          [&](const auto& s) {
            using S = std::decay_t<decltype(s)>;
            if constexpr (std::is_same_v<S, PrefixSpace>)
              next.push_back(
                  (!begins && first) || word.starts_with(' ') ? word : owned.emplace_back(fmt::format(" {}", word)));
            else if constexpr (!std::is_same_v<S, Metaspace>) apply(s, word, next);
          },
          stage);
    }
    now.swap(next);
  }
  return now;
}

}  // namespace hpcdl::io
