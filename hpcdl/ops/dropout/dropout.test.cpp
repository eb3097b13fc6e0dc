#include "hpcdl/ops/dropout/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Expected;
using testing::Values;

const auto spec = testing::op<Dropout>({
    .cases =
        {
            {.in = {{1}}, .args = {0.5f, 3}},
            {.in = {{3, 7}}, .args = {0.1f, 1}},
            {.in = {{5, 1023}}, .args = {0.9f, 2}},
            {.in = {{1, 20000}}, .args = {0.3f, std::uint64_t{1} << 40}},
            {.in = {{2, 9}}, .args = {0, 1}},
            {.in = {{0, 8}}, .args = {0.5f, 1}},
            {.in = {{3, 64}}, .args = {0.5f, 1, 2}},
            {.in = {{3, 67}}, .args = {0.4f, 1, 5}},
            {.in = {{4, 3, 7}}, .args = {0.4f, 1, 3, {.rows = 2, .all = 6, .first = 1, .second = 4}}},
            {.in = {{2, 64}}, .args = {0.4f, 1, 0, {.rows = 1, .all = 2, .first = 0, .second = 1}}},
        },
    .reference =
        [](std::span<Expected> out, std::span<const Values> in, const Dropout::Args& a) {
          const Rng rng{1234, a.rng_stream};  // the test fixture runs with seed 1234 in step 0
          const auto& c = a.chunks;
          const auto index = [&](std::int64_t i) {
            if (c.rows == 0) return a.part * in[0].size() + i;
            const auto chunk = in[0].size() / (2 * c.rows), which = i / chunk;
            return ((a.part * c.rows + which % c.rows) * c.all + (which < c.rows ? c.first : c.second)) * chunk +
                   i % chunk;
          };
          for (std::int64_t i = 0; i < in[0].size(); ++i)
            out[0][i] = rng.uniform(static_cast<std::uint64_t>(index(i))) < a.p
                            ? 0
                            : in[0][i] / (1.0 - static_cast<double>(a.p));
        },
    .condition = 10,  // 1 / (1 - 0.9) amplifies the rounding of p itself
});

std::vector<float> drop(const StepParams& at, const Dropout::Args& a, std::int64_t n) {
  OwnedTensor x(Spec{{n}, DType::f32}), y(x.tensor.spec());
  for (std::int64_t i = 0; i < n; ++i) x.tensor.ptr<float>()[i] = 1;
  Pool pool(1);
  StepParams params = at;
  Stream s(pool, &params);
  Dropout::forward(s, y.tensor, x.tensor, a);
  return {y.tensor.ptr<float>(), y.tensor.ptr<float>() + n};
}

TEST(dropout, masks_differ_by_seed_stream_and_step_and_have_the_right_density) {
  constexpr std::int64_t n = 100000;
  const auto base = drop({.seed = 1}, {0.2f, 1}, n);
  const auto differ = [&](const std::vector<float>& other) {
    int count = 0;
    for (std::size_t i = 0; i < base.size(); ++i) count += base[i] != other[i];
    return count / static_cast<double>(n);
  };
  EXPECT_EQ(differ(drop({.seed = 1}, {0.2f, 1}, n)), 0);
  // Independent masks differ in 2 p (1 - p) = 0.32 of the elements; 5 standard deviations are 0.0074.
  for (const auto& other :
       {drop({.seed = 2}, {0.2f, 1}, n), drop({.seed = 1}, {0.2f, 2}, n), drop({.seed = 1, .step = 1}, {0.2f, 1}, n)})
    EXPECT_NEAR(differ(other), 0.32, 0.0074);
  double sum = 0;
  for (float v : base) sum += static_cast<double>(v);
  EXPECT_NEAR(sum / n, 1, 5 * std::sqrt(0.2 / 0.8 / n));
}

TEST(dropout, parts_of_a_batch_draw_what_the_whole_batch_draws) {
  for (const std::int64_t n : {64, 65, 1001}) {
    const auto whole = drop({.seed = 7, .step = 3}, {0.3f, 2}, 3 * n);
    for (std::int64_t part = 0; part < 3; ++part)
      EXPECT_EQ(drop({.seed = 7, .step = 3}, {0.3f, 2, part}, n),
                std::vector(whole.begin() + part * n, whole.begin() + (part + 1) * n))
          << n << " " << part;
  }
}

TEST(dropout, refuses_impossible_probabilities) {
  const Spec x{{4}, DType::f32};
  EXPECT_THROW(Dropout::infer(x, {1, 0}), Error);
  EXPECT_THROW(Dropout::infer(x, {-0.1f, 0}), Error);
  EXPECT_THROW(Dropout::infer(x, {NAN, 0}), Error);
  EXPECT_THROW(Dropout::infer(x, {0.5f, 0, -1}), Error);
  const Spec rows{{4, 2}, DType::f32};
  EXPECT_EQ(Dropout::infer(rows, {0.5f, 0, 0, {.rows = 2, .all = 4, .first = 1, .second = 2}}), rows);
  for (const Dropout::Chunks wrong : {Dropout::Chunks{1, 4, 1, 2}, {2, 4, 1, 4}, {2, 4, -1, 2}, {2, 1, 0, 0}})
    EXPECT_THROW(Dropout::infer(rows, {0.5f, 0, 0, wrong}), Error);
}

TEST(dropout, zero_records_nothing) {
  Graph g;
  const Var x = g.input("x", {{4}, DType::f32});
  EXPECT_EQ(dropout(x, 0).id(), x.id());
  EXPECT_EQ(g.position(), 0);
}

}  // namespace
}  // namespace hpcdl
