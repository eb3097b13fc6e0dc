#include "hpcdl/ops/dropout/dropout.h"

#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

constexpr int kChunk = 256, kBlocks = kChunk / 4 + 1;  // a chunk may begin inside a block of four draws

/// Rng::uniform of draws [4 * first, 4 * (first + kBlocks)): Philox on all blocks in parallel, so that the compiler can
/// keep each word in vector lanes.
template <class Isa> void uniforms(Isa, float* u, const Rng& rng, std::uint64_t first) {
  std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    const std::uint64_t block = first + static_cast<std::uint64_t>(i);
    c0[i] = static_cast<std::uint32_t>(block);
    c1[i] = static_cast<std::uint32_t>(block >> 32);
    c2[i] = static_cast<std::uint32_t>(rng.stream);
    c3[i] = static_cast<std::uint32_t>(rng.stream >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(rng.seed), k1 = static_cast<std::uint32_t>(rng.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[i], p1 = std::uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<std::uint32_t>(p1);
      c2[i] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const auto unit = [](std::uint32_t w) { return static_cast<float>(static_cast<std::int32_t>(w >> 8)) * 0x1p-24f; };
  for (int i = 0; i < kBlocks; ++i) {
    u[4 * i] = unit(c0[i]);
    u[4 * i + 1] = unit(c1[i]);
    u[4 * i + 2] = unit(c2[i]);
    u[4 * i + 3] = unit(c3[i]);
  }
}

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
        uniforms(isa, u, draws, static_cast<std::uint64_t>(index / 4));
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
