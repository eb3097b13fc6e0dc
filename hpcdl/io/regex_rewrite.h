#pragma once

#include <string>
#include <string_view>

namespace hpcdl::io {

/// Rewrites a pattern of Oniguruma (with its own syntax, as used by the `tokenizers` library) for PCRE2, with
/// the same meaning under PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE. Throws Error that names syntax without an
/// equivalent. Malformed patterns may pass: PCRE2 refuses them.
std::string rewrite_for_pcre2(std::string_view pattern);

}  // namespace hpcdl::io
