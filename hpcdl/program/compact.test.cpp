#include "hpcdl/program/compact.h"

#include <gtest/gtest.h>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/softmax/softmax.h"

namespace hpcdl {
namespace {

TEST(compact, keeps_only_what_its_records_use) {
  Graph g;
  const Spec spec{{3, 5}, DType::f32};
  const Var a = g.constant("a", Tensor(nullptr, spec)), b = g.constant("b", Tensor(nullptr, spec));
  softmax(a);
  g.keep(softmax(b));
  auto program = g.finish().program;
  const auto second = program.records.back();
  program.records.erase(program.records.begin());
  const auto small = compact(program);
  ASSERT_EQ(small.records.size(), 1u);
  EXPECT_EQ(small.records[0].op, second.op);
  EXPECT_EQ(small.records[0].operand_count, second.operand_count);
  for (std::uint32_t i = 0; i < second.operand_count; ++i) {
    const auto &o = small.operands[small.records[0].operands + i], &was = program.operands[second.operands + i];
    EXPECT_EQ(o.spec, was.spec);
    EXPECT_EQ(o.access, was.access);
    ASSERT_EQ(o.slot < 0, was.slot < 0);
    if (o.slot < 0) continue;
    EXPECT_EQ(small.slots[static_cast<std::size_t>(o.slot)].name,
              program.slots[static_cast<std::size_t>(was.slot)].name);
  }
  for (const auto& slot : small.slots) EXPECT_NE(slot.name, "a") << "an instance would have to bind it";
  EXPECT_LT(small.slots.size(), program.slots.size());
}

TEST(compact, of_no_records_has_nothing_to_bind) {
  Graph g;
  softmax(g.constant("a", Tensor(nullptr, Spec{{3, 5}, DType::f32})));
  auto program = g.finish().program;
  program.records.clear();
  EXPECT_TRUE(compact(program).slots.empty());
  EXPECT_TRUE(compact(program).operands.empty());
}

}  // namespace
}  // namespace hpcdl
