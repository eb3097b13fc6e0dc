#include "hpcdl/ops/batch_norm/batch_norm.h"

#include "hpcdl/ops/batch_norm/channels.h"

namespace hpcdl::cpu {
namespace {

/// How dz is computed: from dy alone, with the signs of y, or with those of x normalised again (as in forward, bit for
/// bit).
enum class Signs { none, of_y, of_x };

template <Signs kSigns, class Isa, class T, class Lanes>
simd::Vec<Isa> masked(const Channels<Isa>& ch, const T* y, const T* dy, simd::Vec<Isa> centred, std::int64_t i,
                      Lanes k) {
  using V = simd::Vec<Isa>;
  const V d = simd::load<V>(dy + i, k), zero(0.0f);
  if constexpr (kSigns == Signs::of_y) return select(simd::load<V>(y + i, k) > zero, d, zero);
  if constexpr (kSigns == Signs::of_x) return select(ch.normalised(centred, i, k) > zero, d, zero);
  return d;
}

template <class T> const T* row(const View& v, std::int64_t r) { return v ? v.ptr<T>() + r * v.row_stride() : nullptr; }

/// Adds kRows rows from r on to sum(dz) and sum(dz * (x - mean)).
template <class Isa, class T, Signs kSigns, int kRows>
void add_rows(const BatchNormBackward& o, const Channels<Isa>& ch, std::int64_t r, float* dz_sum, float* product_sum) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const T *x[kRows], *y[kRows], *dy[kRows];
  T* kept[kRows];
  const bool keeps = o.keeps_dz();
  for (int j = 0; j < kRows; ++j) {
    x[j] = row<T>(o.x, r + j), y[j] = row<T>(o.y, r + j), dy[j] = row<T>(o.dy, r + j);
    kept[j] = keeps ? o.dresidual.template ptr<T>() + (r + j) * o.dresidual.row_stride() : nullptr;
  }
  loop<Isa>(o.x.cols(), [&](std::int64_t i, auto k) {
    V sum(0.0f), product(0.0f);
    for (int j = 0; j < kRows; ++j) {
      const V centred = ch.centred(load<V>(x[j] + i, k), i, k),
              dz = masked<kSigns, Isa>(ch, y[j], dy[j], centred, i, k);
      sum = sum + dz;
      product = fma(dz, centred, product);
      if (keeps) store(kept[j] + i, dz, k);
    }
    store(dz_sum + i, load<V>(dz_sum + i, k) + sum, k);
    store(product_sum + i, load<V>(product_sum + i, k) + product, k);
  });
}

/// sums = the sum of all shares, in order; the products are multiplied by 1 / sqrt(var + eps).
template <class Isa> void merge_sums(const BatchNormBackward& o, std::int64_t begin, std::int64_t end) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto channels = o.x.cols(), shares = batch_shares(o.x.rows());
  float* to = o.sums.ptr<float>();
  loop<Isa>(end - begin, [&](std::int64_t j, auto k) {
    const auto i = begin + j;
    V dz(0.0f), product(0.0f);
    for (std::int64_t p = 0; p < shares; ++p) {
      const float* from = o.partial.ptr<float>() + p * 3 * channels + i;
      dz = dz + load<V>(from, k), product = product + load<V>(from + channels, k);
    }
    store(to + i, dz, k);
    store(to + channels + i, product / sqrt(load<V>(o.var.ptr<float>() + i, k) + V(o.eps)), k);
  });
  const auto put = [&](const Grad& d, const float* from) {
    if (!d) return;
    visit_dtype(d.dtype(), [&]<class P>() {
      loop<Isa>(end - begin, [&](std::int64_t j, auto k) {
        const auto i = begin + j;
        const V v = load<V>(from + i, k);
        store(d.ptr<P>() + i, d.accumulate() ? load<V>(d.ptr<P>() + i, k) + v : v, k);
      });
    });
  };
  put(o.dbias, to);
  put(o.dweight, to + channels);
}

/// dx = scale * dz + slope * (x - mean) + shift: slope and shift are 0 where the statistics are constants.
template <class Isa> struct Slopes {
  float *slope, *shift;
  Slopes(float* memory, std::int64_t channels) : slope(memory), shift(memory + channels) {}
  void fill(const BatchNormBackward& o, const Channels<Isa>& ch, float count) const {
    using V = simd::Vec<Isa>;
    using namespace simd;
    const auto channels = o.x.cols();
    const bool constant = count == __builtin_inff();
    const V zero(0.0f);
    const float* sums = o.sums.ptr<float>();
    loop<Isa>(channels, [&](std::int64_t i, auto k) {
      const V over = count == 0 ? V(1.0f) / load<V>(sums + 2 * channels + i, k) : V(1.0f / count);
      const V part = zero - load<V>(ch.scale + i, k) * over;
      const V root = sqrt(load<V>(o.var.ptr<float>() + i, k) + V(o.eps));
      store(shift + i, constant ? zero : part * load<V>(sums + i, k), k);
      store(slope + i, constant ? zero : part * load<V>(sums + channels + i, k) / root, k);
    });
  }
};

/// dz comes from dresidual if the sums have stored it there. An accumulating dresidual receives its contribution here.
template <class Isa, class T, Signs kSigns>
void gradient_rows(const BatchNormBackward& o, const Channels<Isa>& ch, const Slopes<Isa>& slopes, std::int64_t begin,
                   std::int64_t end) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const bool adds_residual = o.dresidual && !o.keeps_dz(), add = o.dx && o.dx.accumulate(),
             past_cache = o.dx && !add && goes_past_cache(o.dx);
  const View dz_from = o.keeps_dz() ? View(o.dresidual) : o.dy;
  for (auto r = begin; r < end; ++r) {
    const T *x = row<T>(o.x, r), *y = row<T>(o.y, r), *dy = row<T>(dz_from, r);
    T* dx = o.dx ? o.dx.ptr<T>() + r * o.dx.row_stride() : nullptr;
    T* dresidual = adds_residual ? o.dresidual.ptr<T>() + r * o.dresidual.row_stride() : nullptr;
    const auto at = [&](std::int64_t i, auto k) {
      const V centred = ch.centred(load<V>(x + i, k), i, k), dz = masked<kSigns, Isa>(ch, y, dy, centred, i, k);
      if (dresidual) store(dresidual + i, load<V>(dresidual + i, k) + dz, k);
      return fma(dz, load<V>(ch.scale + i, k),
                 fma(centred, load<V>(slopes.slope + i, k), load<V>(slopes.shift + i, k)));
    };
    if (!dx) loop<Isa>(o.x.cols(), [&](std::int64_t i, auto k) { at(i, k); });
    else if (add)
      loop<Isa>(o.x.cols(), [&](std::int64_t i, auto k) { store(dx + i, load<V>(dx + i, k) + at(i, k), k); });
    else if (past_cache) loop<Isa>(o.x.cols(), [&](std::int64_t i, auto k) { stream(dx + i, at(i, k), k); });
    else loop<Isa>(o.x.cols(), [&](std::int64_t i, auto k) { store(dx + i, at(i, k), k); });
  }
  if (past_cache) stream_fence<Isa>();
}

/// f.template operator()<Signs>()
template <class F> void visit_signs(bool relu, const View& y, F&& f) {
  if (!relu) f.template operator()<Signs::none>();
  else if (y) f.template operator()<Signs::of_y>();
  else f.template operator()<Signs::of_x>();
}

}  // namespace

template <class Isa> void batch_norm_sums(Isa, Pool& pool, const BatchNormBackward& o) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto channels = o.x.cols();
  reserve_channels(pool, channels, 5);
  const auto memory = [&](int t) { return reinterpret_cast<float*>(pool.scratch(t)); };
  const Channels<Isa> ch(memory(0), channels);
  ch.fill(o.mean, o.var, o.weight, o.bias, o.eps, channels);
  visit_dtype(o.x.dtype(), [&]<class T>() {
    visit_signs(o.relu, o.y, [&]<Signs kSigns>() {
      for_shares(pool, o.x, Order::ascending, [&](int t, std::int64_t share, std::int64_t begin, std::int64_t end) {
        float *to = o.partial.ptr<float>() + share * 3 * channels, *block = memory(t) + 3 * channels;
        const auto each = 2 * channels;  // both sums are adjacent
        loop<Isa>(each, [&](std::int64_t i, auto k) { store(to + i, V(0.0f), k); });
        for (auto r = begin; r < end; r += kBlockRows) {
          loop<Isa>(each, [&](std::int64_t i, auto k) { store(block + i, V(0.0f), k); });
          const auto to_row = end - r < kBlockRows ? end : r + kBlockRows;
          auto at = r;
          for (; at + 4 <= to_row; at += 4) add_rows<Isa, T, kSigns, 4>(o, ch, at, block, block + channels);
          for (; at < to_row; ++at) add_rows<Isa, T, kSigns, 1>(o, ch, at, block, block + channels);
          loop<Isa>(each,
                    [&](std::int64_t i, auto k) { store(to + i, load<V>(to + i, k) + load<V>(block + i, k), k); });
        }
      });
    });
  });
  for_channels(pool, channels, batch_shares(o.x.rows()),
               [&](std::int64_t begin, std::int64_t end) { merge_sums<Isa>(o, begin, end); });
}

template <class Isa> void batch_norm_gradient(Isa, Pool& pool, const BatchNormBackward& o, float count) {
  if (!o.dx && (!o.dresidual || o.keeps_dz())) return;
  const auto channels = o.x.cols();
  reserve_channels(pool, channels, 5);
  auto* memory = reinterpret_cast<float*>(pool.scratch(0));
  const Channels<Isa> ch(memory, channels);
  ch.fill(o.mean, o.var, o.weight, o.bias, o.eps, channels);
  const Slopes<Isa> slopes(memory + 3 * channels, channels);
  slopes.fill(o, ch, count);
  visit_dtype(o.x.dtype(), [&]<class T>() {
    visit_signs(o.relu && !o.keeps_dz(), o.y, [&]<Signs kSigns>() {
      for_shares(pool, o.x, Order::descending, [&](int, std::int64_t, std::int64_t begin, std::int64_t end) {
        gradient_rows<Isa, T, kSigns>(o, ch, slopes, begin, end);
      });
    });
  });
}

template void batch_norm_sums(simd::Isa, Pool&, const BatchNormBackward&);
template void batch_norm_gradient(simd::Isa, Pool&, const BatchNormBackward&, float);

}  // namespace hpcdl::cpu
