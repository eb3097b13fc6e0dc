#pragma once
// Positions of tokens as an operand of ops that otherwise count them from the beginning of each sequence.

#include "hpcdl/ops/require.h"

namespace hpcdl {

/// One i32 for each of `tokens`.
inline void require_positions_of(std::string_view op, const Spec& positions, std::int64_t tokens) {
  require(positions.dtype == DType::i32 && positions.size() == tokens, op,
          "expected the positions of {} tokens as I32, got {}", tokens, to_string(positions));
}

/// With such an operand ops have no gradient.
template <class V> void require_no_gradient(std::string_view op, const V& x) {
  require(!x.graph().wants_gradient(x), op,
          "there is no gradient with positions as an operand: record the op in a graph for inference");
}

}  // namespace hpcdl
