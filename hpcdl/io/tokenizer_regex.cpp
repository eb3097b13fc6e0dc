#include "hpcdl/io/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>

#include "hpcdl/core/error.h"
#include "hpcdl/io/regex_rewrite.h"

namespace hpcdl::io {
namespace {

constexpr std::size_t kMaxPattern = 16384;

std::string pcre_message(int code) {
  PCRE2_UCHAR text[160] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  Scratch() {
    if (context) pcre2_set_match_limit(context, 2'000'000);
  }
  Scratch(const Scratch&) = delete;
  ~Scratch() {
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

}  // namespace

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern) {
  require(pattern.size() <= kMaxPattern, "io",
          "tokenizer.json: a pattern of {} bytes is too long; at most {} are allowed", pattern.size(), kMaxPattern);
  const std::string text = rewrite_for_pcre2(pattern);
  auto code = std::make_shared<Code>();
  code->pattern = pattern;
  int error = 0;
  PCRE2_SIZE offset = 0;
  // ^ and $ of Oniguruma match at every line.
  constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), kOptions, &error, &offset, nullptr);
  require(code->code != nullptr, "io", "tokenizer.json: cannot read the pattern '{}': {}", pattern.substr(0, 200),
          pcre_message(error));
  // Without the JIT compiler (on a hardened kernel) matching still works, but more slowly.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  code_ = std::move(code);
}

Regex Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view(R"(\^$.[]|()?*+{}-&#)").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return Regex(pattern);
}

bool Regex::find(std::string_view text, std::size_t from, Match& match) const {
  thread_local const Scratch scratch;
  require(scratch.data && scratch.context, "io", "no memory to match a pattern");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : "");
  int rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
    rc = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch.data,
                     scratch.context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  require(rc >= 0, "io", "tokenizer.json: matching the pattern '{}' failed on this text: {}",
          code_->pattern.substr(0, 200), pcre_message(rc));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data);
  require(ends[0] <= ends[1] && ends[0] >= from, "io", "tokenizer.json: the pattern '{}' matches backwards",
          code_->pattern.substr(0, 200));
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace hpcdl::io
