#include "hpcdl/quant/factors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/quant/blast.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::quant {
namespace {

constexpr std::int64_t kUsualBlocks = 4, kMostUsualBlocks = 16;

std::int64_t usual_blocks(std::int64_t common) {
  std::int64_t best = 0;
  for (std::int64_t b = 2; b <= kMostUsualBlocks; ++b)
    if (common % b == 0 && (best == 0 || std::abs(b - kUsualBlocks) < std::abs(best - kUsualBlocks))) best = b;
  return best;
}

std::string divisors(std::int64_t n) {
  std::string list;
  for (std::int64_t b = 2; b <= std::min<std::int64_t>(n, 256); ++b)
    if (n % b == 0) list += fmt::format("{}{}", list.empty() ? "" : ", ", b);
  return list;
}

/// Writes the factors of the nearest matrix of rank `rank` to W: column t of `output`, whose elements are at
/// output[row * output_stride + t], and row t of `input`, at input + t * input_stride.
void nearest(Pool& pool, const WeighedMatrix& w, std::int64_t rank, float* output, std::int64_t output_stride,
             float* input, std::int64_t input_stride) {
  const auto u = leading_outputs(pool, w, rank);
  std::vector<double> v(static_cast<std::size_t>(rank * w.columns));
  simd::with_isa([&](auto isa) {
    cpu::wide_product(isa, pool, v.data(), w.columns, {u.data(), w.rows}, {w.values, w.stride, 1, true}, rank,
                      w.columns, w.rows, 1, false);
  });
  for (std::int64_t t = 0; t < rank; ++t) {
    const double* row = v.data() + t * w.columns;
    const double length = std::sqrt(std::inner_product(row, row + w.columns, row, 0.0)), root = std::sqrt(length);
    for (std::int64_t i = 0; i < w.rows; ++i)
      output[i * output_stride + t] = static_cast<float>(root * u[static_cast<std::size_t>(t * w.rows + i)]);
    for (std::int64_t j = 0; j < w.columns; ++j)
      input[t * input_stride + j] = length > 0 ? static_cast<float>(row[j] / root) : 0;
  }
}

Factors monarch(Pool& pool, const WeighedMatrix& w, const nn::Structure& s) {
  const auto B = s.blocks, r = s.rank, P = w.columns / B, M = w.rows / B;
  Factors f;
  f.input = OwnedTensor({{B, B * r, P}, DType::f32}), f.output = OwnedTensor({{B, M, B * r}, DType::f32});
  for (std::int64_t i = 0; i < B; ++i)
    for (std::int64_t j = 0; j < B; ++j) {
      const WeighedMatrix part{.values = w.values + (s.strided ? i : i * M) * w.stride + j * P,
                               .rows = M,
                               .columns = P,
                               .stride = s.strided ? B * w.stride : w.stride};
      nearest(pool, part, r, f.output.tensor.ptr<float>() + i * M * B * r + j * r, B * r,
              f.input.tensor.ptr<float>() + (j * B * r + i * r) * P, P);
    }
  return f;
}

OwnedTensor as_f32(const OwnedTensor& t) {
  if (!t.tensor) return {};
  OwnedTensor wide({t.tensor.shape(), DType::f32});
  convert_elements(wide.tensor, t.tensor);
  return wide;
}

}  // namespace

nn::Structure structure_for(nn::Method method, std::int64_t out, std::int64_t in, double ratio,
                            std::optional<std::int64_t> blocks, std::string_view name) {
  nn::Structure s{.method = method};
  if (method != nn::Method::svd) {
    const auto common = std::gcd(out, in);
    s.blocks = blocks ? *blocks : usual_blocks(common);
    if (s.blocks < 1 || common % s.blocks != 0 || (blocks && s.blocks > common)) {
      const auto fit = divisors(common);
      fail("compress", "{}: a matrix of {} x {} has no {} equal blocks: {}", name, out, in,
           blocks ? std::to_string(*blocks) : fmt::format("2 to {}", kMostUsualBlocks),
           fit.empty() ? "use --method svd, or leave the layer as it is (--keep)" : "--blocks may be " + fit);
    }
  }
  const auto cost = static_cast<double>(nn::numbers_per_rank(method, out, in, s.blocks));
  const auto all = static_cast<double>(out) * static_cast<double>(in);
  s.rank = static_cast<std::int64_t>(ratio * all / cost);
  require(s.rank >= 1, "compress",
          "{}: a matrix of {} x {} with method {} is at least {:.3g} of its size, and the ratio is {}: use a larger "
          "ratio{}, or leave the layer as it is (--keep)",
          name, out, in, nn::method_name(method), cost / all, ratio, s.blocks > 1 ? ", fewer --blocks" : "");
  const auto most = std::min(out, in) / (method == nn::Method::monarch ? s.blocks : 1);
  s.rank = std::min(s.rank, most);
  return s;
}

Factors factorise(Pool& pool, const WeighedMatrix& w, const nn::Structure& s) {
  if (s.method == nn::Method::monarch) return monarch(pool, w, s);
  Factors f;
  f.input = OwnedTensor({{s.rank, w.columns}, DType::f32}), f.output = OwnedTensor({{w.rows, s.rank}, DType::f32});
  nearest(pool, w, s.rank, f.output.tensor.ptr<float>(), s.rank, f.input.tensor.ptr<float>(), w.columns);
  return s.method == nn::Method::blast ? fit_blast(pool, w, s, f) : std::move(f);
}

OwnedTensor expand(Pool& pool, const Factors& factors, const nn::Structure& s) {
  const OwnedTensor input = as_f32(factors.input), scale = as_f32(factors.scale), output = as_f32(factors.output);
  const auto B = s.blocks, r = s.rank;
  const auto columns = s.method == nn::Method::svd ? input.tensor[1] : B * input.tensor[2];
  const auto rows = s.method == nn::Method::svd ? output.tensor[0] : B * output.tensor[1];
  const auto P = columns / B, M = rows / B, width = s.method == nn::Method::monarch ? B * r : r;
  OwnedTensor w({{rows, columns}, DType::f32});
  std::vector<double> part(static_cast<std::size_t>(M * P)), scaled(static_cast<std::size_t>(M * r));
  for (std::int64_t i = 0; i < B; ++i)
    for (std::int64_t j = 0; j < B; ++j) {
      const float* left = output.tensor.ptr<float>() + i * M * width;
      const float* right = input.tensor.ptr<float>() + j * width * P;
      if (s.method == nn::Method::monarch) left += j * r, right += i * r * P;
      for (std::int64_t m = 0; m < M; ++m)
        for (std::int64_t t = 0; t < r; ++t)
          scaled[static_cast<std::size_t>(m * r + t)] =
              double{left[m * width + t]} *
              (scale.tensor ? double{scale.tensor.ptr<float>()[(t * B + i) * B + j]} : 1.0);
      simd::with_isa([&](auto isa) {
        cpu::wide_product(isa, pool, part.data(), P, {scaled.data(), r}, {right, P, 1, true}, M, P, r, 1, false);
      });
      for (std::int64_t m = 0; m < M; ++m) {
        float* to = w.tensor.ptr<float>() + (s.strided ? m * B + i : i * M + m) * columns + j * P;
        std::transform(part.data() + m * P, part.data() + (m + 1) * P, to,
                       [](double x) { return static_cast<float>(x); });
      }
    }
  return w;
}

}  // namespace hpcdl::quant
