// Gradients of layer_norm with the residual's, for rows that are not a multiple of 16 bytes, around the limits of the
// teams of threads that handle them on a GPU: against loops in double, with the same bits for any alignment and in every
// run, and nothing written around the rows.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/testing/odd_rows.h"

namespace hpcdl {
namespace {

using testing::Placed;

double wide(float x) { return static_cast<double>(x); }

/// Statistics of rows, and what the gradients are computed from.
template <class T> struct Operands {
  OwnedTensor gamma, mean, rstd;

  Operands(Stream& s, Placed<T>& h)
      : gamma(Spec{{h.cols}, dtype_of<T>}), mean(Spec{{h.rows}, DType::f32}), rstd(mean.tensor.spec()) {
    for (std::int64_t c = 0; c < h.cols; ++c)
      gamma.tensor.ptr<T>()[c] = T(static_cast<float>(Rng{9, 1}.normal(static_cast<std::uint64_t>(c))));
    for (std::int64_t r = 0; r < h.rows; ++r) {
      double sum = 0, squares = 0;
      const auto n = static_cast<double>(h.cols);
      for (std::int64_t c = 0; c < h.cols; ++c) sum += wide(static_cast<float>(h.at(r, c))) / n;
      for (std::int64_t c = 0; c < h.cols; ++c) squares += std::pow(wide(static_cast<float>(h.at(r, c))) - sum, 2) / n;
      mean.tensor.ptr<float>()[r] = static_cast<float>(sum);
      rstd.tensor.ptr<float>()[r] = static_cast<float>(1 / std::sqrt(squares + 1e-5));
    }
    for (auto* t : {&gamma, &mean, &rstd}) {
      OwnedTensor there(t->tensor.spec(), s.device());
      copy(s, there.tensor, t->tensor);
      s.synchronize();
      device.push_back(std::move(there));
    }
  }
  std::vector<OwnedTensor> device;
};

template <class T> std::vector<T> values(Stream& s, const OwnedTensor& t) {
  OwnedTensor host(t.tensor.spec());
  copy(s, host.tensor, t.tensor);
  s.synchronize();
  return {host.tensor.ptr<T>(), host.tensor.ptr<T>() + host.tensor.size()};
}

/// `dh`: also a gradient that reaches h from elsewhere. `write`: of dx.
template <class T> void expect_right(Stream& s, std::int64_t rows, std::int64_t cols, bool with_dh, Write write) {
  SCOPED_TRACE(to_string(Spec{{rows, cols}, dtype_of<T>}) + (with_dh ? " with dh" : ""));
  const double rounding = std::is_same_v<T, float> ? 1e-5 : std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-10;
  std::vector<T> first_dx, first_dgamma, first_dbeta;
  for (const auto& [apart, begin] :
       {std::pair<std::int64_t, std::int64_t>{cols, 16}, {cols, 16}, {cols, 19}, {cols + 5, 16}}) {
    SCOPED_TRACE(::testing::Message() << "rows " << apart << " apart, after " << begin);
    Placed<T> h(s, cols, apart, begin, rows, 1), dy(s, cols, apart, begin, rows, 2), dh(s, cols, apart, begin, rows, 3),
        dx(s, cols, apart, begin, rows, 4);
    Operands<T> o(s, h);
    const OwnedTensor dgamma(o.gamma.tensor.spec(), s.device()), dbeta(o.gamma.tensor.spec(), s.device()),
        partial(detail::norm_scratch({{rows, cols}, dtype_of<T>}), s.device());
    AddLayerNorm::backward(s, Grad(dx.matrix(s), write), {}, Grad(dgamma.tensor, Write::overwrite),
                           Grad(dbeta.tensor, Write::overwrite), o.device[0].tensor, h.matrix(s), o.device[1].tensor,
                           o.device[2].tensor, with_dh ? View(dh.matrix(s)) : View(), dy.matrix(s), partial.tensor, {});
    std::vector<double> before;
    for (std::int64_t i = 0; i < rows * cols; ++i)
      before.push_back(write == Write::accumulate ? wide(static_cast<float>(dx.at(i / cols, i % cols))) : 0);
    const auto got = dx.results(s), got_gamma = values<T>(s, dgamma), got_beta = values<T>(s, dbeta);
    dx.expect_untouched_around();
    if (first_dx.empty()) {
      first_dx = got, first_dgamma = got_gamma, first_dbeta = got_beta;
      std::vector<double> of_gamma(got_gamma.size()), of_beta(got_gamma.size()), size(got_gamma.size());
      const auto n = static_cast<double>(cols);
      for (std::int64_t r = 0; r < rows; ++r) {
        const double mean = wide(o.mean.tensor.template ptr<float>()[r]),
                     rstd = wide(o.rstd.tensor.template ptr<float>()[r]);
        const auto normal = [&](std::int64_t c) { return (wide(static_cast<float>(h.at(r, c))) - mean) * rstd; };
        const auto grad = [&](std::int64_t c) { return wide(static_cast<float>(dy.at(r, c))); };
        const auto scaled = [&](std::int64_t c) {
          return grad(c) * wide(static_cast<float>(o.gamma.tensor.template ptr<T>()[c]));
        };
        double g = 0, gn = 0, g_size = 0, gn_size = 0;
        for (std::int64_t c = 0; c < cols; ++c) {
          g += scaled(c) / n, gn += scaled(c) * normal(c) / n;
          g_size += std::fabs(scaled(c)) / n, gn_size += std::fabs(scaled(c) * normal(c)) / n;
        }
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto i = static_cast<std::size_t>(r * cols + c), j = static_cast<std::size_t>(c);
          const double added = before[i] + (with_dh ? wide(static_cast<float>(dh.at(r, c))) : 0);
          const double want = rstd * (scaled(c) - g - normal(c) * gn) + added,
                       terms = rstd * (std::fabs(scaled(c)) + g_size + std::fabs(normal(c)) * gn_size);
          ASSERT_NEAR(static_cast<double>(static_cast<float>(got[i])), want,
                      rounding * (std::fabs(want) + std::fabs(added)) + 1e-5 * terms)
              << "row " << r << ", column " << c;
          of_gamma[j] += grad(c) * normal(c), of_beta[j] += grad(c);
          size[j] += std::fabs(grad(c)) * (1 + std::fabs(normal(c)));
        }
      }
      for (std::size_t c = 0; c < of_gamma.size(); ++c) {
        ASSERT_NEAR(wide(static_cast<float>(got_gamma[c])), of_gamma[c],
                    rounding * std::fabs(of_gamma[c]) + 1e-5 * size[c])
            << "dgamma " << c;
        ASSERT_NEAR(wide(static_cast<float>(got_beta[c])), of_beta[c],
                    rounding * std::fabs(of_beta[c]) + 1e-5 * size[c])
            << "dbeta " << c;
      }
    }
    EXPECT_EQ(0, std::memcmp(first_dx.data(), got.data(), got.size() * sizeof(T)));
    EXPECT_EQ(0, std::memcmp(first_dgamma.data(), got_gamma.data(), got_gamma.size() * sizeof(T)));
    EXPECT_EQ(0, std::memcmp(first_dbeta.data(), got_beta.data(), got_beta.size() * sizeof(T)));
  }
}

class OddNormGradients : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(OddNormGradients, of_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device{DeviceKind::cuda, 0}, pool);
  expect_right<bf16>(s, 150, GetParam(), false, Write::overwrite);
  expect_right<f16>(s, 9, GetParam(), true, Write::overwrite);  // a block for each row
  expect_right<float>(s, 70, GetParam() / 2 | 1, true, Write::accumulate);
}

// In elements of 16 bits; the last ones have no team. Whole packs are here, too, with other teams.
INSTANTIATE_TEST_SUITE_P(Lengths, OddNormGradients,
                         ::testing::Values(3, 57, 249, 257, 505, 761, 1017, 1529, 2041, 3065, 4089, 5113, 8185, 8193,
                                           8200, 10240, 12281, 12296, 16377, 16400));

}  // namespace
}  // namespace hpcdl
