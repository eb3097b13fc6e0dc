#include "hpcdl/ops/logit_rules/logit_rules.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/device.h"
#include "hpcdl/pool.h"
#include "hpcdl/rng.h"

namespace hpcdl {
namespace {

float normal(std::uint64_t i) { return static_cast<float>(Rng{7, 1}.normal(i)); }

/// Rows with all kinds of rules, the first one with none.
std::vector<RowRules> rules_of(std::int64_t rows, std::int64_t vocab) {
  std::vector<RowRules> all(static_cast<std::size_t>(rows));
  for (std::size_t r = 1; r < all.size(); ++r) {
    auto& rule = all[r];
    rule.penalties = {1.0F + 0.1F * static_cast<float>(r), 0.3F, -0.2F};
    const auto id = [&](std::size_t i) {
      return static_cast<std::int32_t>(i * 7 + r) % static_cast<std::int32_t>(vocab);
    };
    const auto count = std::min<std::size_t>(r * 5, static_cast<std::size_t>((vocab + 6) / 7));
    for (std::size_t i = 0; r % 2 && i < count; ++i) rule.biases.push_back({.id = id(i), .bias = normal(i + r)});
    for (std::size_t i = 0; r % 3 && i < count; ++i)
      rule.counts.push_back({.id = id(i), .times = static_cast<int>(i % 4)});
    rule.counts.push_back({.id = static_cast<std::int32_t>(vocab) + 3, .times = 1});  // no token of the row
    if (r % 4 < 2)
      for (std::int64_t w = 0; w < LogitRules::mask_words(vocab); ++w)
        rule.mask.push_back(w % 5 == 0 ? ~0u
                                       : static_cast<std::uint32_t>(Rng{7, r}.block(static_cast<std::uint64_t>(w))[0]));
  }
  return all;
}

/// The operands of the op, on the host.
struct Operands {
  std::vector<LogitRules::Rule> rules;
  std::vector<std::int32_t> starts;
  std::vector<LogitChange> changes;
  std::vector<std::uint32_t> masks;

  explicit Operands(const std::vector<RowRules>& rows, std::int64_t vocab) {
    std::int32_t mask = 0;
    for (const auto& r : rows) {
      rules.push_back({r.penalties, r.mask.empty() ? -1 : mask++});
      for (const auto* list : {&r.biases, &r.counts}) {
        starts.push_back(static_cast<std::int32_t>(changes.size()));
        changes.insert(changes.end(), list->begin(), list->end());
      }
      masks.insert(masks.end(), r.mask.begin(), r.mask.end());
    }
    starts.push_back(static_cast<std::int32_t>(changes.size()));
    masks.resize(masks.size() + static_cast<std::size_t>(LogitRules::mask_words(vocab)));
  }
};

/// Rows of `stride` floats, of which `vocab` are logits.
std::vector<float> changed(Stream& s, const std::vector<float>& logits, const Operands& o, std::int64_t vocab) {
  const auto rows = std::ssize(o.rules), stride = std::ssize(logits) / rows;
  std::vector<OwnedTensor> memory;
  const auto put = [&](const void* from, const Spec& spec) {
    memory.emplace_back(spec, s.device());
    copy(s, memory.back().tensor, View(from, spec));
    return memory.back().tensor;
  };
  const Tensor all = put(logits.data(), {{rows, stride}, DType::f32});
  const Tensor part(all.data(), {{rows, vocab}, DType::f32}, {stride, 1}, s.device());
  const auto words = [&](const auto& list, std::int64_t row) {
    const auto bytes = static_cast<std::int64_t>(list.size() * sizeof(list[0]));
    return put(list.data(), {{bytes / (4 * row), row}, DType::i32});
  };
  const Tensor starts = put(o.starts.data(), {{std::ssize(o.starts)}, DType::i32});
  LogitRules::apply(s, part, words(o.rules, LogitRules::kRuleWords), starts, words(o.changes, LogitRules::kChangeWords),
                    words(o.masks, LogitRules::mask_words(vocab)));
  std::vector<float> back(logits.size());
  copy(s, Tensor(back.data(), all.spec()), all);
  s.synchronize();
  return back;
}

TEST(logit_rules, changes_rows_as_the_reference_does_with_the_same_bits_everywhere) {
  Pool pool(1);
  Stream host(pool);
  for (const std::int64_t vocab : {1, 31, 33, 1000, 32001, 128256})
    for (const std::int64_t rows : {1, 2, 13}) {
      const auto stride = vocab + 3;  // what lies beside the logits stays
      std::vector<float> logits;
      for (std::int64_t i = 0; i < rows * stride; ++i) logits.push_back(3 * normal(static_cast<std::uint64_t>(i)));
      for (std::size_t i = 0; i < logits.size(); i += 97) logits[i] = i % 2 ? NAN : i % 4 ? INFINITY : -INFINITY;
      const auto rules = rules_of(rows, vocab);
      const Operands operands(rules, vocab);
      const auto got = changed(host, logits, operands, vocab);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < stride; ++i) {
          const auto at = static_cast<std::size_t>(r * stride + i);
          const auto x = static_cast<double>(logits[at]);
          const double want =
              i < vocab ? contract::logit_after(x, static_cast<std::int32_t>(i), rules[static_cast<std::size_t>(r)])
                        : x;
          if (std::isnan(want)) EXPECT_TRUE(std::isnan(got[at]));
          else if (std::isinf(want)) EXPECT_EQ(static_cast<double>(got[at]), want);
          else EXPECT_NEAR(static_cast<double>(got[at]), want, 4e-7 * (std::fabs(want) + std::fabs(x) + 4));
        }
      if (cuda_devices() == 0) continue;
      Stream gpu(Device::cuda(0), pool);
      const auto there = changed(gpu, logits, operands, vocab);
      for (std::size_t i = 0; i < got.size(); ++i)
        if (!std::isnan(got[i]))
          EXPECT_EQ(std::bit_cast<std::uint32_t>(there[i]), std::bit_cast<std::uint32_t>(got[i])) << i;
        else EXPECT_TRUE(std::isnan(there[i])) << i;
    }
}

TEST(logit_rules, refuses_what_does_not_fit) {
  const Spec logits{{3, 40}, DType::f32}, rules{{3, 4}, DType::i32}, starts{{7}, DType::i32},
      changes{{5, 3}, DType::i32}, masks{{1, 2}, DType::i32};
  LogitRules::check(logits, rules, starts, changes, masks);
  EXPECT_THROW(LogitRules::check(Spec{{3, 40}, DType::bf16}, rules, starts, changes, masks), Error);
  EXPECT_THROW(LogitRules::check(logits, Spec{{2, 4}, DType::i32}, starts, changes, masks), Error);
  EXPECT_THROW(LogitRules::check(logits, rules, Spec{{6}, DType::i32}, changes, masks), Error);
  EXPECT_THROW(LogitRules::check(logits, rules, starts, Spec{{5, 2}, DType::i32}, masks), Error);
  EXPECT_THROW(LogitRules::check(logits, rules, starts, changes, Spec{{1, 1}, DType::i32}), Error);
  Pool pool(1);
  Stream s(pool);
  const std::vector<float> row(40);
  Operands wrong({RowRules{}}, 40);
  wrong.rules[0].mask = 1;
  EXPECT_THROW(changed(s, row, wrong, 40), Error);
  wrong.rules[0].mask = -1, wrong.starts = {0, 1, 0}, wrong.changes.resize(1);
  EXPECT_THROW(changed(s, row, wrong, 40), Error);
}

}  // namespace
}  // namespace hpcdl
