#pragma once
// Pages of keys and values: a pool (pages, Hkv, 64, D) holds those of one layer.

#include <cstdint>

#include "hpcdl/ops/require.h"

namespace hpcdl {

inline constexpr std::int64_t kPageTokens = 64;

/// The number of pages that hold `tokens`.
constexpr std::int64_t pages_for(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

inline void require_pool(std::string_view op, const Spec& pool) {
  require_float(op, pool, "the pool");
  require(pool.shape.rank() == 4 && pool[0] >= 1 && pool[2] == kPageTokens, op,
          "the pool must be (pages, heads, {}, D), got {}", kPageTokens, to_string(pool));
}

}  // namespace hpcdl
