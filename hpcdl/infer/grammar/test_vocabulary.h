#pragma once
// A vocabulary and a random model for tests of grammars.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/infer/grammar/vocabulary.h"
#include "hpcdl/infer/token_constraint.h"

namespace hpcdl::infer {

/// Id 0 ends a text and has no bytes; then all bytes, and pieces of JSON as real vocabularies have them, some of them
/// twice.
inline std::vector<std::string> test_tokens() {
  std::vector<std::string> tokens(1);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* text : {"{\"",
                           "\":",
                           "\": ",
                           ",\"",
                           "\", \"",
                           "\":\"",
                           "\"}",
                           "\"]",
                           "}}",
                           "]]",
                           "[[",
                           "[]",
                           "{}",
                           "},",
                           "],",
                           ": [",
                           ", ",
                           "\n  ",
                           "\n    ",
                           "\n\t",
                           " \"",
                           "  ",
                           "true",
                           "false",
                           "null",
                           "123",
                           "00",
                           "99",
                           "-1",
                           ".5",
                           "1e",
                           "name",
                           "kind",
                           "value",
                           "children",
                           "tags",
                           "é",
                           "日",
                           "\xE6\x97",
                           "\xA5\x9F",
                           "\xF0\x9F\x98\x80",
                           "\\n",
                           "\\\"",
                           "\\u",
                           "\\u00",
                           "ab",
                           "abc",
                           "foo-",
                           "bar-",
                           "-12",
                           "2024",
                           "T12:",
                           "abababababababababababab",
                           "\"}]}",
                           "aa\"",
                           "x\":1",
                           "{\"a\":[",
                           "123"})
    tokens.push_back(text);
  return tokens;
}

/// What a model writes that takes one of the allowed tokens at random, and after some time one that closes. None if the
/// text does not end.
inline std::optional<std::string> random_text(TokenConstraint& constraint, const Vocabulary& vocabulary,
                                              std::mt19937& random) {
  std::string text;
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(vocabulary.size() + 31) / 32);
  const auto close_after = random() % 40;
  for (unsigned step = 0; step < 20000; ++step) {
    constraint.mask(mask);
    std::vector<std::int32_t> ids;
    for (std::int32_t id = 0; id < vocabulary.size(); ++id)
      if (mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) ids.push_back(id);
    if (ids.empty()) return std::nullopt;
    std::int32_t chosen = ids[random() % ids.size()];
    if (step >= close_after) {
      const auto find = [&](std::string_view bytes) {
        return std::find_if(ids.begin(), ids.end(), [&](auto id) { return vocabulary.bytes_of(id) == bytes; });
      };
      const bool opens = vocabulary.bytes_of(chosen).find_first_of("{[") != std::string_view::npos;
      if (opens || random() % 2)
        for (const std::string_view best : {"", "\"", "}", "]", ",", "null", "0", "x", "a"})
          if (const auto it = find(best); it != ids.end()) {
            chosen = *it;
            break;
          }
    }
    constraint.accept(chosen);
    if (vocabulary.bytes_of(chosen).empty()) return text;
    text += vocabulary.bytes_of(chosen);
  }
  return std::nullopt;
}

}  // namespace hpcdl::infer
