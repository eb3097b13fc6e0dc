#pragma once
// How both backends walk the vocabulary.

#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"

namespace hpcdl {

/// Columns [begin, begin + cols) of the vocabulary.
struct VocabChunk {
  std::int64_t begin, cols;
};

// Inlined always: kernel files carry no instruction set in these names (tests/symbols.test.cpp).

/// f(chunk), in order: `want` columns each, and a rest.
template <class F> [[gnu::always_inline]] inline void for_chunks(std::int64_t want, std::int64_t vocab, F&& f) {
  for (std::int64_t at = 0; at < vocab; at += want) f(VocabChunk{at, vocab - at < want ? vocab - at : want});
}

/// Where row `row` of w begins.
[[gnu::always_inline]] inline const void* rows_from(const View& w, std::int64_t row) {
  return static_cast<const std::byte*>(w.data()) + row * w.row_stride() * dtype_bytes(w.dtype());
}

}  // namespace hpcdl
