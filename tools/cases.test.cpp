#include "tools/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "hpcdl/core/error.h"

namespace hpcdl::lab {
namespace {

/// The words between foreach(op and the closing parenthesis.
std::set<std::string> ops_of_the_build() {
  std::ifstream in(HPCDL_SOURCE_DIR "/hpcdl/ops/CMakeLists.txt");
  std::stringstream text;
  text << in.rdbuf();
  const auto all = text.str();
  const auto begin = all.find("foreach(op") + 10;
  std::istringstream words(all.substr(begin, all.find(')', begin) - begin));
  std::set<std::string> ops;
  for (std::string word; words >> word;) ops.insert(word);
  return ops;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(cases, every_op_has_one) {
  const auto ops = ops_of_the_build();
  ASSERT_GT(ops.size(), 20u);
  // Ops between ranks, which `hpcdl bench comm` and `hpcdl bench tp` measure, and one that handles a few numbers of a step.
  const std::set<std::string> without{"exchange",   "sync_batch_norm", "ring_attention",
                                      "vocabulary", "fp8_amax",        "attention_merge"};
  std::set<std::string> covered;
  for (const auto& c : cases()) covered.insert(base_op(c));
  for (const auto& op : ops)
    EXPECT_NE(covered.contains(op), without.contains(op))
        << op << " has no case: give its spec a function " << op << "_cases, and call it in tools/case_families.cpp";
  for (const auto& op : covered) EXPECT_TRUE(ops.contains(op)) << "there is a case of " << op << ", which is not an op";
}

TEST(cases, all_record_and_cost_something) {
  std::set<std::string> labels;
  for (const auto& c : cases()) {
    EXPECT_TRUE(labels.insert(case_label(c)).second) << case_label(c) << " occurs twice";
    Graph g({.inference = !c.backward});
    c.record(g);
    const Program p = g.finish().program;
    EXPECT_GT(p.cost().bytes(), 0) << case_label(c);
    EXPECT_GE(p.cost().operations, 0) << case_label(c);
    EXPECT_EQ(
        std::any_of(p.records.begin(), p.records.end(), [](const Record& r) { return r.phase == Phase::backward; }),
        c.backward)
        << case_label(c);
  }
}

TEST(cases, a_run_computes_and_repeats) {
  Pool pool(2);
  Stream s(pool);
  for (const auto& c : cases_at({"softmax"}, "8x100")) {
    CaseRun run(c);
    EXPECT_EQ(run.cost().bytes(), run.program().cost().bytes());
    const auto& first = run.program().records.front();
    const Tensor y = run.executable().operands(0)[0];
    ASSERT_EQ(first.op, "softmax");
    run.run(s);
    double sum = 0;
    for (int i = 0; i < 100; ++i)
      sum += static_cast<double>(c.dtype == DType::f32 ? y.ptr<float>()[i] : static_cast<float>(y.ptr<bf16>()[i]));
    EXPECT_NEAR(sum, 1, c.dtype == DType::f32 ? 1e-5 : 0.05) << case_label(c);
    const auto before = std::vector<std::byte>(static_cast<const std::byte*>(y.data()),
                                               static_cast<const std::byte*>(y.data()) + y.bytes());
    run.run(s);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), static_cast<const std::byte*>(y.data())));
  }
}

/// The shape, or the nearest one that the ops of the family support.
std::string supported(const CaseFamily& f, const std::string& shape) {
  if (!f.nearest_supported) return shape;
  Shape dims;
  std::istringstream in(shape);
  for (std::string dim; std::getline(in, dim, 'x');) dims.push_back(std::stoll(dim));
  std::string text;
  for (const auto d : f.nearest_supported(dims)) text += (text.empty() ? "" : "x") + std::to_string(d);
  return text;
}

/// One small shape per number of dims, at which every family runs: finite results, no matter how often.
TEST(cases, every_family_runs_small) {
  Pool pool(2);
  Stream s(pool);
  std::shared_ptr<Buffer> arena;
  for (const auto& f : case_families()) {
    const int rank = static_cast<int>(std::count(f.dims.begin(), f.dims.end(), 'x')) + 1;
    const std::string shape = f.dims == "BxTxT"     ? "2x32x32"
                              : f.dims == "CxHxGxD" ? "64x4x2x32"
                              : rank == 5           ? "2x4x2x8x32"
                              : rank == 1           ? "100"
                              : rank == 2           ? "6x64"
                              : rank == 3           ? "4x32x64"
                                                    : "2x2x16x32";
    for (const auto& c : cases_at({f.op}, supported(f, shape))) {
      if (c.op != f.op) continue;
      CaseRun run(c, arena);
      for (int i = 0; i < 3; ++i) run.run(s);
      arena = run.arena();
      const auto& p = run.program();
      for (std::uint32_t i = 0; i < p.records.front().operand_count; ++i) {
        const auto& t = run.executable().operands(0)[i];
        const auto& o = p.operands[p.records.front().operands + i];
        if (!t || t.dtype() != DType::f32 || o.access == Access::read) continue;
        if (p.slots[static_cast<std::size_t>(o.slot)].role == SlotRole::scratch)
          continue;  // need not be written at all
        for (std::int64_t k = 0; k < t.size(); ++k)
          ASSERT_TRUE(std::isfinite(t.ptr<float>()[k])) << case_label(c) << " operand " << i << " at " << k;
        break;
      }
    }
  }
}

TEST(cases, are_found_by_name) {
  EXPECT_EQ(find_cases({}).size(), cases().size());
  const auto linear = find_cases({"linear"});
  EXPECT_TRUE(std::any_of(linear.begin(), linear.end(), [](const Case& c) { return c.op == "linear+bias_relu"; }));
  for (const auto& c : find_cases({"softmax+causal"})) EXPECT_EQ(c.op, "softmax+causal");
  EXPECT_NE(message_of([] { find_cases({"sofmax"}); }).find("did you mean 'softmax'"), std::string::npos);
  EXPECT_NE(message_of([] { cases_at({"softmax"}, "4x"); }).find("expected a shape"), std::string::npos);
  EXPECT_NE(message_of([] { cases_at({"add"}, "4x4"); }).find("add takes N"), std::string::npos);
  const auto part_of_a_block = [] {
    Graph g;
    cases_at({"quant_linear+nf4"}, "2x64x100").front().record(g);
  };
  EXPECT_NE(message_of(part_of_a_block).find("K must be a multiple of 64, got 100"), std::string::npos);
}

TEST(cases, swept_shapes_are_ones_that_their_ops_support) {
  const auto drawn =
      swept_cases({"conv2d", "int4_linear", "paged_attention"}, {.shapes = 40, .seed = 3, .large = true});
  std::set<std::string> ops;
  for (const auto& c : drawn) {
    ops.insert(c.op);
    Graph g({.inference = !c.backward});
    EXPECT_NO_THROW(c.record(g)) << case_label(c);
  }
  EXPECT_TRUE(ops.contains("conv2d+stem") && ops.contains("int4_linear") && ops.contains("paged_attention"));
}

}  // namespace
}  // namespace hpcdl::lab
