#include "hpcdl/ops/logprobs/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

float normal(std::uint64_t i) { return static_cast<float>(Rng{1, 2}.normal(i)); }

/// The results of rows with these logits, row by row.
std::vector<TokenLogprob> written(Stream& s, const std::vector<float>& logits, const std::vector<std::int32_t>& wanted,
                                  const std::vector<std::int32_t>& found, std::int64_t most) {
  const auto rows = std::ssize(wanted), cols = std::ssize(logits) / rows;
  const Spec ids{{rows}, DType::i32};
  OwnedTensor x(Spec{{rows, cols}, DType::f32}, s.device()), a(ids, s.device()), b(ids, s.device()),
      to(Logprobs::result(rows, most), s.device());
  copy(s, x.tensor, View(logits.data(), x.tensor.spec()));
  copy(s, a.tensor, View(wanted.data(), ids));
  copy(s, b.tensor, View(found.data(), ids));
  Logprobs::write(s, to.tensor, x.tensor, a.tensor, b.tensor);
  std::vector<TokenLogprob> back(static_cast<std::size_t>(rows * (1 + most)));
  copy(s, Tensor(back.data(), to.tensor.spec()), to.tensor);
  s.synchronize();
  return back;
}

/// In double, in the order of the ids after a stable sort.
std::vector<TokenLogprob> reference(std::span<const float> row, std::int32_t id, std::int64_t most) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float v : row) sum += std::exp(static_cast<double>(v) - top);
  const auto of = [&](std::int32_t i) {
    return TokenLogprob{
        i, static_cast<float>(static_cast<double>(row[static_cast<std::size_t>(i)]) - top - std::log(sum))};
  };
  std::vector<std::int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
  std::vector<TokenLogprob> list{of(id)};
  for (std::int64_t i = 0; i < most; ++i)
    list.push_back(i < std::ssize(ids) ? of(ids[static_cast<std::size_t>(i)]) : TokenLogprob{-1, -INFINITY});
  return list;
}

/// Flat, steep, full of equal values, and mostly -infinity.
float logit(int kind, std::int64_t column, std::uint64_t i) {
  const float v = normal(i);
  return kind == 0 ? v : kind == 1 ? 40 * v : kind == 2 ? std::floor(2 * v) : column % 3 ? -INFINITY : 3 * v;
}

TEST(logprobs, are_those_of_the_softmax) {
  testing::on_every_device([](Stream& s) {
    std::uint64_t value = 0;
    for (const std::int64_t cols : {1, 5, 33, 1000, 50257, 128256})
      for (const std::int64_t most : {0, 1, 20, 64}) {
        std::vector<float> logits;
        std::vector<std::int32_t> wanted, found;
        for (int row = 0; row < 5; ++row) {
          for (std::int64_t i = 0; i < cols; ++i) logits.push_back(logit(row % 4, i, value++));
          wanted.push_back(row % 2 ? -1 : static_cast<std::int32_t>(row * 5 % cols));
          found.push_back(static_cast<std::int32_t>((row * 7 + 3) % cols));
        }
        const auto got = written(s, logits, wanted, found, most);
        for (std::size_t r = 0; r < wanted.size(); ++r) {
          const auto want =
              reference(std::span(logits).subspan(r * static_cast<std::size_t>(cols), static_cast<std::size_t>(cols)),
                        wanted[r] < 0 ? found[r] : wanted[r], most);
          for (std::size_t i = 0; i < want.size(); ++i) {
            const auto& g = got[r * want.size() + i];
            EXPECT_EQ(g.id, want[i].id) << cols << " columns, row " << r << ", place " << i;
            if (std::isinf(want[i].logprob)) EXPECT_EQ(g.logprob, want[i].logprob);
            // A difference of two logits is rounded once; a sum of V terms of at most 1 as a float, V / 1024 in turn.
            else
              EXPECT_NEAR(
                  g.logprob, want[i].logprob,
                  std::fabs(want[i].logprob) * 0x1p-22 + (20 + std::sqrt(static_cast<double>(cols) / 1024)) * 0x1p-23)
                  << cols << " columns, row " << r << ", place " << i;
          }
        }
      }
  });
}

TEST(logprobs, of_a_row_do_not_depend_on_other_rows) {
  testing::on_every_device([](Stream& s) {
    constexpr std::int64_t kCols = 32001;
    std::vector<float> logits;
    for (std::uint64_t i = 0; i < 70 * kCols; ++i) logits.push_back(normal(i));
    const std::vector<std::int32_t> none(70, -1), ids(70, 5);
    const auto all = written(s, logits, none, ids, 8);
    for (const std::size_t r : {std::size_t{0}, std::size_t{33}, std::size_t{69}}) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r) * kCols;
      const auto one = written(s, {begin, begin + kCols}, {-1}, {5}, 8);
      for (std::size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(one[i].id, all[r * one.size() + i].id);
        EXPECT_EQ(one[i].logprob, all[r * one.size() + i].logprob);
      }
    }
  });
}

TEST(logprobs, are_not_a_number_where_there_is_no_softmax) {
  testing::on_every_device([](Stream& s) {
    std::vector<float> logits(6 * 1500, 1.0f);
    const auto row = [&](std::size_t r) { return std::span(logits).subspan(r * 1500, 1500); };
    row(0)[700] = NAN;
    row(1)[1499] = INFINITY;
    std::ranges::fill(row(2), -INFINITY);
    const auto got = written(s, logits, {3, 3, 3, 1500, -1, -1}, {0, 0, 0, 0, -702, 1499}, 2);
    for (std::size_t i = 0; i < 15; ++i) EXPECT_TRUE(std::isnan(got[i].logprob)) << i;
    EXPECT_NEAR(got[15].logprob, -std::log(1500.0), 1e-5) << "the last row has one";
    EXPECT_EQ(got[16].id, 0);
    EXPECT_EQ(got[17].id, 1);
  });
}

TEST(logprobs, refuse_what_does_not_fit) {
  const Spec ids{{3}, DType::i32}, logits{{3, 4}, DType::f32};
  Logprobs::check(Logprobs::result(3, 0), logits, ids, ids);
  Logprobs::check(Logprobs::result(3, Logprobs::kMost), logits, ids, ids);
  EXPECT_THROW(Logprobs::check(Logprobs::result(3, Logprobs::kMost + 1), logits, ids, ids), Error);
  EXPECT_THROW(Logprobs::check(Logprobs::result(2, 4), logits, ids, ids), Error);
  EXPECT_THROW(Logprobs::check(Logprobs::result(3, 4), Spec{{3, 4}, DType::bf16}, ids, ids), Error);
  EXPECT_THROW(Logprobs::check(Logprobs::result(3, 4), logits, Spec{{2}, DType::i32}, ids), Error);
  EXPECT_THROW(Logprobs::check(Logprobs::result(3, 4), logits, ids, Spec{{3}, DType::f32}), Error);
  EXPECT_THROW(Logprobs::check(Spec{{3, 4}, DType::i32}, logits, ids, ids), Error);
}

}  // namespace
}  // namespace hpcdl
