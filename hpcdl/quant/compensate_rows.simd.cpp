#include "hpcdl/quant/compensate_rows.h"

#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kBlock = quant::kIndicesTogether;

/// y += a x, of separate memory
void add_scaled(double* __restrict y, double a, const double* __restrict x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

}  // namespace

template <class Isa> bool cholesky(Isa, Pool& pool, double* a, std::int64_t k, double* columns) {
  const auto row = [&](std::int64_t i) { return a + i * k; };
  for (std::int64_t begin = 0; begin < k; begin += kBlock) {
    const auto end = k - begin < kBlock ? k : begin + kBlock;
    const auto solve = [&](std::int64_t i, std::int64_t last) {  // columns [begin, last) of row i
      for (auto j = begin; j < last; ++j) {
        double sum = row(i)[j];
        for (auto c = begin; c < j; ++c) sum -= row(i)[c] * row(j)[c];
        row(i)[j] = sum / row(j)[j];
      }
    };
    for (auto i = begin; i < end; ++i) {
      solve(i, i);
      double left = row(i)[i];
      for (auto c = begin; c < i; ++c) left -= row(i)[c] * row(i)[c];
      if (!(left > 0)) return false;
      row(i)[i] = __builtin_sqrt(left);
    }
    parallel_for(pool, k - end, 16, [&](std::int64_t from, std::int64_t to) {
      for (auto i = end + from; i < end + to; ++i) {
        solve(i, end);
        for (auto c = begin; c < end; ++c) columns[(c - begin) * k + i] = row(i)[c];
      }
    });
    parallel_for(pool, k - end, 16, [&](std::int64_t from, std::int64_t to) {
      for (auto i = end + from; i < end + to; ++i)
        for (auto c = begin; c < end; ++c)
          add_scaled(row(i) + end, -row(i)[c], columns + (c - begin) * k + end, i + 1 - end);
    });
  }
  return true;
}

template <class Isa>
void compensate_rows(Isa, float* weights, std::int64_t row, std::int64_t count, const quant::OrderedFactor& f,
                     quant::Rounder& rounder, double* sums, double* errors) {
  const auto k = f.k;
  for (std::int64_t i = 0; i < count * k; ++i) sums[i] = 0;
  for (auto end = k; end > 0;) {
    const auto begin = (end - 1) / kBlock * kBlock;
    for (std::int64_t r = 0; r < count; ++r) {
      double *sum = sums + r * k, *error = errors + r * kBlock;
      for (auto i = end - 1; i >= begin; --i) {
        const double* l = f.l + i * k;
        float& w = weights[r * k + f.order[i]];
        const double target = static_cast<double>(w) + sum[i] / l[i];
        const float value = rounder.round(row + r, f.order[i], static_cast<float>(target));
        error[i - begin] = static_cast<double>(w) - static_cast<double>(value);
        w = value;
        add_scaled(sum + begin, error[i - begin], l + begin, i - begin);
      }
    }
    for (std::int64_t r = 0; r < count; ++r)
      for (auto i = begin; i < end; ++i) add_scaled(sums + r * k, errors[r * kBlock + i - begin], f.l + i * k, begin);
    end = begin;
  }
}

template bool cholesky(simd::Isa, Pool&, double*, std::int64_t, double*);
template void compensate_rows(simd::Isa, float*, std::int64_t, std::int64_t, const quant::OrderedFactor&,
                              quant::Rounder&, double*, double*);

}  // namespace hpcdl::cpu
