#include "hpcdl/parallel/reduce_pass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/comm/transport.h"
#include "hpcdl/core/timed_event.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::parallel {
namespace {

using comm::Group;

/// y = sum(w2 (softmax(w1 x) as a row) ...): five parameters of which one is used twice, one reaches no loss, and one
/// is in no record.
struct Net {
  static constexpr std::int64_t kWidth = 24;
  std::vector<OwnedTensor> values;
  std::vector<std::string> names{"a", "tied", "b", "idle", "absent", "large"};

  explicit Net(std::uint64_t seed) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto rows = i == 5 ? 40 * kWidth : kWidth;
      values.emplace_back(Spec{{rows, kWidth}, DType::f32});
      const Rng rng{seed, i};
      for (std::int64_t k = 0; k < values.back().tensor.size(); ++k)
        values.back().tensor.ptr<float>()[k] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(k))) * 0.3f;
    }
  }
  Var parameter(Graph& g, std::size_t i, const std::vector<Tensor>& gradients) const {
    return g.parameter(names[i], values[i].tensor, gradients[i]);
  }

  struct Vars {
    Var x, y, dy;  // dy: the gradient of y
  };
  Vars forward(Graph& g, const std::vector<Tensor>& gradients) const {
    const Var x = g.input("x", {{3, kWidth}, DType::f32});
    const Var dy = g.input("dy", {{3, 40 * kWidth}, DType::f32});
    const Var tied = parameter(g, 1, gradients);
    const Var h = linear(softmax(linear(linear(x, tied), parameter(g, 0, gradients))), tied);
    linear(h, parameter(g, 3, gradients));  // used, but nothing depends on it
    return {x, g.keep(linear(linear(h, parameter(g, 2, gradients)), parameter(g, 5, gradients))), dy};
  }
};

void fill(Tensor t, std::uint64_t seed) {
  const Rng rng{seed, 77};
  for (std::int64_t k = 0; k < t.size(); ++k)
    t.ptr<float>()[k] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(k)));
}

/// The gradients of one rank's part of the batch, as one block per parameter.
using Blocks = std::vector<std::vector<float>>;

Blocks local_gradients(const Net& net, int part) {
  std::vector<OwnedTensor> memory;
  std::vector<Tensor> gradients;
  for (const auto& v : net.values) memory.emplace_back(v.tensor.spec()), gradients.push_back(memory.back().tensor);
  Graph g;
  const auto [x, y, dy] = net.forward(g, gradients);
  g.backward(y, dy);
  const Instance exe(g.finish());
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  fill(exe.tensor(dy), 1000 + static_cast<std::uint64_t>(part));
  fill(exe.tensor(x), static_cast<std::uint64_t>(part));
  exe.run(s);
  Blocks out;
  for (const auto& t : gradients) out.emplace_back(t.ptr<float>(), t.ptr<float>() + t.size());
  return out;
}

/// Gradients that are summed over the ranks of a group, in memory that these share.
struct Gradients {
  std::vector<ReadyGradient> order;
  std::shared_ptr<comm::Window> window;
  Buffer own;
  Tensor block;
  std::unique_ptr<UnitExchange> exchange;

  Gradients(const Group& group, std::vector<ReadyGradient> ready, const ReduceOptions& options, Device device = {})
      : order(std::move(ready)) {
    std::vector<std::int64_t> sizes;
    for (const auto& g : order) sizes.push_back(g.spec.size());
    auto plan = plan_buckets(sizes, options.buckets);
    const auto bytes = plan.elements * std::int64_t{sizeof(float)};
    if (group.size() > 1) window = group.share(bytes);
    if (!window) own = Buffer(bytes, device);
    block = Tensor(window ? window->block(group.local_rank()) : own.data(), {{plan.elements}, DType::f32}, device);
    exchange = std::make_unique<UnitExchange>(group, std::move(plan), options, window != nullptr, device);
  }
  const UnitPlan& plan() const { return exchange->plan(); }
  Tensor gradient(std::string_view name) const {
    for (std::size_t i = 0; i < order.size(); ++i)
      if (order[i].name == name) return Tensor(block.ptr<float>() + plan().offset[i], order[i].spec, block.device());
    throw std::out_of_range(std::string(name));
  }
  Recording reduced(Recording pass) const { return reduce_pass(std::move(pass), *exchange, order, {.block = block}); }
};

/// The same through reduce_pass() on the ranks of a group; `runs` times, so that the second finds what the first left.
/// planned: bytes of all buckets.
Blocks reduced_gradients(const Group& world, const Net& net, const ReduceOptions& options, int runs = 2,
                         std::int64_t* planned = nullptr) {
  std::vector<ReadyGradient> order;
  {
    std::vector<OwnedTensor> memory;
    std::vector<Tensor> gradients;
    for (const auto& v : net.values) memory.emplace_back(v.tensor.spec()), gradients.push_back(memory.back().tensor);
    Graph g;
    const auto [x, y, dy] = net.forward(g, gradients);
    g.backward(y, dy);
    for (std::size_t i = 0; i < net.names.size(); ++i) order.push_back({net.names[i], net.values[i].tensor.spec()});
    order = in_order_of_completion(g.finish().program, std::move(order));
    std::vector<std::string> names;
    for (const auto& gradient : order) names.push_back(gradient.name);
    EXPECT_EQ(names, (std::vector<std::string>{"large", "b", "idle", "a", "tied", "absent"}));
  }
  Gradients gradients(world, order, options);
  if (planned) *planned = gradients.plan().elements * std::int64_t{sizeof(float)};
  std::vector<Tensor> where;
  for (const auto& name : net.names) where.push_back(gradients.gradient(name));
  Graph g;
  const auto [x, y, dy] = net.forward(g, where);
  g.backward(y, dy);
  const Instance exe(gradients.reduced(g.finish()));
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  for (int i = 0; i < runs; ++i) {
    fill(exe.tensor(dy), 1000 + static_cast<std::uint64_t>(world.rank()));
    fill(exe.tensor(x), static_cast<std::uint64_t>(world.rank()));
    exe.run(s);
  }
  Blocks out;
  for (const auto& t : where) out.emplace_back(t.ptr<float>(), t.ptr<float>() + t.size());
  return out;
}

const std::vector<std::pair<const char*, ReduceOptions>> kForms{
    {"default", {}},
    {"small buckets", {.buckets = {.cap = 8 << 10, .first = 4 << 10}}},
    {"middling buckets", {.buckets = {.cap = 40 << 10, .first = 1 << 10}}},
    {"one bucket", {.buckets = {.cap = 64 << 20, .first = 64 << 20}}},
    {"every tensor by itself", {.buckets = {.cap = 0, .first = 0}}},
    {"buckets, waited for", {.buckets = {.cap = 8 << 10, .first = 4 << 10}, .overlap = false}},
    {"every tensor by itself, waited for", {.buckets = {.cap = 0, .first = 0}, .overlap = false}},
};

/// A pass of data parallelism sends 2 (p-1)/p of the buckets' bytes from each rank, and buckets contain only gradients
/// and the padding of tensors.
TEST(reduce_pass, send_what_the_formula_says) {
  const Net net(5);
  std::int64_t bytes = 0;
  for (const auto& v : net.values) bytes += v.tensor.bytes();
  for (const int n : {2, 3, 4})
    for (const auto& [what, form] : kForms)
      testing::run_ranks(n, [&, form = form, name = what](const Group& world) {
        auto options = form;
        options.algorithm = comm::Algorithm::ring;
        const auto before = world.counters().wire_bytes;
        std::int64_t planned = 0;
        reduced_gradients(world, net, options, 1, &planned);
        const double sent = sum_over_ranks(world, static_cast<double>(world.counters().wire_bytes - before));
        EXPECT_DOUBLE_EQ(sent, 2.0 * (n - 1) * static_cast<double>(planned)) << name;
        EXPECT_GE(planned, bytes) << name;
        EXPECT_LE(planned, bytes + std::ssize(net.values) * 4096) << name;
      });
}

/// For any buckets, and whether or not reductions are awaited: the same bits on every rank, and the sum of what each
/// rank computes alone.
TEST(reduce_pass, sums_are_the_same_bits_whatever_the_buckets) {
  const Net net(5);
  for (int n = 1; n <= 8; ++n) {
    std::vector<Blocks> alone;
    for (int r = 0; r < n; ++r) alone.push_back(local_gradients(net, r));
    std::vector<std::vector<Blocks>> got(kForms.size(), std::vector<Blocks>(static_cast<std::size_t>(n)));
    testing::run_ranks(n, [&](const Group& world) {
      for (std::size_t f = 0; f < kForms.size(); ++f)
        got[f][static_cast<std::size_t>(world.rank())] = reduced_gradients(world, net, kForms[f].second);
    });
    for (std::size_t p = 0; p < net.names.size(); ++p) {
      for (std::size_t k = 0; k < alone[0][p].size(); ++k) {
        double sum = 0, size = 0;
        for (const auto& rank : alone) sum += double{rank[p][k]}, size += std::fabs(double{rank[p][k]});
        ASSERT_NEAR(double{got[0][0][p][k]}, sum, 1e-6 * size) << n << " ranks, " << net.names[p];
      }
      for (std::size_t f = 0; f < kForms.size(); ++f)
        for (std::size_t r = 0; r < static_cast<std::size_t>(n); ++r)
          ASSERT_EQ(std::memcmp(got[f][r][p].data(), got[0][0][p].data(), got[0][0][p].size() * sizeof(float)), 0)
              << n << " ranks, " << kForms[f].first << ", rank " << r << ", " << net.names[p];
    }
  }
}

/// Ranks on several hosts, evenly distributed or not, have the same property.
TEST(reduce_pass, hosts_change_nothing_about_that) {
  const Net net(5);
  for (const auto& hosts :
       {std::vector{0, 1}, {0, 0, 1, 1}, {0, 1, 2, 3}, {0, 0, 0, 3, 3}, {0, 1, 2}, {0, 0, 2, 2, 4, 4, 6, 6}}) {
    const int n = static_cast<int>(hosts.size());
    std::vector<std::vector<Blocks>> got(kForms.size(), std::vector<Blocks>(hosts.size()));
    testing::run_ranks(n,
                       [&](const Group& world) {
                         for (std::size_t f = 0; f < kForms.size(); ++f)
                           got[f][static_cast<std::size_t>(world.rank())] =
                               reduced_gradients(world, net, kForms[f].second);
                       },
                       {.hosts = hosts, .on_lost = {}});
    for (std::size_t f = 0; f < kForms.size(); ++f)
      for (std::size_t r = 0; r < hosts.size(); ++r)
        EXPECT_TRUE(got[f][r] == got[0][0]) << n << " ranks, " << kForms[f].first << ", rank " << r;
  }
}

TEST(reduce_pass, idle_parameters_are_zero_and_tied_ones_are_reduced_once_after_their_last_use) {
  const Net net(5);
  testing::run_ranks(2, [&](const Group& world) {
    const auto got = reduced_gradients(world, net, {.buckets = {.cap = 0, .first = 0}}, 3);
    for (const auto i : {3u, 4u})
      for (const float v : got[i]) ASSERT_EQ(v, 0) << net.names[i];
  });
}

/// Records in program order: everything that an all_reduce covers has been written before it, and is not written after
/// it.
TEST(reduce_pass, a_bucket_is_reduced_after_the_record_that_writes_its_last_gradient) {
  const Net net(5);
  testing::run_ranks(2, [&](const Group& world) {
    std::vector<ReadyGradient> order;
    for (const auto i : {5u, 2u, 0u, 1u, 3u, 4u}) order.push_back({net.names[i], net.values[i].tensor.spec()});
    Gradients gradients(world, order, {.buckets = {.cap = 8 << 10, .first = 4 << 10}});
    EXPECT_GT(gradients.plan().units.size(), 2u);
    std::vector<Tensor> where;
    for (const auto& name : net.names) where.push_back(gradients.gradient(name));
    Graph g;
    const auto [x, y, dy] = net.forward(g, where);
    g.backward(y, dy);
    auto recorded = g.finish();
    const auto before = to_bytes(recorded.program);
    const Instance exe(gradients.reduced(std::move(recorded)));
    EXPECT_EQ(to_bytes(strip(exe.program())), before) << "the reductions are inserted, and change nothing else";
    const auto& records = exe.program().records;
    int reductions = 0;
    bool backward_behind_the_first = false;
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i].op != "all_reduce.gradients") {
        backward_behind_the_first |= reductions > 0 && records[i].op == Linear::name;
        continue;
      }
      ++reductions;
      EXPECT_EQ(records[i].lane, Lane::reduce);
      const auto bucket = exe.operands(static_cast<int>(i))[0];
      const auto* begin = static_cast<const std::byte*>(bucket.data());
      for (std::size_t j = i + 1; j < records.size(); ++j) {
        for (std::uint32_t k = 0; k < records[j].operand_count; ++k) {
          const auto& o = exe.program().operands[records[j].operands + k];
          if (o.slot < 0 || o.access == Access::read) continue;
          const auto* at = static_cast<const std::byte*>(exe.operands(static_cast<int>(j))[k].data());
          EXPECT_FALSE(at >= begin && at < begin + bucket.bytes())
              << records[j].op.view() << " writes into a bucket that is being reduced";
        }
      }
    }
    EXPECT_EQ(reductions, std::ssize(gradients.plan().units));
    EXPECT_TRUE(backward_behind_the_first) << "nothing is computed while the first bucket is reduced";
  });
}

TEST(reduce_pass, ranks_of_a_host_hold_them_in_shared_memory) {
  testing::run_ranks(3, [&](const Group& world) {
    const Gradients gradients(world, {{"a", {{1000}, DType::f32}}}, {});
    EXPECT_NE(gradients.window, nullptr);
  });
}

/// As many ranks as one sweep through shared memory can sum, and more: those are summed by messages.
TEST(reduce_pass, more_than_64_ranks_of_a_host_are_summed) {
  for (const int n : {64, 65})
    testing::run_ranks(n, [&](const Group& world) {
      const auto a = position_independent_sum(world, true);
      EXPECT_EQ(a == comm::Algorithm::shared, n == 64);
      Pool pool(1);
      std::vector<float> x(10, 1.0F);
      world.all_reduce(Stream(pool), Tensor(x.data(), Spec{{10}, DType::f32}), comm::Reduce::sum, a).wait();
      for (const float v : x) EXPECT_EQ(v, static_cast<float>(n));
    });
}

/// The results of a captured pass, and its time stamps. One GPU is enough: a group of one sums nothing
/// between them.
struct TimedPasses {
  std::vector<float> gradients;
  ExchangeTimes times;
};

TimedPasses passes_on_gpu(bool timed, bool overlap) {
  constexpr std::int64_t rows = 4096, width = 512;
  const auto device = Device::cuda(0);
  Pool pool(1);
  StepParams params;
  Stream s(device, pool, &params);
  std::vector<float> host(static_cast<std::size_t>(rows * width));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = 0.1f * static_cast<float>(Rng{4, 4}.normal(i));
  const Spec weight{{width, width}, DType::f32}, input{{rows, width}, DType::f32};
  OwnedTensor a(weight, device), b(weight, device), x(input, device), dy(input, device);
  for (const auto* t : {&a, &b, &x, &dy}) copy(s, t->tensor, View(host.data(), t->tensor.spec()));
  Gradients gradients(Group(), {{"b", weight}, {"a", weight}},
                      {.buckets = {.cap = 0, .first = 0}, .overlap = overlap, .timed = timed}, device);
  Graph g;
  const Var first = g.parameter("a", a.tensor, gradients.gradient("a")),
            second = g.parameter("b", b.tensor, gradients.gradient("b"));
  const Var y = linear(linear(g.constant("x", x.tensor), first), second);
  g.backward(y, g.constant("dy", dy.tensor));
  Instance exe(gradients.reduced(g.finish()), nullptr, device);
  gradients.exchange->take_times();  // nothing has run
  EXPECT_EQ(gradients.exchange->times().passes, 0);
  for (int run = 0; run < 4; ++run) {
    exe.run(s);
    s.synchronize();
    const auto before = gradients.exchange->times();
    gradients.exchange->take_times();
    EXPECT_EQ(gradients.exchange->times().passes, timed ? run + 1 : 0);
    EXPECT_GE(gradients.exchange->times().seconds, before.seconds);
    EXPECT_LE(gradients.exchange->times().waited_seconds, gradients.exchange->times().seconds);
    if (run == 0) exe.capture(s);
  }
  TimedPasses out{{}, gradients.exchange->times()};
  for (const char* name : {"a", "b"}) {
    std::vector<float> values(static_cast<std::size_t>(weight.size()));
    copy(s, Tensor(values.data(), weight), gradients.gradient(name));
    out.gradients.insert(out.gradients.end(), values.begin(), values.end());
  }
  return out;
}

TEST(reduce_pass, time_stamps_of_a_captured_pass_change_no_bit) {
  if (cuda_devices() == 0) GTEST_SKIP() << "SKIPPED: needs a GPU";
  const auto plain = passes_on_gpu(false, true);
  EXPECT_EQ(plain.times.seconds, 0);
  for (const bool overlap : {true, false}) {
    const auto timed = passes_on_gpu(true, overlap);
    EXPECT_EQ(timed.gradients, plain.gradients);
    EXPECT_GT(timed.times.seconds, 0);
    EXPECT_LT(timed.times.seconds, 1) << "stamps of different launches were combined";
    if (!overlap) {
      EXPECT_EQ(timed.times.waited_seconds, timed.times.seconds);
    }
  }
}

/// Time stamps in a graph are those of its last launch, and are between the work that was queued before and after it.
TEST(reduce_pass, an_event_in_a_capture_is_reached_by_every_launch) {
  if (cuda_devices() == 0) GTEST_SKIP() << "SKIPPED: needs a GPU";
  const auto device = Device::cuda(0);
  Pool pool(1);
  const Stream s(device, pool);
  OwnedTensor from({{64 << 20}, DType::f32}, device), to({{64 << 20}, DType::f32}, device);
  TimedEvent before, begin, end, after;
  Capture::begin(s);
  begin.record(s);
  copy(s, to.tensor, from.tensor);
  end.record(s);
  const auto graph = Capture::end(s);
  for (int launch = 0; launch < 3; ++launch) {
    before.record(s);
    graph.launch(s);
    after.record(s);
    s.synchronize();
    EXPECT_GE(TimedEvent::seconds_between(before, begin), 0) << "launch " << launch;
    EXPECT_GT(TimedEvent::seconds_between(begin, end), 10e-6) << "512 MB in " << launch;
    EXPECT_GE(TimedEvent::seconds_between(end, after), 0) << "launch " << launch;
  }
}

}  // namespace
}  // namespace hpcdl::parallel
