#include "hpcdl/ops/dropout/dropout.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/ops/uniforms.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

constexpr int kChunk = 256, kBlocks = kChunk / 4 + 1;  // a chunk may begin inside a block of four draws

}  // namespace

template <class Isa> void dropout(Isa isa, Pool& pool, Grad y, View x, const Rng& draws, const Dropout::Args& a) {
  using V = simd::Vec<Isa>;
  const bool flat = x.is_contiguous() && y.is_contiguous();
  const std::int64_t first = a.part * x.size(), rows = flat ? 1 : x.rows(), cols = flat ? x.size() : x.cols();
  visit_dtype(x.dtype(), [&]<class T>() {
    for_row_chunks(pool, rows, cols, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
      alignas(64) float u[4 * kBlocks];
      const V limit(a.p), scale(1 / (1 - a.p));
      T* to = y.ptr<T>() + row * y.row_stride();
      const T* from = x.ptr<T>() + row * x.row_stride();
      for (std::int64_t at = begin; at < end; at += kChunk) {
        const std::int64_t n = end - at < kChunk ? end - at : kChunk, index = first + row * cols + at;
        uniforms<kBlocks>(isa, u, draws, static_cast<std::uint64_t>(index / 4));
        simd::loop<Isa>(n, [&](std::int64_t i, auto lanes) {
          const V kept = simd::load<V>(from + at + i, lanes) * scale;
          V v = select(simd::load<V>(u + index % 4 + i, lanes) < limit, V(0.0f), kept);
          if (y.accumulate()) v = v + simd::load<V>(to + at + i, lanes);
          simd::store(to + at + i, v, lanes);
        });
      }
    });
  });
}

template void dropout(simd::Isa, Pool&, Grad, View, const Rng&, const Dropout::Args&);

}  // namespace hpcdl::cpu
