#include "hpcdl/graph/streams.h"

#include <gtest/gtest.h>

#include "hpcdl/core/rng.h"
#include "hpcdl/graph/graph.h"
#include "hpcdl/graph/instance.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/softmax/softmax.h"

namespace hpcdl {
namespace {

TEST(streams, events_only_where_a_dependency_crosses) {
  Graph g;
  const Spec spec{{4, 8}, DType::f32};
  const Var x = g.input("x", spec);
  const Var a = softmax(x);  // 0
  Var b, c, d;
  {
    Graph::Beside beside(g, 1);
    b = softmax(a);  // 1: reads what 0 wrote
    c = softmax(b);  // 2: after 1 on its stream, which has waited for 0
  }
  d = softmax(a);     // 3: reads what no other stream writes
  g.keep(add(c, d));  // 4: reads what 2 wrote
  for (const auto& v : {a, b, c, d}) g.keep(v);
  const Instance exe(g.finish());
  std::vector<Grad> operands;
  for (int i = 0; i < 5; ++i)
    for (const auto& t : exe.operands(i)) operands.push_back(t);
  const auto found = stream_dependencies(exe.program(), operands);
  EXPECT_EQ(found.streams, 2);
  EXPECT_EQ(found.waits, (std::vector<std::vector<int>>{{}, {0}, {}, {}, {2}}));
  EXPECT_EQ(found.signals, (std::vector<char>{1, 0, 1, 0, 0}));
  EXPECT_EQ(found.last, std::vector<int>{2});
}

TEST(streams, reused_memory_is_waited_for) {
  Graph g;
  const Spec spec{{64, 64}, DType::f32};
  const Var x = g.input("x", spec);
  const Var a = softmax(x);  // 0
  Var b;
  {
    Graph::Beside beside(g, 1);
    b = g.keep(softmax(a));  // 1: the last to read a
  }
  const Var c = g.keep(softmax(softmax(x)));  // 2 and 3 may get the memory of a
  const Instance exe(g.finish());
  std::vector<Grad> operands;
  for (int i = 0; i < 4; ++i)
    for (const auto& t : exe.operands(i)) operands.push_back(t);
  const auto found = stream_dependencies(exe.program(), operands);
  const bool reused =
      exe.operands(2)[0].data() == exe.operands(1)[1].data() || exe.operands(3)[0].data() == exe.operands(1)[1].data();
  ASSERT_TRUE(reused) << "this plan keeps them apart: the test needs another program";
  EXPECT_TRUE(found.waits[2] == std::vector<int>{1} || found.waits[3] == std::vector<int>{1});
  EXPECT_TRUE(b && c);
}

TEST(gpu_streams, the_same_bits_as_on_one_stream) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const auto device = Device::cuda(0);
  Pool pool(2);
  StepParams params;
  Stream s(device, pool, &params);
  constexpr std::int64_t rows = 2048, width = 512;
  std::vector<float> host(static_cast<std::size_t>(width * width));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = 0.1f * static_cast<float>(Rng{4, 4}.normal(i));
  std::vector<std::vector<float>> results;
  for (const bool beside : {false, true}) {
    OwnedTensor w({{width, width}, DType::f32}, device), dw(w.tensor.spec(), device);
    copy(s, w.tensor, View(host.data(), w.tensor.spec()));
    Graph g({.weights_beside = beside});
    const Var x = g.input("x", {{rows, width}, DType::f32}), p = g.parameter("w", w.tensor, dw.tensor);
    Var h = x;
    for (int layer = 0; layer < 5; ++layer) h = linear(softmax(linear(h, p)), p, {}, {}, h);
    g.backward(h, g.input("dy", h.spec()));
    Instance exe(g.finish(), nullptr, device);
    for (const char* name : {"x", "dy"}) {
      const auto& slots = exe.program().slots;
      for (std::size_t i = 0; i < slots.size(); ++i)
        if (slots[i].name == name) {
          std::vector<float> values(static_cast<std::size_t>(rows * width));
          for (std::size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(Rng{5, i}.normal(k));
          copy(s, Tensor(exe.arena()->data() + exe.plan().offset[i], slots[i].spec, device),
               View(values.data(), slots[i].spec));
        }
    }
    for (int run = 0; run < 4; ++run) {
      if (run == 2) exe.capture(s);
      exe.run(s);
      auto& got = results.emplace_back(host.size());
      copy(s, Tensor(got.data(), dw.tensor.spec()), dw.tensor);
    }
  }
  for (const auto& r : results) EXPECT_EQ(r, results[0]);
  EXPECT_NE(results[0], std::vector<float>(host.size(), 0.0f));
}

}  // namespace
}  // namespace hpcdl
