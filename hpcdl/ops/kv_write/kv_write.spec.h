#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/kv_write/kv_write.h"

namespace hpcdl::contract {

/// Tokens that fill P pages, in order.
inline void kv_write_cases(auto& to) {
  to.add_forward("kv_write", "PxGxD", {"k_pool PG(88)D", "v_pool PG(88)D", "k 1(88P)(GD)", "v 1(88P)(GD)"},
                 {{256, 32, 64}, {16, 12, 64}},
                 [](const auto& v) {
                   const auto slots = v.graph.input("slots", {{kPageTokens * v.dim('P')}, DType::i64});
                   return kv_write(v[0], v[1], v[2], v[3], slots), v.none();
                 })
      .integer = [](std::string_view, std::int64_t i, const Shape&) { return i; };
}

}  // namespace hpcdl::contract
