#pragma once

#include <string>
#include <string_view>

namespace hpcdl::io {

/// A pattern as Oniguruma reads it (its own syntax, which the `tokenizers` library takes) in the words of PCRE2, with
/// the same meaning under PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE. Throws Error that names what has no such words.
/// What is malformed may pass: PCRE2 refuses it.
std::string rewrite_for_pcre2(std::string_view pattern);

}  // namespace hpcdl::io
