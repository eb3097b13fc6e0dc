#include "hpcdl/quant/int4_fit.h"

#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

using quant::Int4Target;
using quant::Int4TileStats;

constexpr int kMaxGroup = 128;
// Below, a step would be subnormal; above, a difference of two weights would overflow.
constexpr float kTiny = 0x1p-118f, kHuge = 0x1p125f;
constexpr float kLargestBf16 = 0x1.fep127f;

/// Rounds to the next bf16 away from zero, so that the scale still covers its group.
bf16 round_up(float v) {
  const auto u = __builtin_bit_cast(std::uint32_t, v);
  bf16 out;
  out.bits = static_cast<std::uint16_t>((u + 0xffffu) >> 16);
  return out;
}

/// w ~ scale * (q - 8) + offset.
struct Grid {
  bf16 scale, offset;
};

/// The group divided by its largest magnitude, so that squares neither overflow nor underflow.
struct Group {
  const float* u;
  int size;
  float unit, low, high;    // unit: largest magnitude; low, high: of the weights themselves
  const float* importance;  // null: all weights are alike
};

/// Sums over a group for one grid, of what each weight counts: that, its squared error, and what a least-squares fit of
/// the grid needs. p = q - 8.
struct Sums {
  float error = 0, count = 0, p = 0, pp = 0, u = 0, up = 0;
};

template <class Isa, bool weighted> Sums evaluate(const Group& g, Grid grid) {
  using V = simd::Vec<Isa>;
  const float step = static_cast<float>(grid.scale) / g.unit, offset = static_cast<float>(grid.offset) / g.unit;
  if (!(step > 1e-9f || step < -1e-9f)) return {.error = __builtin_inff()};
  const V inverse(1.0f / step), s(step), o(offset), low(-8.0f), high(7.0f);
  V error(0.0f), count(0.0f), sum_p(0.0f), pp(0.0f), sum_u(0.0f), up(0.0f);
  for (int i = 0; i < g.size; i += V::N) {
    const V u = V::load(g.u + i), centred = u - o;
    const V p = min(max(round(centred * inverse), low), high);
    const V d = centred - p * s;
    const V weight = weighted ? V::load(g.importance + i) : V(1.0f);
    const V of_p = weighted ? p * weight : p, of_u = weighted ? u * weight : u;
    error = fma(d, weighted ? d * weight : d, error);
    count = count + weight;
    sum_p = sum_p + of_p;
    pp = fma(of_p, p, pp);
    sum_u = sum_u + of_u;
    up = fma(of_u, p, up);
  }
  return {reduce_add(error), reduce_add(count), reduce_add(sum_p), reduce_add(pp), reduce_add(sum_u), reduce_add(up)};
}

/// The grid that covers the whole group, every weight within half a step: q - 8 in [-8.5, 7.5].
Grid covering(const Group& g, bool symmetric) {
  const float low = g.low < 0 ? -g.low : 0, high = g.high > 0 ? g.high : 0;
  if (symmetric || g.unit > kHuge) {
    // The side of the larger magnitude gets -8, by a negative scale if it is the positive one.
    const bool flip = symmetric && high > low;
    const float big = flip ? high : low, small = flip ? low : high;
    float step = big / 8 > small / 7.5f ? big / 8 : small / 7.5f;
    if (step > kLargestBf16 / 8) step = kLargestBf16 / 8;
    bf16 scale = round_up(step);
    if (flip) scale.bits |= 0x8000;
    return {scale, bf16(0.0f)};
  }
  const float range = static_cast<float>(round_up((g.high - g.low) / 15));
  const bf16 offset(g.low + 8 * range);
  const float above = (g.high - static_cast<float>(offset)) / 7.5f, below = (static_cast<float>(offset) - g.low) / 8.5f;
  const float cover = above > below ? above : below, step = cover > range ? cover : range;
  return {round_up(step > kTiny / 8 ? step : 0.0f), offset};
}

/// Least squares for the values that `s` was computed with.
Grid refit(const Group& g, const Sums& s, Grid old, bool symmetric) {
  const float n = s.count;
  if (symmetric) return {s.pp > 0 ? bf16(s.up / s.pp * g.unit) : old.scale, old.offset};
  const float spread = n * s.pp - s.p * s.p;
  if (!(spread > 0)) return old;
  const float scale = (n * s.up - s.u * s.p) / spread, offset = (s.u - scale * s.p) / n;
  return {bf16(scale * g.unit), bf16(offset * g.unit)};
}

template <class Isa, bool weighted> Grid search(const Group& g, Grid start, bool symmetric) {
  Sums sums = evaluate<Isa, weighted>(g, start);
  Grid best = start;
  const auto consider = [&](Grid grid) {
    const Sums s = evaluate<Isa, weighted>(g, grid);
    if (!(s.error < sums.error)) return;
    sums = s;
    best = grid;
  };
  const float scale = static_cast<float>(start.scale);
  const float middle = g.low + (g.high - g.low) * 0.5f;
  // Shrinking by more than a third was never best on normal, Laplace or trained weights.
  for (int i = -3; i <= 12; ++i) {
    const bf16 s(scale * (1.0f - 0.025f * static_cast<float>(i)));
    consider({s, symmetric ? start.offset : bf16(middle + 0.5f * static_cast<float>(s))});
  }
  for (int i = 0; i < 3; ++i) consider(refit(g, sums, best, symmetric));
  return best;
}

template <class T>
void load_group(float (*buf)[kMaxGroup], const View& w, bool transposed, std::int64_t row, int rows, std::int64_t k,
                int size) {
  const T* p = w.ptr<T>();
  if (!transposed) {
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < size; ++i) buf[r][i] = static_cast<float>(p[(row + r) * w.row_stride() + k + i]);
    return;
  }
  for (int i = 0; i < size; ++i)
    for (int r = 0; r < rows; ++r) buf[r][i] = static_cast<float>(p[(k + i) * w.row_stride() + row + r]);
}

/// Fits one group, writes its values to `q` and adds its errors. False if a weight is not finite.
template <class Isa>
bool quantize_group(const float* w, int size, bool symmetric, bool search_scale, const float* importance, Grid& grid,
                    std::uint8_t* q, Int4TileStats& stats) {
  using V = simd::Vec<Isa>;
  V low(__builtin_inff()), high(-__builtin_inff()), poison(0.0f);
  for (int i = 0; i < size; i += V::N) {
    const V v = V::load(w + i);
    low = min(v, low);
    high = max(v, high);
    poison = fma(v, V(0.0f), poison);
  }
  if (!(reduce_add(poison) == 0)) return false;
  alignas(64) float u[kMaxGroup];
  Group g{u, size, 0, reduce_min(low), reduce_max(high), importance};
  g.unit = g.high > -g.low ? g.high : -g.low;
  grid = {bf16(0.0f), bf16(0.0f)};
  if (g.unit >= kTiny) {
    const V inverse(1.0f / g.unit);
    for (int i = 0; i < size; i += V::N) (V::load(w + i) * inverse).store(u + i);
    grid = covering(g, symmetric);
    if (search_scale && g.unit < kHuge)
      grid = importance ? search<Isa, true>(g, grid, symmetric) : search<Isa, false>(g, grid, symmetric);
  }
  const float step = static_cast<float>(grid.scale), offset = static_cast<float>(grid.offset);
  const float unit = g.unit > 0 ? g.unit : 1;
  const V s(step), o(offset), inverse(step != 0 ? 1.0f / step : 0.0f), per_unit(1.0f / unit);
  V squared(0.0f), origin(0.0f), largest(0.0f);
  for (int i = 0; i < size; i += V::N) {
    const V v = V::load(w + i);
    const V p = min(max(round((v - o) * inverse), V(-8.0f)), V(7.0f));
    const V d = v - fma(p, s, o), e = d * per_unit, x = v * per_unit;
    squared = fma(e, e, squared);
    origin = fma(x, x, origin);
    largest = max(abs(d), largest);
    float value[V::N];
    (p + V(8.0f)).store(value);
    for (int j = 0; j < V::N; ++j) q[i + j] = static_cast<std::uint8_t>(static_cast<int>(value[j]));
  }
  const double scale = static_cast<double>(unit) * static_cast<double>(unit);
  stats.squared += static_cast<double>(reduce_add(squared)) * scale;
  stats.origin += static_cast<double>(reduce_add(origin)) * scale;
  const double top = static_cast<double>(reduce_max(largest));
  if (top > stats.largest) stats.largest = top;
  return true;
}

void note_bad(Int4TileStats& stats, const float* w, int size, std::int64_t row, std::int64_t k) {
  for (int i = 0; i < size && stats.bad_row < 0; ++i)
    if (!(w[i] - w[i] == 0)) {
      stats.bad_row = row;
      stats.bad_k = k + i;
    }
}

template <class Isa, class T>
void quantize_tile(const Int4Target& to, const View& w, bool transposed, std::int64_t tile, Int4TileStats& stats) {
  const std::int64_t row = tile * int4::kTileRows, groups = to.k / to.group;
  const int rows = static_cast<int>(int4::tile_rows(row, to.n)), size = static_cast<int>(to.group);
  std::uint8_t* packed = to.packed.ptr<std::uint8_t>() + int4::packed_at(row, to.k);
  const std::int64_t at = int4::scale_at(row, groups);
  alignas(64) float buf[int4::kTileRows][kMaxGroup];
  std::uint8_t q[kMaxGroup];
  for (std::int64_t g = 0; g < groups; ++g) {
    load_group<T>(buf, w, transposed, row, rows, g * size, size);
    for (int r = 0; r < rows; ++r) {
      Grid grid;
      if (!quantize_group<Isa>(buf[r], size, !to.offset, to.search, to.importance ? to.importance + g * size : nullptr,
                               grid, q, stats)) {
        note_bad(stats, buf[r], size, row + r, g * size);
        return;
      }
      to.scale.ptr<bf16>()[at + g * rows + r] = grid.scale;
      if (to.offset) to.offset.ptr<bf16>()[at + g * rows + r] = grid.offset;
      for (int i = 0; i < size; i += 8) {
        std::uint8_t* p = packed + int4::byte_of(rows, r, g * size + i);
        for (int j = 0; j < 4; ++j) p[j] = static_cast<std::uint8_t>(q[i + j] | q[i + 4 + j] << 4);
      }
    }
  }
}

}  // namespace

template <class Isa>
void quantize_int4(Isa, Pool& pool, const Int4Target& to, View w, bool transposed, Int4TileStats* stats) {
  parallel_for(pool, int4::tiles(to.n), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto tile = begin; tile < end; ++tile) {
      if (w.dtype() == DType::bf16) quantize_tile<Isa, bf16>(to, w, transposed, tile, stats[tile]);
      else if (w.dtype() == DType::f16) quantize_tile<Isa, f16>(to, w, transposed, tile, stats[tile]);
      else quantize_tile<Isa, float>(to, w, transposed, tile, stats[tile]);
    }
  });
}

template void quantize_int4(simd::Isa, Pool&, const Int4Target&, View, bool, Int4TileStats*);

}  // namespace hpcdl::cpu
