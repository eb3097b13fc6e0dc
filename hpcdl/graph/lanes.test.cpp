#include "hpcdl/instance.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/program/on.h"
#include "hpcdl/rng.h"

namespace hpcdl {
namespace {

/// The dependencies of all records, in the order of recording.
LaneDependencies dependencies_of(const Instance& exe) {
  std::vector<Grad> operands;
  std::vector<Lane> lanes;
  for (int i = 0; i < std::ssize(exe.program().records); ++i) {
    for (const auto& t : exe.operands(i)) operands.push_back(t);
    lanes.push_back(exe.program().records[static_cast<std::size_t>(i)].lane);
  }
  return lane_dependencies(exe.program(), lanes, operands, true);
}

TEST(lanes, wait_only_where_a_dependency_crosses) {
  Graph g;
  const Spec spec{{4, 8}, DType::f32};
  const Var x = g.input("x", spec);
  const Var a = softmax(x);  // 0
  Var b, c, d;
  {
    Graph::OnLane lane(g, Lane::weights);
    b = softmax(a);  // 1: reads what 0 wrote
    c = softmax(b);  // 2: comes after 1 on its lane, which has waited for 0
  }
  d = softmax(a);     // 3: reads nothing that a record of the other lane writes
  g.keep(add(c, d));  // 4: reads what 2 wrote
  for (const auto& v : {a, b, c, d}) g.keep(v);
  const auto found = dependencies_of(Instance(g.finish()));
  EXPECT_FALSE(found.one_lane);
  EXPECT_EQ(found.waits, (std::vector<std::vector<int>>{{}, {0}, {}, {}, {2}}));
  EXPECT_EQ(found.signals, (std::vector<char>{1, 0, 1, 0, 0}));
  EXPECT_EQ(found.last, (std::array<int, kLanes>{-1, 2, -1, -1}));
}

TEST(lanes, wait_for_reused_memory) {
  Graph g;
  const Spec spec{{64, 64}, DType::f32};
  const Var x = g.input("x", spec);
  const Var a = softmax(x);  // 0
  Var b;
  {
    Graph::OnLane lane(g, Lane::weights);
    b = g.keep(softmax(a));  // 1: the last to read a
  }
  const Var c = g.keep(softmax(softmax(x)));  // 2 and 3 may get the memory of a
  const Instance exe(g.finish());
  const auto found = dependencies_of(exe);
  const bool reused =
      exe.operands(2)[0].data() == exe.operands(1)[1].data() || exe.operands(3)[0].data() == exe.operands(1)[1].data();
  ASSERT_TRUE(reused) << "this plan does not reuse memory: the test needs another program";
  EXPECT_TRUE(found.waits[2] == std::vector<int>{1} || found.waits[3] == std::vector<int>{1});
  EXPECT_TRUE(b && c);
}

/// The computation between two exchanges does not wait for the first of them to give its memory back.
TEST(lanes, reuse_what_an_exchange_reads_after_the_next_one_has_begun) {
  Graph g;
  const Var x = g.input("x", {{64, 64}, DType::f32});
  const auto exchanged = [&](const Var& v) {
    Graph::OnLane lane(g, Lane::reduce);
    g.keep(softmax(v));
  };
  exchanged(softmax(x));              // 0, and 1: the last to read it
  const Var c = softmax(softmax(x));  // 2, 3
  exchanged(c);                       // 4
  g.keep(softmax(softmax(x)));        // 5, 6: one of them gets the memory that 1 read
  const Instance exe(g.finish());
  const auto found = dependencies_of(exe);
  EXPECT_TRUE(found.waits[2].empty() && found.waits[3].empty());
  EXPECT_TRUE(found.waits[5] == std::vector<int>{1} || found.waits[6] == std::vector<int>{1});
}

struct Exchanging {
  static constexpr std::string_view name = "test.exchanging";
  static void run(Stream&, const Grad*, const void*) {}
  struct RecordArgs {};
  static std::vector<Exchange> exchanges(std::span<const Spec>, const void*) {
    return {{ExchangeKind::all_reduce, "tp of 2", 2, 8}};
  }
};

TEST(lanes, chain_the_exchanges_of_a_gpu) {
  Graph g;
  const Exchanging::RecordArgs none;
  std::vector<Lane> lanes;
  for (const auto lane : {Lane::compute, Lane::reduce, Lane::reduce, Lane::compute, Lane::weights, Lane::reduce}) {
    Graph::OnLane on(g, lane);
    if (lane == Lane::weights) softmax(g.input("x", {{1}, DType::f32}));
    else g.emit<Exchanging>({}, &none, sizeof none, {}, Phase::forward);
    lanes.push_back(lane);
  }
  const Instance exe(g.finish());
  std::vector<Grad> operands(exe.operands(4).begin(), exe.operands(4).end());
  const auto& p = exe.program();
  EXPECT_EQ(lane_dependencies(p, lanes, operands, true).waits,
            (std::vector<std::vector<int>>{{}, {0}, {}, {2}, {}, {3}}));
  EXPECT_EQ(lane_dependencies(p, lanes, operands, false).waits, std::vector<std::vector<int>>(6));
}

/// Records of random lanes over random ranges of one block. What the waits and the order of each lane imply must order
/// every two records that conflict, found by comparing all pairs; and a wait must be for a conflict, or for a record
/// that ordered one. Without streams one thread begins all records: it runs those of `compute`, and has waited for what
/// any earlier record waits for.
TEST(lanes, order_every_conflict_of_random_programs) {
  constexpr int kRecords = 60;
  std::vector<float> block(64);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Rng rng{seed, 9};
    std::uint64_t draw = 0;
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(rng.uniform(draw++) * static_cast<double>(n));
    };
    Program p;
    std::vector<Grad> operands;
    std::vector<Lane> lanes;
    p.slots.resize(1);
    for (int i = 0; i < kRecords; ++i) {
      Record r;
      r.operands = static_cast<std::uint32_t>(p.operands.size());
      r.operand_count = static_cast<std::uint32_t>(below(4));
      for (std::uint32_t k = 0; k < r.operand_count; ++k) {
        const auto begin = below(60), rows = 1 + below(3), cols = below(3), stride = cols + below(3);
        const auto length = std::min(rows, (64 - begin - cols) / std::max<std::int64_t>(stride, 1) + 1);
        Operand o;
        o.slot = below(12) == 0 ? -1 : 0, o.access = static_cast<Access>(below(3));
        p.operands.push_back(o);
        operands.emplace_back(Tensor(block.data() + begin, Spec{{length, cols}, DType::f32}, {stride, 1}, {}),
                              Write::overwrite);
      }
      p.records.push_back(r);
      lanes.push_back(static_cast<Lane>(below(kLanes)));
    }
    const bool streams = seed % 2 == 0;
    const auto found = lane_dependencies(p, lanes, operands, streams);
    const auto range = [&](std::uint32_t k) {
      const auto& t = operands[k];
      const auto* at = t.ptr<float>();
      return std::pair(at, t.size() == 0 ? at : at + (t[0] - 1) * t.strides()[0] + t[1]);
    };
    const auto conflict = [&](const Record& a, const Record& b) {
      for (auto i = a.operands; i < a.operands + a.operand_count; ++i)
        for (auto j = b.operands; j < b.operands + b.operand_count; ++j) {
          if (p.operands[i].slot < 0 || p.operands[j].slot < 0) continue;
          if (p.operands[i].access == Access::read && p.operands[j].access == Access::read) continue;
          const auto [from, to] = range(i);
          const auto [first, last] = range(j);
          if (std::max(from, first) < std::min(to, last)) return true;
        }
      return false;
    };
    std::vector<std::vector<char>> before(kRecords, std::vector<char>(kRecords));  // [i][j]: j is done before i begins
    std::vector<char> waited(kRecords);                                            // without streams, so far
    for (std::size_t i = 0; i < kRecords; ++i) {
      const auto follow = [&](std::size_t j) {
        before[i][j] = 1;
        for (std::size_t k = 0; k < j; ++k) before[i][k] = static_cast<char>(before[i][k] | before[j][k]);
      };
      for (std::size_t j = i; streams && j-- > 0;)
        if (lanes[j] == lanes[i]) {
          follow(j);
          break;
        }
      for (const int j : found.waits[i]) {
        EXPECT_TRUE(lanes[static_cast<std::size_t>(j)] != lanes[i] || (!streams && lanes[i] != Lane::compute));
        EXPECT_TRUE(conflict(p.records[i], p.records[static_cast<std::size_t>(j)])) << seed << ": " << i << ", " << j;
        EXPECT_TRUE(found.signals[static_cast<std::size_t>(j)]);
        if (streams) follow(static_cast<std::size_t>(j));
        for (std::size_t k = 0; k <= static_cast<std::size_t>(j); ++k)
          waited[k] = static_cast<char>(waited[k] | (lanes[k] == lanes[static_cast<std::size_t>(j)]));
      }
      if (!streams) before[i] = waited;
      if (lanes[i] == Lane::compute) waited[i] = 1;
      for (std::size_t j = 0; j < i; ++j)
        EXPECT_TRUE(before[i][j] || !conflict(p.records[i], p.records[j])) << seed << ": " << i << " after " << j;
    }
    for (std::size_t lane = 1; lane < kLanes; ++lane)
      for (int i = found.last[lane] + 1; i < kRecords && !found.one_lane; ++i)
        EXPECT_NE(static_cast<std::size_t>(lanes[static_cast<std::size_t>(i)]), lane);
  }
}

std::atomic<int> started = 0, done = 0;

void add_one(const Tensor& x) {
  for (std::int64_t i = 0; i < x.size(); ++i) x.ptr<float>()[i] += 1;
}

/// Adds 1 to every element: on another lane than `compute` in another thread, after a while, unless the first is
/// negative.
struct AddOne {
  static constexpr std::string_view name = "test.add_one";
  static void run(Stream&, const Grad* operands, const void*) { add_one(operands[0]); }
  static Ticket start(Stream&, const Grad* operands, const void*) {
    ++started;
    auto work = std::make_shared<std::future<void>>(std::async(std::launch::async, [x = Tensor(operands[0])] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      require(x.ptr<float>()[0] >= 0, "test", "a negative number");
      add_one(x);
      ++done;
    }));
    return Ticket([work] {
      const auto begin = Ticket::Clock::now();
      work->get();
      return Ticket::Span{begin, Ticket::Clock::now()};
    });
  }
};

class tickets : public ::testing::Test {
 protected:
  /// On `lane`: x += 1; b += 1. Else: a = softmax(c), y = softmax(x).
  Instance record(Lane lane) {
    Graph g;
    const Spec spec{{2, 8}, DType::f32};
    const Var x = x_ = g.input("x", spec), b = b_ = g.input("b", spec), c = c_ = g.input("c", spec);
    {
      Graph::OnLane on(g, lane);
      for (const auto& v : {x, b}) {
        auto o = v.operand();
        o.access = Access::update;
        g.emit<AddOne>(std::span(&o, 1), nullptr, 0, {}, Phase::forward);
      }
    }
    a_ = g.keep(softmax(c)), y_ = g.keep(softmax(x));
    return Instance(g.finish());
  }
  std::vector<float> run(const Instance& exe, float first = 1) {
    Pool pool(1);
    StepParams params;
    Stream s(pool, &params);
    for (const auto& v : {x_, b_, c_}) {
      const Tensor t = exe.tensor(v);
      for (std::int64_t i = 0; i < t.size(); ++i) t.ptr<float>()[i] = first + 0.25f * static_cast<float>(i * i % 7);
    }
    started = done = 0;
    exe.run(
        s, 0, static_cast<int>(exe.program().records.size()),
        [&](int i) { order_.push_back(fmt::format("ran {}", i)); },
        [&](int i, Ticket::Span) { order_.push_back(fmt::format("waited for {}", i)); });
    std::vector<float> all;
    for (const auto& v : {x_, b_, a_, y_}) {
      const Tensor t = exe.tensor(v);
      all.insert(all.end(), t.ptr<float>(), t.ptr<float>() + t.size());
    }
    return all;
  }
  Var x_, b_, c_, a_, y_;
  std::vector<std::string> order_;
};

TEST_F(tickets, are_waited_for_where_memory_is_shared_and_at_the_end) {
  const auto at_once = run(record(Lane::compute));
  EXPECT_EQ(started, 0);
  order_.clear();
  const auto exe = record(Lane::reduce);
  for (int i = 0; i < 2; ++i) {
    order_.clear();
    EXPECT_EQ(run(exe), at_once);
    EXPECT_EQ(done, 2);
    EXPECT_EQ(order_, (std::vector<std::string>{"ran 0", "ran 1", "ran 2", "waited for 0", "ran 3", "waited for 1"}));
  }
}

/// Other threads keep no order, so a record waits for those of its own lane that touch its memory, and what waits for a
/// record finds the earlier ones of its lane done.
TEST_F(tickets, are_waited_for_in_the_order_of_their_lane) {
  Graph g;
  const Spec spec{{2, 8}, DType::f32};
  x_ = g.input("x", spec), b_ = g.input("b", spec), c_ = g.input("c", spec);
  {
    Graph::OnLane on(g, Lane::reduce);
    for (const auto& v : {b_, x_, x_}) {
      auto o = v.operand();
      o.access = Access::update;
      g.emit<AddOne>(std::span(&o, 1), nullptr, 0, {}, Phase::forward);
    }
  }
  a_ = g.keep(softmax(c_)), y_ = g.keep(softmax(x_));
  const Instance exe(g.finish());
  const auto got = run(exe, 1);
  EXPECT_EQ(done, 3);
  EXPECT_EQ(order_, (std::vector<std::string>{"ran 0", "ran 1", "waited for 0", "waited for 1", "ran 2", "ran 3",
                                              "waited for 2", "ran 4"}));
  EXPECT_EQ(got[0], 3);
  EXPECT_EQ(got[16], 2);
}

TEST_F(tickets, are_all_waited_for_when_one_fails) {
  const auto exe = record(Lane::reduce);
  EXPECT_THROW(run(exe, -8), Error);  // both fail: the first is reported, and no thread still uses the memory
  EXPECT_EQ(started, 2);
  EXPECT_EQ(done, 0);
  EXPECT_NO_THROW(run(exe));
  EXPECT_EQ(done, 2);
}

TEST(gpu_lanes, the_same_bits_as_on_one_lane) {
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
