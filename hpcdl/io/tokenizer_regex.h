#pragma once
// Regular expressions of tokenizer.json, run by PCRE2 with its JIT compiler. The `tokenizers` library uses
// Oniguruma; syntax with another meaning is rewritten, or refused by name.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace hpcdl::io {

class Regex {
 public:
  /// Throws Error for a malformed pattern and for syntax whose meaning differs between the two engines.
  explicit Regex(std::string_view pattern);
  /// A pattern that matches `text` itself.
  static Regex literal(std::string_view text);

  struct Match {
    std::size_t begin, end;
  };
  /// The first match at or after `from` in well-formed UTF-8; false if there is none. Safe from many threads.
  bool find(std::string_view text, std::size_t from, Match& match) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace hpcdl::io
