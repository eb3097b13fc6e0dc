#pragma once
// Any text is a grammar or an Error; under a grammar, a text that was written token by token can be completed, and
// masks agree with single tokens.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/grammar/grammar.h"
#include "hpcdl/infer/grammar/test_vocabulary.h"

namespace hpcdl::infer {

/// The grammar is made of all but the last bytes; those choose the tokens.
template <class F> void fuzz_grammar(const std::uint8_t* data, std::size_t size, F&& make) {
  static const auto vocabulary = std::make_shared<const Vocabulary>(test_tokens());
  constexpr std::array<std::int32_t, 1> kEos = {0};
  const std::size_t tail = std::min<std::size_t>(size / 2, 12);
  const std::string_view text(reinterpret_cast<const char*>(data), size - tail);
  try {
    const std::shared_ptr<const Grammar> grammar = make(text);
    const auto constraint = constrain(grammar, vocabulary, kEos);
    std::vector<std::uint32_t> mask(static_cast<std::size_t>(vocabulary->size() + 31) / 32);
    std::string written;
    for (std::size_t i = size - tail; i < size; ++i) {
      constraint->mask(mask);
      std::vector<std::int32_t> ids;
      for (std::int32_t id = 0; id < vocabulary->size(); ++id)
        if (mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) ids.push_back(id);
      if (ids.empty()) throw std::logic_error("a text that cannot be completed: " + written);
      const std::int32_t id = ids[(data[i] * std::size_t{7}) % ids.size()];
      constraint->accept(id);
      if (id == 0) {
        if (!grammar->accepts(written)) throw std::logic_error("a text that may end is not accepted: " + written);
        break;
      }
      written += vocabulary->bytes_of(id);
    }
  } catch (const Error&) {}
}

}  // namespace hpcdl::infer
