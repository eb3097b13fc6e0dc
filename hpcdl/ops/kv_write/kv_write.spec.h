#pragma once

#include <cmath>
#include <cstring>
#include <span>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/kv_write/kv_write.h"

namespace hpcdl::contract {

/// A row of one head in a pool: its elements or codes, and the scale of codes.
struct PoolRow {
  std::int64_t first;  // element of the pool
  std::byte* scale;    // null: the pool has none
};
inline PoolRow pool_row(const View& pool, std::int64_t slot, std::int64_t head) {
  const auto depth = head_dim_of(pool.spec()), size = kPageTokens * pool.shape()[3],
             begin = (slot / kPageTokens * pool[1] + head) * size, token = slot % kPageTokens;
  auto* const scales = static_cast<std::byte*>(const_cast<void*>(pool.data())) + begin + kPageTokens * depth;
  return {begin + token * depth, has_scales(pool.dtype()) ? scales + 4 * token : nullptr};
}

/// Stores a row of one head: rounded, or as codes of x / scale, where the largest |x| has the largest code.
inline void store_row(const Tensor& pool, std::int64_t slot, std::int64_t head, std::span<const double> x) {
  const auto to = pool_row(pool, slot, head);
  double largest = 0;
  for (const double v : x) largest = std::isfinite(v) ? std::max(largest, std::fabs(v)) : INFINITY;
  const double most = pool.dtype() == DType::i8 ? 127 : 448;
  const auto scale = !to.scale || largest == 0 ? 1.0f
                     : std::isinf(largest)     ? NAN
                                           : static_cast<float>(std::max(largest, 0x1p-100)) / static_cast<float>(most);
  const float inverse = 1 / scale;
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    const double v = x[static_cast<std::size_t>(i)];
    if (!to.scale) set_element(pool, to.first + i, v);
    else if (std::isnan(scale)) set_element(pool, to.first + i, 0);
    else if (pool.dtype() == DType::i8)
      set_element(pool, to.first + i, std::nearbyint(v * static_cast<double>(inverse)));
    else set_element(pool, to.first + i, static_cast<double>(static_cast<float>(v) * inverse));
  }
  if (to.scale) std::memcpy(to.scale, &scale, sizeof scale);
}

/// The elements of a pool, (pages, Hkv, 64, D).
inline Values pool_values(const View& pool) {
  const auto depth = head_dim_of(pool.spec());
  Values r{{{pool[0], pool[1], kPageTokens, depth}, DType::f32}, {}};
  for (std::int64_t row = 0; row < pool[0] * pool[1] * kPageTokens; ++row) {
    const auto head = row / kPageTokens % pool[1], page = row / kPageTokens / pool[1];
    const auto from = pool_row(pool, page * kPageTokens + row % kPageTokens, head);
    float scale = 1;
    if (from.scale) std::memcpy(&scale, from.scale, sizeof scale);
    for (std::int64_t i = 0; i < depth; ++i) r.v.push_back(element(pool, from.first + i) * static_cast<double>(scale));
  }
  return r;
}

/// A case's input of codes: element i of a pool of i8, whose scales are 1/64.
inline std::int64_t pool_code(std::int64_t i, std::int64_t depth) {
  const auto at = i % (kPageTokens * (depth + kScaleCodes));
  if (at < kPageTokens * depth) return (37 * i) % 255 - 127;
  return at % 4 == 3 ? 0x3c : at % 4 == 2 ? -128 : 0;
}

/// Tokens that fill P pages, in order.
inline void kv_write_cases(auto& to) {
  to.add_forward("kv_write", "PxGxD", {"k_pool PG(88)D", "v_pool PG(88)D", "k 1(88P)(GD)", "v 1(88P)(GD)"},
                 {{256, 32, 64}, {16, 12, 64}},
                 [](const auto& v) {
                   const auto slots = v.graph.input("slots", {{kPageTokens * v.dim('P')}, DType::i64});
                   return kv_write(v[0], v[1], v[2], v[3], slots), v.none();
                 })
      .integer = [](std::string_view, std::int64_t i, const Shape&) { return i; };
  for (const DType codes : {DType::i8, DType::f8_e4m3})
    to.add_forward(codes == DType::i8 ? "kv_write+i8" : "kv_write+f8", "PxGxD", {"k 1(88P)(GD)", "v 1(88P)(GD)"},
                   {{256, 32, 64}, {16, 12, 64}},
                   [codes](const auto& v) {
                     const Spec pool = pool_of(v.dim('P'), v.dim('G'), v.dim('D'), codes);
                     const auto keys = v.graph.input("k_pool", pool), values = v.graph.input("v_pool", pool);
                     const auto slots = v.graph.input("slots", {{kPageTokens * v.dim('P')}, DType::i64});
                     return kv_write(keys, values, v[0], v[1], slots), v.none();
                   })
        .integer = [](std::string_view name, std::int64_t i, const Shape& s) {
      return name == "slots" ? i : pool_code(i, s[2]);
    };
}

}  // namespace hpcdl::contract
