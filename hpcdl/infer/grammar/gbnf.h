#pragma once
// Grammars in GBNF, the notation of llama.cpp (its grammars/README.md).

#include <memory>
#include <string_view>

#include "hpcdl/infer/grammar/rules.h"

namespace hpcdl::infer::grammar {

std::unique_ptr<const Rules> rules_of_gbnf(std::string_view text);

}  // namespace hpcdl::infer::grammar
