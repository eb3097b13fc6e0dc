#pragma once
// Texts without an end: each keeps the keys and values of its first tokens, the sinks of attention, and of its last ones
// (Xiao et al., "Efficient streaming language models with attention sinks", 2023).
//
// A token sees the pages of the sinks, its own page, and as many before it as hold the window. So both sizes are rounded
// up to pages of 64 tokens, and the kernels of attention know nothing of it. Rotary angles and learned positions are
// those of the tokens' places in the text, which end with the context. A text that has filled it goes on as one that
// consists of the sinks and the window only: their keys are computed again, from there on. So what a token sees is a
// function of its place in the text, and not of how the text was cut into passes.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {

/// Places count the tokens of a text from 0.
struct KvWindow {
  std::int64_t tokens = 0;  // the last ones; 0: a text keeps all
  std::int64_t sink = 0;    // the first ones

  bool any() const { return tokens > 0; }
  std::int64_t sink_pages() const { return pages_for(sink); }
  /// The most pages of a text.
  std::int64_t pages() const { return sink_pages() + pages_for(tokens) + 1; }
  /// The first page after the sinks that the token at `place` sees.
  std::int64_t first_page(std::int64_t place) const {
    return std::max(sink_pages(), place / kPageTokens - pages_for(tokens));
  }
  /// Tokens from `place` on that see the same pages, and so fit into one pass.
  std::int64_t tokens_alike(std::int64_t place) const {
    return (std::max(place / kPageTokens, pages() - 1) + 1) * kPageTokens - place;
  }
  /// Makes a text of more than `context` tokens one that goes on: the sinks, the window before the last place of the
  /// context, and what follows it.
  void shorten(std::vector<std::int32_t>& text, std::int64_t context) const {
    const auto sinks = text.begin() + sink_pages() * kPageTokens;
    while (std::ssize(text) > context) text.erase(sinks, text.begin() + context - pages_for(tokens) * kPageTokens);
  }
  /// Throws UsageError, in the name of `verb`, for sizes after which `context` has no room for a token.
  void check(const char* verb, std::int64_t context) const;
};

}  // namespace hpcdl::infer
