#pragma once
// Tokens of a template, with the white space around tags already removed as trim_blocks, lstrip_blocks and "-" say.

#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io::jinja {

enum class TokenKind { text, print_begin, print_end, tag_begin, tag_end, name, string, integer, real, sign, end };

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  // of a string: its value
  int line = 0;
};

/// Throws Error "NAME, line N: ..." for what is not a token.
std::vector<Token> tokenize(std::string_view source, std::string_view name);

}  // namespace hpcdl::io::jinja
