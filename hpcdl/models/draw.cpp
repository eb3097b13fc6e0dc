#include "hpcdl/models/draw.h"

#include "hpcdl/simd/isa.h"

#include <algorithm>

namespace hpcdl::models {
namespace {

constexpr std::int64_t kGrain = 1 << 14;

float normal(const Rng& rng, std::uint64_t index, float scale) { return static_cast<float>(rng.normal(index)) * scale; }

}  // namespace

void draw_normal(Pool& pool, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale) {
  parallel_for(pool, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::int32_t hard[kDrawChunk];
    for (std::int64_t at = begin; at < end; at += kDrawChunk) {
      const std::int64_t count = std::min(kDrawChunk, end - at);
      const std::uint64_t from = first + static_cast<std::uint64_t>(at);
      const std::int64_t unknown =
          simd::with_isa([&](auto isa) { return draw_normal_chunk(isa, values + at, count, rng, from, scale, hard); });
      for (std::int64_t i = 0; i < unknown; ++i)
        values[at + hard[i]] = normal(rng, from + static_cast<std::uint64_t>(hard[i]), scale);
      for (std::int64_t i = 0; unknown < 0 && i < count; ++i)
        values[at + i] = normal(rng, from + static_cast<std::uint64_t>(i), scale);
    }
  });
}

void draw_uniform(Pool& pool, float* values, std::int64_t n, const Rng& rng, std::uint64_t first, float scale) {
  parallel_for(pool, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      values[i] = (2 * rng.uniform(first + static_cast<std::uint64_t>(i)) - 1) * scale;
  });
}

}  // namespace hpcdl::models
