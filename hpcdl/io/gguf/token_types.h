#pragma once

#include <cstdint>

namespace hpcdl::io {

/// The numbers in tokenizer.ggml.token_type.
enum class TokenType : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };

}  // namespace hpcdl::io
