// Hostile grammars in GBNF.
#include "hpcdl/infer/grammar/fuzz_grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hpcdl::infer::fuzz_grammar(data, size, [](std::string_view text) { return hpcdl::infer::Grammar::gbnf(text); });
  return 0;
}
