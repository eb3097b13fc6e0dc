#include "hpcdl/ops/mx4_layer/mx4_layer.h"

#include <cstdint>

#include "hpcdl/ops/rows.h"
#include "hpcdl/ops/uniforms.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

constexpr int kGroup = kMxBlock;
constexpr int kWide = 64;                      // groups that are rounded together, side by side
constexpr float kRoot = 0.17677669529663687f;  // 1 / the root of 32
/// Scales are no smaller: the inverse is finite, and products of values are no subnormal numbers.
constexpr int kLeastScale = 27;

/// Groups side by side: element i of group j is at [i][j].
struct Tile {
  alignas(64) float of[kGroup][kWide];
  float* operator[](int i) { return of[i]; }
};

/// v = H v.
template <class Isa> void rotate(Tile& v) {
  using V = simd::Vec<Isa>;
  for (int apart = kGroup / 2; apart > 0; apart /= 2)
    for (int i = 0; i < kGroup; ++i) {
      if (i & apart) continue;
      float *x = v[i], *y = v[i + apart];
      for (int j = 0; j < kWide; j += V::N) {
        const V a = V::load(x + j), b = V::load(y + j);
        (a + b).store(x + j), (a - b).store(y + j);
      }
    }
  for (int i = 0; i < kGroup; ++i)
    for (int j = 0; j < kWide; j += V::N) (V::load(v[i] + j) * V(kRoot)).store(v[i] + j);
}

/// Signs by bits.
template <class Isa> void flip(Tile& v, std::uint32_t signs) {
  using V = simd::Vec<Isa>;
  for (int i = 0; i < kGroup; ++i) {
    if (!(signs >> i & 1)) continue;
    for (int j = 0; j < kWide; j += V::N) (V(0.0f) - V::load(v[i] + j)).store(v[i] + j);
  }
}

/// The distance of neighbours of E2M1 where x, a magnitude, lies, and its inverse.
template <class V> struct Step {
  V size, inverse;
  explicit Step(V x)
      : size(select(x < V(2.0f), V(0.5f), select(x < V(4.0f), V(1.0f), V(2.0f)))),
        inverse(select(x < V(2.0f), V(2.0f), select(x < V(4.0f), V(1.0f), V(0.5f)))) {}
};

/// to_e2m1() and its value, of a magnitude.
template <class V> V nearest(V x) {
  const Step<V> step(x);
  return min(round(x * step.inverse) * step.size, V(kLargestE2m1));
}

/// One of the neighbours, x on average, of a magnitude up to kLargestE2m1. u in [0, 1).
template <class V> V random_neighbour(V x, V u) {
  const Step<V> step(x);
  const V steps = x * step.inverse, part = fraction(steps);
  return (steps - part + select(u < part, V(1.0f), V(0.0f))) * step.size;
}

template <class V> V with_sign_of(V magnitude, V x) { return select(x < V(0.0f), V(0.0f) - magnitude, magnitude); }

/// The scale of a group as a power of two and its inverse.
struct Scales {
  alignas(64) float of[kWide], inverse[kWide];
  void set(int j, int code) {
    of[j] = from_e8m0(static_cast<std::uint8_t>(code)), inverse[j] = from_e8m0(static_cast<std::uint8_t>(254 - code));
  }
};

template <class Isa, class X, class Q> class Rounding {
  using V = simd::Vec<Isa>;

 public:
  explicit Rounding(const Mx4Call& c) : c_(c), cols_(c.x.cols()), signs_(c.at_random ? c.signs.bits(0) : 0) {}

  /// Groups that follow each other: of a band of 32 rows, or of all rows.
  std::int64_t groups() const { return c_.x.size() / kGroup; }

  void operator()(std::int64_t begin, std::int64_t end) {
    if (c_.along_rows)  // a tile lies in one band
      for (auto at = begin; at < end;) {
        const auto column = at % cols_;
        const auto n = std::min<std::int64_t>({kWide, end - at, cols_ - column});
        tile(at, static_cast<int>(n));
        at += n;
      }
    else
      for (auto at = begin; at < end; at += kWide) tile(at, static_cast<int>(std::min<std::int64_t>(kWide, end - at)));
  }

 private:
  /// The first element of group g in memory; all operands are contiguous.
  std::int64_t first(std::int64_t g) const {
    return c_.along_rows ? g / cols_ * kGroup * cols_ + g % cols_ : g * kGroup;
  }

  template <class T> void load(const T* from, std::int64_t g, int n, Tile& to) const {
    const T* at = from + first(g);
    if (c_.along_rows) {
      for (int i = 0; i < kGroup; ++i)
        simd::loop<Isa>(n, [&](std::int64_t j, auto k) {
          simd::load<V>(at + i * cols_ + j, k).store(to[i] + j);  // the rest of a register is 0
        });
    } else {
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < kGroup; ++i) to[i][j] = static_cast<float>(at[j * kGroup + i]);
    }
    const int whole = c_.along_rows ? (n + V::N - 1) / V::N * V::N : n;
    for (int i = 0; i < kGroup; ++i)
      for (int j = whole; j < kWide; ++j) to[i][j] = 0;
  }

  void store(Tile& from, std::int64_t g, int n) const {
    Q* at = c_.q.template ptr<Q>() + first(g);
    const bool adds = c_.q.accumulate();
    if (c_.along_rows) {
      for (int i = 0; i < kGroup; ++i)
        simd::loop<Isa>(n, [&](std::int64_t j, auto k) {
          Q* to = at + i * cols_ + j;
          const V v = V::load(from[i] + j);
          simd::store(to, adds ? v + simd::load<V>(to, k) : v, k);
        });
    } else {
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < kGroup; ++i) {
          Q& to = at[j * kGroup + i];
          to = Q(from[i][j] + (adds ? static_cast<float>(to) : 0.0f));
        }
    }
  }

  /// The number of the draw of an element is its number in the tensor, in row-major order.
  void draw(std::int64_t g, int n, Tile& u) const {
    constexpr int kDraws = 4 * (kWide / 4 + 1);
    float some[kDraws];
    const auto of_run = [&](std::int64_t at, float* to, std::int64_t apart, int count) {
      const auto index = c_.first + at;
      uniforms<kWide / 4 + 1>(Isa(), some, c_.draws, static_cast<std::uint64_t>(index / 4));
      for (int j = 0; j < count; ++j) to[j * apart] = some[index % 4 + j];
    };
    if (c_.along_rows)
      for (int i = 0; i < kGroup; ++i) of_run(first(g) + i * cols_, u[i], 1, n);
    else
      for (int j = 0; j < n; ++j) of_run(first(g + j), u[0] + j, kWide, kGroup);
    for (int i = 0; i < kGroup; ++i)
      for (int j = n; j < kWide; ++j) u[i][j] = 0;
  }

  /// Of magnitudes of a group; that of the specification.
  void scale_by_largest(Tile& v, Scales& s, bool whole) const {
    alignas(64) float largest[kWide];
    for (int j = 0; j < kWide; j += V::N) {
      V most(0.0f);
      for (int i = 0; i < kGroup; ++i) most = max(abs(V::load(v[i] + j)), most);
      most.store(largest + j);
    }
    for (int j = 0; j < kWide; ++j) {
      int code = e8m0_scale(largest[j]);
      // It puts the largest magnitude between 4 and 8; between 3 and 6, nothing is clipped.
      if (whole) {
        const float scaled = largest[j] * from_e8m0(static_cast<std::uint8_t>(254 - std::max(code, kLeastScale)));
        code += scaled > kLargestE2m1;
      }
      s.set(j, std::max(code, kLeastScale));
    }
  }

  V squared_error(Tile& v, int j, V scale, V inverse) const {
    V sum(0.0f);
    for (int i = 0; i < kGroup; ++i) {
      const V x = abs(V::load(v[i] + j)), d = x - nearest(x * inverse) * scale;
      sum = fma(d, d, sum);
    }
    return sum;
  }

  /// Of the scale of the specification, half and twice of it, the one with the smallest error; the first of equal ones.
  void scale_by_error(Tile& v, Scales& s) const {
    scale_by_largest(v, s, false);
    const V least(from_e8m0(kLeastScale));
    for (int j = 0; j < kWide; j += V::N) {
      V scale = V::load(s.of + j), inverse = V::load(s.inverse + j), error = squared_error(v, j, scale, inverse);
      const V given = scale, of_given = inverse;
      for (const float factor : {0.5f, 2.0f}) {
        const V other = max(given * V(factor), least), of_other = min(of_given * V(1 / factor), V(1.0f) / least),
                d = squared_error(v, j, other, of_other);
        const auto better = d < error;
        scale = select(better, other, scale), inverse = select(better, of_other, inverse),
        error = select(better, d, error);
      }
      scale.store(s.of + j), inverse.store(s.inverse + j);
    }
  }

  void tile(std::int64_t g, int n) {
    Tile v, u;
    Scales s;
    const bool quest = c_.method == Mx4Method::quest;
    if (c_.dq && !quest) {
      load(c_.dq.template ptr<X>(), g, n, v);
      return store(v, g, n);
    }
    load(c_.x.template ptr<X>(), g, n, v);
    if (quest) flip<Isa>(v, signs_), rotate<Isa>(v);
    if (quest && !c_.at_random) scale_by_error(v, s);
    else scale_by_largest(v, s, quest);
    if (c_.dq) return back(v, u, s, g, n);
    if (c_.at_random) draw(g, n, u);
    for (int i = 0; i < kGroup; ++i)
      for (int j = 0; j < kWide; j += V::N) {
        const V x = V::load(v[i] + j), size = abs(x) * V::load(s.inverse + j),
                q = c_.at_random ? random_neighbour(size, V::load(u[i] + j)) : nearest(size);
        (with_sign_of(q * V::load(s.of + j), x) + (x - x)).store(v[i] + j);  // NaN where x is not finite
      }
    store(v, g, n);
  }

  /// The gradient of x, which is `v` rotated, from that of q.
  void back(Tile& v, Tile& d, const Scales& s, std::int64_t g, int n) {
    constexpr float kTrusted = kLargestE2m1 + 1;  // half of the largest step beyond the largest value
    load(c_.dq.template ptr<X>(), g, n, d);
    for (int i = 0; i < kGroup; ++i)
      for (int j = 0; j < kWide; j += V::N) {
        const auto trusted = abs(V::load(v[i] + j)) * V::load(s.inverse + j) <= V(kTrusted);
        select(trusted, V::load(d[i] + j), V(0.0f)).store(d[i] + j);
      }
    rotate<Isa>(d);
    store(d, g, n);
  }

  const Mx4Call& c_;
  std::int64_t cols_;
  std::uint32_t signs_;
};

}  // namespace

template <class Isa> void mx4_round(Isa, Pool& pool, const Mx4Call& c) {
  if (c.x.size() == 0) return;
  visit_dtype(c.x.dtype(), [&]<class X>() {
    visit_dtype(c.q.dtype(), [&]<class Q>() {
      Rounding<Isa, X, Q> rounding(c);
      const auto groups = rounding.groups(), tiles = (groups + kWide - 1) / kWide;
      parallel_for(pool, tiles, kGrainElements / (kGroup * kWide), [&](std::int64_t begin, std::int64_t end) {
        rounding(begin * kWide, std::min(end * kWide, groups));
      });
    });
  });
}

template void mx4_round(simd::Isa, Pool&, const Mx4Call&);

}  // namespace hpcdl::cpu
