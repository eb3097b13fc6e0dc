#include "hpcdl/ops/expert_mlp/expert_mlp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/core/tolerance.h"
#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

struct Case {
  std::int64_t rows, width, inner, chosen;
  Swiglu::Gate gate = Swiglu::Gate::silu;
};

/// Experts of each row: a third of the rows choose expert 1, as their last one.
std::vector<std::int32_t> choices(const Case& c) {
  std::vector<std::int32_t> list;
  for (std::int64_t r = 0; r < c.rows; ++r)
    for (std::int64_t i = 0; i < c.chosen; ++i)
      list.push_back(i + 1 == c.chosen && r % 3 != 1 ? 1 : static_cast<std::int32_t>(2 + i));
  return list;
}

void expect_expert(Stream& s, const Case& c, DType type, bool in_place) {
  SCOPED_TRACE(fmt::format("{} rows of {}, {} hidden, {}{}", c.rows, c.width, c.inner, dtype_name(type),
                           in_place ? ", in place" : ""));
  const auto values = [&](Shape shape, std::uint64_t stream) { return testing::random_on(s, shape, type, stream); };
  const auto x = values({c.rows, c.width}, 1), base = values({c.rows, c.width}, 2),
             gate = values({c.inner, c.width}, 3), up = values({c.inner, c.width}, 4),
             down = values({c.width, c.inner}, 5);
  const auto weights = testing::random_on(s, {c.rows, c.chosen}, DType::f32, 6);
  const auto list = choices(c);
  OwnedTensor experts({{c.rows, c.chosen}, DType::i32}, s.device()), y(x.tensor.spec(), s.device());
  copy(s, experts.tensor, View(list.data(), experts.tensor.spec()));
  const auto host = [&](const OwnedTensor& t) {
    const auto of = testing::on_host(s, t.tensor);
    return std::vector<double>(of.begin(), of.end());
  };
  const auto xs = host(x), bs = host(base), gs = host(gate), us = host(up), ds = host(down), ws = host(weights);
  const ExpertMlp::Args a{.expert = 1, .gate = c.gate};
  const Spec none;
  const auto specs = ExpertMlp::scratch(base.tensor.spec(), x.tensor.spec(), weights.tensor.spec(),
                                        experts.tensor.spec(), gate.tensor.spec(), none, none, none, up.tensor.spec(),
                                        none, none, none, down.tensor.spec(), none, none, none, a);
  std::vector<OwnedTensor> scratch;
  for (const auto& spec : specs) scratch.emplace_back(spec, s.device());
  if (in_place) copy(s, y.tensor, base.tensor);
  const View from = in_place ? View(y.tensor) : View(base.tensor);
  ExpertMlp::forward(s, y.tensor, from, x.tensor, weights.tensor, experts.tensor, gate.tensor, {}, {}, {}, up.tensor,
                     {}, {}, {}, down.tensor, {}, {}, {}, scratch[0].tensor, scratch[1].tensor, scratch[2].tensor,
                     scratch[3].tensor, a);
  const auto got = host(y);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t r = 0; r < c.rows; ++r) {
    double weight = 0;
    for (std::int64_t i = 0; i < c.chosen; ++i)
      if (list[at(r * c.chosen + i)] == 1) weight = ws[at(r * c.chosen + i)];
    std::vector<double> hidden(at(c.inner)), sizes(at(c.inner));
    for (std::int64_t n = 0; n < c.inner; ++n) {
      double g = 0, u = 0, g_size = 0, u_size = 0;
      for (std::int64_t k = 0; k < c.width; ++k) {
        const double v = xs[at(r * c.width + k)];
        g += v * gs[at(n * c.width + k)], u += v * us[at(n * c.width + k)];
        g_size += std::fabs(v * gs[at(n * c.width + k)]), u_size += std::fabs(v * us[at(n * c.width + k)]);
      }
      const double t = std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g));
      const double act = c.gate == Swiglu::Gate::silu ? g / (1 + std::exp(-g)) : 0.5 * g * (1 + t);
      hidden[at(n)] = act * u, sizes[at(n)] = 1.2 * g_size * std::fabs(u) + std::fabs(act) * u_size;
    }
    for (std::int64_t k = 0; k < c.width; ++k) {
      double sum = 0, size = 0, rounded = 0;
      for (std::int64_t n = 0; n < c.inner; ++n) {
        const double d = ds[at(k * c.inner + n)];
        sum += hidden[at(n)] * d, size += sizes[at(n)] * std::fabs(d);
        rounded += (std::fabs(hidden[at(n)]) * 3 + sizes[at(n)]) * std::fabs(d);  // g, u and their product are stored
      }
      const double before = bs[at(r * c.width + k)], want = before + weight * sum;
      const double allowed =
          allowed_error(type, std::fabs(before) + std::fabs(weight * sum), static_cast<double>(c.width + c.inner),
                        std::fabs(before) + std::fabs(weight) * size) +
          (type == DType::f32 ? 0 : half_ulp(type) * std::fabs(weight) * rounded);
      if (weight == 0) ASSERT_EQ(got[at(r * c.width + k)], before) << "row " << r;
      else ASSERT_NEAR(got[at(r * c.width + k)], want, allowed) << "row " << r << ", column " << k;
    }
  }
}

void expect_experts(Stream& s) {
  for (const auto& c : {Case{1, 1, 1, 1}, Case{1, 24, 10, 2}, Case{5, 33, 17, 2, Swiglu::Gate::gelu_tanh},
                        Case{70, 64, 40, 3}, Case{2, 7, 100, 1}, Case{40, 129, 65, 2}})
    for (const DType type : {DType::f32, DType::bf16})
      for (const bool in_place : {false, true}) expect_expert(s, c, type, in_place);
}

TEST(expert_mlp, is_added_to_the_rows_that_chose_it_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    Stream s(pool);
    expect_experts(s);
  });
}

TEST(expert_mlp, is_added_to_the_rows_that_chose_it_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  expect_experts(s);
}

}  // namespace
}  // namespace hpcdl
