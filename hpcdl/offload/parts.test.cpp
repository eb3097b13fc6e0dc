#include "hpcdl/offload/parts.h"

#include <gtest/gtest.h>

#include <string>

#include "hpcdl/graph.h"
#include "hpcdl/ops/softmax/softmax.h"

namespace hpcdl::offload {
namespace {

TEST(parts, begin_where_a_pass_comes_to_another_part_of_the_model) {
  Graph g;
  Var x = g.input("x", {{8, 8}, DType::f32});
  const auto layer = [&](const std::string& name, int records) {
    const Graph::Scope scope(g, name);
    for (int i = 0; i < records; ++i) x = softmax(x);
  };
  layer("", 1), layer("h.0.attn", 2), layer("h.0.mlp", 1), layer("", 1), layer("h.1", 2), layer("h.0", 1);
  const auto program = g.finish().program;
  const Parts parts(program, 0, program.records.size());
  ASSERT_EQ(parts.count(), 3u);
  EXPECT_EQ(parts.begin(0), 0u) << "what belongs to no part is in the one before, or in the first one";
  EXPECT_EQ(parts.begin(1), 5u);
  EXPECT_EQ(parts.begin(2), 7u);
  EXPECT_EQ(parts.begin(3), program.records.size());
  for (std::size_t i = 0; i < program.records.size(); ++i) EXPECT_EQ(parts.of(i), i < 5 ? 0u : i < 7 ? 1u : 2u) << i;
  EXPECT_EQ(Parts(program, 6, 7).count(), 1u);
}

}  // namespace
}  // namespace hpcdl::offload
