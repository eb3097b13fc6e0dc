#include "hpcdl/ops/batch_norm/batch_norm.h"

#include "hpcdl/ops/batch_norm/channels.h"

namespace hpcdl::cpu {
namespace {

/// Mean and sum of squared deviations of a share of the rows, per channel: mean = base + offset. The base is the
/// share's first row, so that the summed values are small where the mean is large.
struct Moments {
  float *base, *offset, *squares;
  Moments(const Tensor& partial, std::int64_t share)
      : base(partial.ptr<float>() + share * 3 * partial[-1]),
        offset(base + partial[-1]),
        squares(offset + partial[-1]) {}
};

/// sum += x - origin, squares += (x - origin)^2 over `rows` rows, four at a time.
template <class Isa, class T>
void add_rows(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t channels, const float* origin,
              float* sum, float* squares) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T *a = x + r * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    loop<Isa>(channels, [&](std::int64_t i, auto k) {
      const V o = load<V>(origin + i, k);
      const V va = load<V>(a + i, k) - o, vb = load<V>(b + i, k) - o, vc = load<V>(c + i, k) - o,
              vd = load<V>(d + i, k) - o;
      store(sum + i, load<V>(sum + i, k) + ((va + vb) + (vc + vd)), k);
      store(squares + i, load<V>(squares + i, k) + fma(va, va, vb * vb) + fma(vc, vc, vd * vd), k);
    });
  }
  for (; r < rows; ++r) {
    loop<Isa>(channels, [&](std::int64_t i, auto k) {
      const V v = load<V>(x + r * stride + i, k) - load<V>(origin + i, k);
      store(sum + i, load<V>(sum + i, k) + v, k);
      store(squares + i, fma(v, v, load<V>(squares + i, k)), k);
    });
  }
}

/// `work`: 3 * channels floats.
template <class Isa, class T>
void share_moments(const Moments& m, const T* x, std::int64_t stride, std::int64_t rows, std::int64_t channels,
                   float* work) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  float *origin = work, *sum = origin + channels, *squares = sum + channels;
  const V zero(0.0f);
  loop<Isa>(channels, [&](std::int64_t i, auto k) {
    const V first = load<V>(x + i, k);
    store(m.base + i, first, k), store(origin + i, first, k);
    store(m.offset + i, zero, k), store(m.squares + i, zero, k);
    store(sum + i, zero, k), store(squares + i, zero, k);
  });
  for (std::int64_t before = 0; before < rows; before += kBlockRows) {
    const auto n = rows - before < kBlockRows ? rows - before : kBlockRows;
    add_rows<Isa>(x + before * stride, stride, n, channels, origin, sum, squares);
    const V over(1.0f / static_cast<float>(n)), part(static_cast<float>(n) / static_cast<float>(before + n));
    const V both(
        static_cast<float>(static_cast<double>(before) * static_cast<double>(n) / static_cast<double>(before + n)));
    loop<Isa>(channels, [&](std::int64_t i, auto k) {
      const V base = load<V>(m.base + i, k), offset = load<V>(m.offset + i, k), s = load<V>(sum + i, k), d = s * over;
      const V delta = (load<V>(origin + i, k) - base) + d - offset;
      const V within = load<V>(squares + i, k) - s * d;
      const V to = fma(delta, part, offset);
      store(m.squares + i, load<V>(m.squares + i, k) + select(within < zero, zero, within) + delta * delta * both, k);
      store(m.offset + i, to, k), store(origin + i, base + to, k);
      store(sum + i, zero, k), store(squares + i, zero, k);
    });
  }
}

/// Chan, Golub and LeVeque's merge of all shares, in order; offsets relative to the first share's base.
template <class Isa>
void merge_moments(Tensor mean, Tensor var, Tensor unbiased, const Tensor& partial, std::int64_t rows,
                   std::int64_t begin, std::int64_t end) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const std::int64_t per = batch_share_rows(rows), shares = batch_shares(rows);
  const Moments first(partial, 0);
  loop<Isa>(end - begin, [&](std::int64_t j, auto k) {
    const auto i = begin + j;
    const V base = load<V>(first.base + i, k);
    V offset = load<V>(first.offset + i, k), squares = load<V>(first.squares + i, k);
    for (std::int64_t p = 1; p < shares; ++p) {
      const Moments m(partial, p);
      const double before = static_cast<double>(p * per),
                   n = static_cast<double>(per < rows - p * per ? per : rows - p * per);
      const V delta = (load<V>(m.base + i, k) - base) + load<V>(m.offset + i, k) - offset;
      squares = squares + load<V>(m.squares + i, k) + delta * delta * V(static_cast<float>(before * n / (before + n)));
      offset = fma(delta, V(static_cast<float>(n / (before + n))), offset);
    }
    store(mean.ptr<float>() + i, base + offset, k);
    store(var.ptr<float>() + i, squares * V(1.0f / static_cast<float>(rows)), k);
    if (unbiased) store(unbiased.ptr<float>() + i, squares / V(static_cast<float>(rows - 1)), k);
  });
}

template <class Isa, class T, bool kResidual, bool kRelu>
void normalise_rows(const BatchNormForward& o, const Channels<Isa>& ch, std::int64_t begin, std::int64_t end) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto channels = o.x.cols();
  const bool past_cache = goes_past_cache(o.y);
  for (auto r = begin; r < end; ++r) {
    const T *x = o.x.ptr<T>() + r * o.x.row_stride(),
            *residual = kResidual ? o.residual.ptr<T>() + r * o.residual.row_stride() : nullptr;
    T* y = o.y.ptr<T>() + r * o.y.row_stride();
    const auto at = [&](std::int64_t i, auto k) {
      V v = ch.normalised(ch.centred(load<V>(x + i, k), i, k), i, k);
      if constexpr (kResidual) v = v + load<V>(residual + i, k);
      if constexpr (kRelu) v = max(V(0.0f), v);  // the second operand if that is NaN
      return v;
    };
    if (past_cache) loop<Isa>(channels, [&](std::int64_t i, auto k) { stream(y + i, at(i, k), k); });
    else loop<Isa>(channels, [&](std::int64_t i, auto k) { store(y + i, at(i, k), k); });
  }
}

}  // namespace

template <class Isa>
void batch_statistics(Isa, Pool& pool, Tensor mean, Tensor var, Tensor unbiased, View x, Tensor partial) {
  const auto channels = x.cols();
  reserve_channels(pool, channels, 3);
  visit_dtype(x.dtype(), [&]<class T>() {
    for_shares(pool, x, Order::ascending, [&](int t, std::int64_t share, std::int64_t begin, std::int64_t end) {
      share_moments<Isa>(Moments(partial, share), x.ptr<T>() + begin * x.row_stride(), x.row_stride(), end - begin,
                         channels, reinterpret_cast<float*>(pool.scratch(t)));
    });
  });
  for_channels(pool, channels, 2 * batch_shares(x.rows()), [&](std::int64_t begin, std::int64_t end) {
    merge_moments<Isa>(mean, var, unbiased, partial, x.rows(), begin, end);
  });
}

template <class Isa> void batch_normalise(Isa, Pool& pool, const BatchNormForward& o) {
  const auto channels = o.x.cols();
  reserve_channels(pool, channels, 3);
  const Channels<Isa> ch(reinterpret_cast<float*>(pool.scratch(0)), channels);
  ch.fill(o.mean, o.var, o.weight, o.bias, o.eps, channels);
  visit_dtype(o.x.dtype(), [&]<class T>() {
    for_shares(pool, o.x, Order::descending, [&](int, std::int64_t, std::int64_t begin, std::int64_t end) {
      if (o.residual)
        (o.relu ? normalise_rows<Isa, T, true, true> : normalise_rows<Isa, T, true, false>)(o, ch, begin, end);
      else (o.relu ? normalise_rows<Isa, T, false, true> : normalise_rows<Isa, T, false, false>)(o, ch, begin, end);
      if (goes_past_cache(o.y)) simd::stream_fence<Isa>();
    });
  });
}

template <class Isa> void merge_statistics(Isa, Tensor mean, Tensor var, Tensor unbiased, View parts) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto channels = parts[2];
  const float* first = parts.ptr<float>();
  loop<Isa>(channels, [&](std::int64_t i, auto k) {
    const V base = load<V>(first + i, k);
    V count = load<V>(first + 2 * channels + i, k), offset(0.0f), squares = load<V>(first + channels + i, k) * count;
    for (std::int64_t p = 1; p < parts[0]; ++p) {
      const float* m = first + p * 3 * channels + i;
      const V n = load<V>(m + 2 * channels, k), all = count + n, delta = load<V>(m, k) - base - offset;
      squares = squares + load<V>(m + channels, k) * n + delta * delta * (count * (n / all));
      offset = fma(delta, n / all, offset);
      count = all;
    }
    store(mean.ptr<float>() + i, base + offset, k);
    store(var.ptr<float>() + i, squares / count, k);
    store(unbiased.ptr<float>() + i, squares / (count - V(1.0f)), k);
  });
}

template <class Isa>
void running_statistics(Isa, Tensor mean, Tensor var, View batch_mean, View batch_var, float momentum) {
  using V = simd::Vec<Isa>;
  using namespace simd;
  const auto move = [&](float* to, const float* from) {
    loop<Isa>(mean.size(), [&](std::int64_t i, auto k) {
      store(to + i, fma(V(momentum), load<V>(from + i, k), V(1.0f - momentum) * load<V>(to + i, k)), k);
    });
  };
  move(mean.ptr<float>(), batch_mean.ptr<float>());
  move(var.ptr<float>(), batch_var.ptr<float>());
}

template void batch_statistics(simd::Isa, Pool&, Tensor, Tensor, Tensor, View, Tensor);
template void batch_normalise(simd::Isa, Pool&, const BatchNormForward&);
template void merge_statistics(simd::Isa, Tensor, Tensor, Tensor, View);
template void running_statistics(simd::Isa, Tensor, Tensor, View, View, float);

}  // namespace hpcdl::cpu
