#include "hpcdl/ops/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "hpcdl/rng.h"
#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

/// The ids of rows with these logits; counts the rules' indices on.
std::vector<float> sampled(Stream& s, const std::vector<float>& logits, std::vector<SampleRule>& rules) {
  const auto rows = std::ssize(rules), cols = std::ssize(logits) / rows;
  OwnedTensor x(Spec{{rows, cols}, DType::f32}, s.device()), ids(Spec{{rows}, DType::i32}, s.device()),
      words(Spec{{rows, Sample::kRuleWords}, DType::i32}, s.device());
  OwnedTensor back(words.tensor.spec());
  copy(s, x.tensor, View(logits.data(), x.tensor.spec()));
  copy(s, words.tensor, View(rules.data(), words.tensor.spec()));
  Sample::choose(s, ids.tensor, x.tensor, words.tensor);
  copy(s, back.tensor, words.tensor);
  s.synchronize();
  std::memcpy(rules.data(), back.tensor.data(), static_cast<std::size_t>(back.tensor.bytes()));
  return testing::on_host(s, ids.tensor);
}
std::vector<float> largest(Stream& s, const std::vector<float>& logits, std::int64_t rows = 1) {
  std::vector<SampleRule> rules(static_cast<std::size_t>(rows));
  return sampled(s, logits, rules);
}

float normal(std::uint64_t i) { return static_cast<float>(Rng{1, 2}.normal(i)); }

TEST(sample, takes_the_first_of_the_largest_without_a_temperature) {
  testing::on_every_device([](Stream& s) {
    for (const std::int64_t cols : {1, 7, 1024, 8193, 32001}) {
      std::vector<float> x(static_cast<std::size_t>(3 * cols)), want;
      for (std::int64_t r = 0; r < 3; ++r) {
        float* row = x.data() + r * cols;
        for (std::int64_t i = 0; i < cols; ++i)  // many equal values
          row[i] = std::floor(normal(static_cast<std::uint64_t>(r * cols + i)) * 4) - 9;
        std::int64_t best = 0;
        for (std::int64_t i = 1; i < cols; ++i)
          if (row[i] > row[best]) best = i;
        want.push_back(static_cast<float>(best));
      }
      EXPECT_EQ(largest(s, x, 3), want) << cols;
    }
    EXPECT_EQ(largest(s, {-1, -0.0f, 0, -0.0f}), std::vector<float>{1}) << "0 and -0 are equal";
  });
}

TEST(sample, says_where_a_row_has_no_largest) {
  testing::on_every_device([](Stream& s) {
    std::vector<float> x(3000, 1.0f);
    x[2500] = NAN;
    EXPECT_EQ(largest(s, x), std::vector<float>{-2501});
    x[1300] = INFINITY;
    EXPECT_EQ(largest(s, x), std::vector<float>{-1301});
    x[0] = -NAN;
    EXPECT_EQ(largest(s, x), std::vector<float>{-1});
    EXPECT_EQ(largest(s, {-INFINITY, -INFINITY, 1, -INFINITY}, 2), (std::vector<float>{kNoToken, 0}));
  });
}

// All devices against RowSampler, for distributions that are flat, steep, full of equal values, and cut short.
TEST(sample, draws_the_tokens_of_the_host) {
  const SampleRule rules[] = {{.temperature = 1},
                              {.temperature = 0.3f},
                              {.temperature = 30},
                              {.temperature = 1, .top_k = 1},
                              {.temperature = 1, .top_k = 40},
                              {.temperature = 1, .top_k = 2000},
                              {.temperature = 1, .top_p = 0.9f},
                              {.temperature = 1, .top_p = 0.01f},
                              {.temperature = 1, .top_p = 0.9999f},
                              {.temperature = 2, .top_p = 0.8f, .top_k = 50},
                              {.temperature = 1, .min_p = 0.05f},
                              {.temperature = 0.7f, .top_p = 0.95f, .min_p = 0.01f, .top_k = 64},
                              {.temperature = 1, .min_p = 1},
                              {.temperature = 1, .typical_p = 0.9f},
                              {.temperature = 0.6f, .typical_p = 0.2f},
                              {.temperature = 1, .typical_p = 0.0001f},
                              {.temperature = 1.5f, .typical_p = 0.95f, .top_k = 50},
                              {.temperature = 1, .top_p = 0.9f, .typical_p = 0.5f},
                              {.temperature = 1, .top_p = 0.95f, .min_p = 0.001f, .typical_p = 0.7f, .top_k = 300}};
  testing::on_every_device([&](Stream& s) {
    std::uint64_t value = 0;
    for (const std::int64_t cols : {1, 5, 33, 1000, 50257, 128256})
      for (const int kind : {0, 1, 2, 3}) {
        std::vector<float> x;
        std::vector<SampleRule> given;
        std::vector<std::vector<float>> rows;
        for (const auto& rule : rules) {
          std::vector<float> row;
          for (std::int64_t i = 0; i < cols; ++i) {
            const float v = normal(value++);
            row.push_back(kind == 0   ? v
                          : kind == 1 ? 6 * v
                          : kind == 2 ? std::floor(2 * v)
                          : i % 3     ? -INFINITY
                                      : 3 * v);
          }
          x.insert(x.end(), row.begin(), row.end());
          rows.push_back(std::move(row));
          given.push_back(rule);
          given.back().seed = 77 + value, given.back().index = static_cast<std::uint64_t>(kind);
        }
        RowSampler host;
        for (std::uint64_t draw = 0; draw < 4; ++draw) {
          std::vector<float> want;
          for (std::size_t r = 0; r < rows.size(); ++r)
            want.push_back(static_cast<float>(host.sample(rows[r], largest_logit(rows[r]), given[r])));
          EXPECT_EQ(sampled(s, x, given), want) << cols << " columns of kind " << kind << ", draw " << draw;
          EXPECT_EQ(given[0].index, static_cast<std::uint64_t>(kind) + draw + 1);
        }
      }
  });
}

TEST(sample, refuses_what_does_not_fit) {
  const Spec ids{{3}, DType::i32}, logits{{3, 4}, DType::f32}, rules{{3, Sample::kRuleWords}, DType::i32};
  Sample::check(ids, logits, rules);
  EXPECT_THROW(Sample::check(Spec{{2}, DType::i32}, logits, rules), Error);
  EXPECT_THROW(Sample::check(Spec{{3}, DType::f32}, logits, rules), Error);
  EXPECT_THROW(Sample::check(ids, Spec{{3, 4}, DType::bf16}, rules), Error);
  EXPECT_THROW(Sample::check(ids, logits, Spec{{3, 9}, DType::i32}), Error);
}

}  // namespace
}  // namespace hpcdl
