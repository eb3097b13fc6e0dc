#include "hpcdl/quant/compensate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/quant/compensate_rows.h"
#include "hpcdl/quant/rounding_sum.h"

namespace hpcdl::quant {
namespace {

/// The inputs in ascending order of their moments: the last one is rounded first.
std::vector<std::int64_t> ascending(const InputMoments& x) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(x.k()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return x.at(i, i); });
  return order;
}

/// L of the damped moments, lower triangular, (K, K), of which the upper triangle holds anything.
std::vector<double> factor(Pool& pool, const InputMoments& x, std::span<const std::int64_t> order, double damping,
                           const FloatRows& w) {
  const auto k = x.k();
  double trace = 0;
  for (std::int64_t i = 0; i < k; ++i) trace += x.at(i, i);
  require(std::isfinite(trace), "quant",
          "{}: its inputs on the calibration text are NaN or infinite: check the model with hpcdl inspect --check",
          w.name());
  const double added = trace > 0 ? damping * trace / static_cast<double>(k) : 1;
  std::vector<double> h(static_cast<std::size_t>(k * k));
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j <= i; ++j)
      h[static_cast<std::size_t>(i * k + j)] =
          x.at(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(j)]) + (i == j ? added : 0);
  std::vector<double> scratch(static_cast<std::size_t>(kIndicesTogether * k));
  bool positive = false;
  simd::with_isa([&](auto isa) { positive = cpu::cholesky(isa, pool, h.data(), k, scratch.data()); });
  require(positive, "quant",
          "{}: the moments of its inputs on the calibration text are not positive: give more text, or leave the matrix "
          "as it is (quantize --keep)",
          w.name());
  return h;
}

OwnedTensor rotated(Pool& pool, const FloatRows& rows, void (*turn)(double*, std::int64_t)) {
  const auto k = rows.k();
  OwnedTensor turned({{rows.n(), k}, DType::f32});
  for_each_row(pool, rows, [&](std::int64_t r, const float* x) {
    std::vector<double> row(x, x + k);
    turn(row.data(), k);
    for (std::int64_t i = 0; i < k; ++i)
      turned.tensor.ptr<float>()[r * k + i] = static_cast<float>(row[static_cast<std::size_t>(i)]);
  });
  return turned;
}

}  // namespace

OwnedTensor compensate(Pool& pool, const FloatRows& w, const InputMoments& inputs, Rounder& rounder, double damping) {
  const auto n = w.n(), k = w.k();
  require(inputs.k() == k, "quant", "{}: it has {} inputs, the moments are those of {}", w.name(), k, inputs.k());
  OwnedTensor values({{n, k}, DType::f32});
  for_each_row(pool, w, [&](std::int64_t r, const float* x) { std::copy_n(x, k, values.tensor.ptr<float>() + r * k); });
  const auto order = ascending(inputs);
  const auto l = factor(pool, inputs, order, damping, w);
  const OrderedFactor f{l.data(), order.data(), k};
  parallel_for(pool, (n + kRowsTogether - 1) / kRowsTogether, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> sums(static_cast<std::size_t>(kRowsTogether * k)), scratch(kRowsTogether * kIndicesTogether);
    for (auto r = begin * kRowsTogether; r < std::min(end * kRowsTogether, n); r += kRowsTogether)
      simd::with_isa([&](auto isa) {
        cpu::compensate_rows(isa, values.tensor.ptr<float>() + r * k, r, std::min(kRowsTogether, n - r), f, rounder,
                             sums.data(), scratch.data());
      });
  });
  return values;
}

Compensated quantize_compensated(Pool& pool, const Compensation& codec, MatrixSource source, const InputMoments& inputs,
                                 const nn::CodecOptions& options, bool activation_scales, nn::RoundingError& error) {
  std::vector<float> importance;
  if (activation_scales) importance = inputs.squares();
  source.importance = importance;
  Compensated result{codec.quantize(pool, source, options, error), {}};
  const auto rounder = codec.rounder(result.parts, options);
  const FloatRows rows(source.w, source.transposed, source.name);
  if (codec.rotate) {
    const auto turned = rotated(pool, rows, codec.rotate);
    const auto values =
        compensate(pool, FloatRows(turned.tensor, false, source.name), inputs.rotated(codec.rotate), *rounder);
    result.values = rotated(pool, FloatRows(values.tensor, false, source.name), codec.rotate_back);
  } else {
    result.values = compensate(pool, rows, inputs, *rounder);
  }
  const auto* v = result.values.tensor.ptr<float>();
  error = rounding_error(pool, rows, [&](std::int64_t r, std::int64_t k) { return v[r * rows.k() + k]; });
  return result;
}

}  // namespace hpcdl::quant
