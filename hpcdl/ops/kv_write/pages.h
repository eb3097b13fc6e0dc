#pragma once
// Pages of keys and values: a pool (pages, Hkv, 64, D) holds those of one layer.
//
// A pool of 8-bit codes (i8 or f8_e4m3) is (pages, Hkv, 64, D + 4): each head of a page has its 64 rows of D codes, then
// the 64 scales of these rows, f32. An element is its code times the scale of its row (kv_write/codes.h).

#include <cstdint>
#include <type_traits>

#include "hpcdl/ops/require.h"

namespace hpcdl {

inline constexpr std::int64_t kPageTokens = 64;

/// The number of pages that hold `tokens`.
constexpr std::int64_t pages_for(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

/// Whether a pool of this type has scales.
[[gnu::always_inline]] constexpr bool has_scales(DType d) { return d == DType::i8 || d == DType::f8_e4m3; }
template <class T> inline constexpr bool kHasScales = std::is_same_v<T, std::int8_t> || std::is_same_v<T, f8_e4m3>;

/// Bytes of codes that a row's scale takes.
inline constexpr std::int64_t kScaleCodes = 4;

/// D of a pool.
[[gnu::always_inline]] inline std::int64_t head_dim_of(const Spec& pool) {
  return pool[3] - (has_scales(pool.dtype) ? kScaleCodes : 0);
}
/// A pool of pages for `heads` heads of D elements.
inline Spec pool_of(std::int64_t pages, std::int64_t heads, std::int64_t head_dim, DType dtype) {
  return {{pages, heads, kPageTokens, head_dim + (has_scales(dtype) ? kScaleCodes : 0)}, dtype};
}

inline void require_pool(std::string_view op, const Spec& pool) {
  require(is_float(pool.dtype) || has_scales(pool.dtype), op, "the pool must be F32, BF16, F16, I8 or F8_E4M3, got {}",
          to_string(pool));
  require(pool.shape.rank() == 4 && pool[0] >= 1 && pool[2] == kPageTokens && head_dim_of(pool) >= 1, op,
          "the pool must be (pages, heads, {}, D), or with scales (pages, heads, {}, D + {}), got {}", kPageTokens,
          kPageTokens, kScaleCodes, to_string(pool));
}

/// f.template operator()<T>() with the type of a pool's elements or codes.
template <class F> decltype(auto) visit_pool_dtype(DType d, F&& f) {
  if (d == DType::i8) return f.template operator()<std::int8_t>();
  if (d == DType::f8_e4m3) return f.template operator()<f8_e4m3>();
  return visit_dtype(d, f);
}

}  // namespace hpcdl
