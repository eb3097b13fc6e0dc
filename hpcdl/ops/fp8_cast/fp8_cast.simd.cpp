#include "hpcdl/ops/fp8_cast/fp8_cast.h"

#include <cmath>

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kTile = Fp8Cast::kTile;

std::int64_t tiles_of(std::int64_t n) { return (n + kTile - 1) / kTile; }

template <class T> struct Rounding {
  const Fp8CastCall& c;
  const T* x = c.x.template ptr<T>();
  std::int64_t rows = c.x.rows(), cols = c.x.cols(), ld = c.x.row_stride();
  float* amax = c.amax.template ptr<float>();

  float at(std::int64_t r, std::int64_t k) const { return static_cast<float>(x[r * ld + k]); }
  float largest(std::int64_t r0, std::int64_t r1, std::int64_t k0, std::int64_t k1) const {
    float most = 0;
    for (std::int64_t r = r0; r < r1; ++r)
      for (std::int64_t k = k0; k < k1; ++k) most = std::fmax(most, std::fabs(at(r, k)));
    return most;
  }
  static std::int64_t end_of(std::int64_t tile, std::int64_t n) {
    return tile * kTile + kTile < n ? tile * kTile + kTile : n;
  }

  void measure_tiles(Pool& pool) const {
    const std::int64_t across = tiles_of(cols);
    parallel_for(pool, tiles_of(rows) * across, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t i = t / across, j = t % across;
        amax[t] = largest(i * kTile, end_of(i, rows), j * kTile, end_of(j, cols));
      }
    });
  }
  void measure_rows(Pool& pool) const {
    const bool both = c.args.both;
    parallel_for(pool, rows + (both ? cols : 0), 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        amax[i] = i < rows ? largest(i, i + 1, 0, cols) : largest(0, rows, i - rows, i - rows + 1);
    });
  }

  /// Rows of q, or of qt.
  template <class F> void round(Pool& pool, bool transposed) const {
    const Tensor& to = transposed ? c.qt : c.q;
    const std::int64_t wide = transposed ? rows : cols, to_ld = to.row_stride();
    const float* const scales = c.scales.template ptr<float>() + (transposed && c.by_rows() ? rows : 0);
    F* const q = to.template ptr<F>();
    for_rows(pool, transposed ? cols : rows, wide, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float inverse = 1 / scales[c.by_rows() ? r : 0];
        for (std::int64_t k = 0; k < wide; ++k)
          q[r * to_ld + k] = to_f8<F>((transposed ? at(k, r) : at(r, k)) * inverse);
      }
    });
  }

  template <class F> void run(Pool& pool) const {
    float* const scales = c.scales.template ptr<float>();
    if (c.by_rows()) {
      measure_rows(pool);
      for (std::int64_t i = 0; i < c.scales.size(); ++i) scales[i] = f8_scale<F>(amax[i]);
    } else {
      measure_tiles(pool);
      float most = c.history ? largest_of_steps(c.history.template ptr<float>(), c.history[1], c.args.column) : 0.0f;
      if (most == 0)
        for (std::int64_t i = 0; i < c.amax.size(); ++i) most = std::fmax(most, amax[i]);
      scales[0] = f8_scale<F>(most);
    }
    round<F>(pool, false);
    if (c.args.both) round<F>(pool, true);
  }
};

}  // namespace

template <class Isa> void fp8_cast(Isa, Pool& pool, const Fp8CastCall& c) {
  visit_dtype(c.x.dtype(),
              [&]<class T>() { visit_f8(c.args.to, [&]<class F>() { Rounding<T>{c}.template run<F>(pool); }); });
}

template void fp8_cast(simd::Isa, Pool&, const Fp8CastCall&);

}  // namespace hpcdl::cpu
