#pragma once
// Shared code of the batch_norm passes on a CPU (.simd.cpp only): rows by shares, per-channel vectors in the cache of a
// thread.

#include "hpcdl/ops/batch_norm/passes.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/loop.h"

namespace hpcdl::cpu {
namespace {

/// Rows whose sums are taken in float before they are merged into the sums of the share.
constexpr std::int64_t kBlockRows = 64;

/// f(thread, share, begin row, end row). Descending: a second pass starts with what the first pass read last.
enum class Order { ascending, descending };
template <class F> void for_shares(Pool& pool, const View& x, Order order, F&& f) {
  const std::int64_t rows = x.rows(), per = batch_share_rows(rows), shares = batch_shares(rows),
                     grain = kGrainElements / (per * x.cols()) + 1;
  const std::int64_t parts = (shares + grain - 1) / grain, threads = parts < pool.threads() ? parts : pool.threads();
  const auto walk = [&](int t, std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto share = order == Order::ascending ? i : begin + end - 1 - i, to = (share + 1) * per;
      f(t, share, share * per, to < rows ? to : rows);
    }
  };
  if (threads <= 1) return walk(0, 0, shares);
  pool.run([&](int t) {
    if (t < threads) walk(t, shares * t / threads, shares * (t + 1) / threads);
  });
}

/// f(begin, end): channels in whole cache lines, spread over the threads; `work` operations per channel.
template <class F> void for_channels(Pool& pool, std::int64_t channels, std::int64_t work, F&& f) {
  const std::int64_t blocks = (channels + 63) / 64;
  parallel_for(pool, blocks, kGrainElements / (64 * (work + 1)) + 1,
               [&](std::int64_t b, std::int64_t e) { f(b * 64, e * 64 < channels ? e * 64 : channels); });
}

/// to[c] = p[c] as float, or `absent`.
template <class Isa> void widen(float* to, const View& p, std::int64_t channels, float absent) {
  using V = simd::Vec<Isa>;
  if (!p) return simd::loop<Isa>(channels, [&](std::int64_t c, auto k) { store(to + c, V(absent), k); });
  visit_dtype(p.dtype(), [&]<class T>() {
    simd::loop<Isa>(channels, [&](std::int64_t c, auto k) { store(to + c, simd::load<V>(p.ptr<T>() + c, k), k); });
  });
}

/// Per channel: the normalisation of a row. y = fma(x - mean, scale, bias).
template <class Isa> struct Channels {
  using V = simd::Vec<Isa>;
  float *mean, *scale, *bias;
  /// `memory`: 3 * channels floats.
  Channels(float* memory, std::int64_t channels)
      : mean(memory), scale(memory + channels), bias(memory + 2 * channels) {}
  void fill(const View& m, const View& var, const View& weight, const View& b, float eps, std::int64_t channels) const {
    widen<Isa>(mean, m, channels, 0);
    widen<Isa>(scale, weight, channels, 1);
    widen<Isa>(bias, b, channels, 0);
    simd::loop<Isa>(channels, [&](std::int64_t c, auto k) {
      store(scale + c, simd::load<V>(scale + c, k) / sqrt(simd::load<V>(var.ptr<float>() + c, k) + V(eps)), k);
    });
  }
  template <class Lanes> V centred(V x, std::int64_t c, Lanes k) const { return x - simd::load<V>(mean + c, k); }
  template <class Lanes> V normalised(V centred, std::int64_t c, Lanes k) const {
    return fma(centred, simd::load<V>(scale + c, k), simd::load<V>(bias + c, k));
  }
};

/// Reserves `vectors` per-channel vectors for every thread.
inline void reserve_channels(Pool& pool, std::int64_t channels, int vectors) {
  pool.reserve_scratch(channels * vectors * 4);
}

}  // namespace
}  // namespace hpcdl::cpu
