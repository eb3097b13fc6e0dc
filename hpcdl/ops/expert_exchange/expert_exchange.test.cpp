#include "hpcdl/ops/expert_exchange/expert_exchange.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/expert_mlp/expert_mlp.h"
#include "hpcdl/ops/moe_route/moe_route.h"
#include "hpcdl/parallel/axis.h"
#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/op_spec.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl {
namespace {

using testing::Input;

using Floats = std::vector<float>;

constexpr std::int64_t kExperts = 8;

Input f32(Shape shape) { return Input(shape).as(DType::f32); }

const auto dispatch = testing::op<ExpertDispatch>({
    .cases = {{.in = {{1, 3}, f32({1, 1}), Input::indices({1, 1}, 1)}, .args = {.experts = 1, .room = 1, .ranks = 1}},
              {.in = {{2, 5, 17}, f32({2, 5, 2}), Input::indices({2, 5, 2}, 8)},
               .args = {.experts = 8, .room = 10, .ranks = 4}},
              // Too little room, none at all, more than needed; ranks with one expert.
              {.in = {{33, 8}, f32({33, 3}), Input::indices({33, 3}, 9)},
               .args = {.experts = 9, .room = 7, .ranks = 3}},
              {.in = {{4, 8}, f32({4, 2}), Input::indices({4, 2}, 4)}, .args = {.experts = 4, .room = 0, .ranks = 2}},
              {.in = {{70, 33}, f32({70, 1}), Input::indices({70, 1}, 4)},
               .args = {.experts = 4, .room = 90, .ranks = 4}},
              {.in = {{0, 8}, f32({0, 2}), Input::indices({0, 2}, 4)}, .args = {.experts = 4, .room = 3, .ranks = 2}}},
    .reference = contract::expert_dispatch_reference,
    .reduction = [](std::span<const Spec>, const ExpertDispatch::Args& a) { return a.ranks; },
});

// Tokens have different rows of a part, so gradients of parts are checked with random places of one token only.
const auto combine = testing::op<ExpertCombine>({
    .cases = {{.in = {{1, 3}, {1, 2, 3}, Input::indices({1, 1}, 2)}},
              {.in = {{1, 17}, {4, 10, 17}, Input::indices({1, 4}, 10, true)}},
              {.in = {{2, 5, 17}, Input{4, 10, 17}.fixed(), Input::indices({2, 5, 4}, 10, true)}},
              {.in = {{33, 8}, Input{3, 7, 8}.fixed(), Input::indices({33, 3}, 7, true)},
               .args = {.addend = true},
               .gradient = false},
              {.in = {{0, 8}, {2, 3, 8}, Input::indices({0, 2}, 3)}}},
    .reference = contract::expert_combine_reference,
    .reduction = [](std::span<const Spec> in, const ExpertCombine::Args&) { return in[1][0] * in[2].size() + 1; },
});

const auto lost = testing::op<ExpertDropped>({
    .cases = {{.in = {Input::indices({5, 3}, 4, true), Input::none()}},
              {.in = {Input::indices({0, 3}, 4, true), f32({1}).fixed()}}},
    .reference = contract::expert_dropped_reference,
});

TEST(expert_exchange, refuses_what_does_not_fit) {
  const Spec x{{3, 8}, DType::f32}, weights{{3, 2}, DType::f32}, experts{{3, 2}, DType::i32};
  const ExpertDispatch::Args a{.experts = 4, .room = 3, .ranks = 2};
  EXPECT_EQ(ExpertDispatch::infer(x, weights, experts, a)[0].shape, Shape({2, 3, 8}));
  EXPECT_THROW(ExpertDispatch::infer(x, weights, experts, {.experts = 5, .room = 3, .ranks = 2}), Error);
  EXPECT_THROW(ExpertDispatch::infer(x, experts, experts, a), Error);
  EXPECT_THROW(ExpertDispatch::infer(x, weights, weights, a), Error);
  EXPECT_THROW(ExpertDispatch::infer({{4, 8}, DType::f32}, weights, experts, a), Error);
  const Spec parts{{2, 5, 8}, DType::f32}, places{{3, 2}, DType::i32};
  EXPECT_EQ(ExpertCombine::infer(x, parts, places, {}), x);
  EXPECT_THROW(ExpertCombine::infer(x, parts, {{3, 3}, DType::i32}, {}), Error);
  EXPECT_THROW(ExpertCombine::infer(x, {{2, 5, 9}, DType::f32}, places, {}), Error);
}

TEST(expert_exchange, counts_what_does_not_fit) {
  const std::int32_t places[] = {0, -2, -1, -2, 1, -2};
  const float before[] = {4};
  float sum = 0;
  Pool pool(1);
  Stream s(pool);
  ExpertDropped::forward(s, Tensor(&sum, {{1}, DType::f32}), View(places, {{3, 2}, DType::i32}),
                         View(before, {{1}, DType::f32}), {});
  EXPECT_EQ(sum, 7);
}

TEST(expert_exchange, skips_a_step_that_dropped_tokens) {
  std::vector<Device> devices{Device()};
  if (cuda_devices() > 0) devices.push_back(Device::cuda(0));
  for (const Device device : devices)
    for (const float dropped : {0.0f, 3.0f}) {
      Pool pool(1);
      StepParams params;
      Stream s(device, pool, &params);
      Graph g;
      const Var sum = g.input("dropped", ExpertDropped::kSum);
      record_skip_if_dropped(g, sum);
      const Instance exe(g.finish(), nullptr, device);
      copy(s, exe.tensor(sum), View(&dropped, ExpertDropped::kSum));
      exe.run(s);
      if (device.is_cuda()) s.pull_params();
      EXPECT_EQ(params.skip, dropped > 0 ? 1 : 0);
    }
}

/// Tokens that are sorted and go back: y = x + x for each part that a token is in, and dx alike. All results as floats.
std::vector<Floats> sorted_and_back(Device device, DType type, std::int64_t tokens, std::int64_t width,
                                    std::int64_t room) {
  Pool pool(1);
  Stream s(device, pool);
  Graph g;
  const Spec choices{{tokens, 3}, DType::i32};
  const Var x = g.differentiable_input("x", {{tokens, width}, type}), experts = g.input("experts", choices),
            weights = g.input("weights", {choices.shape, DType::f32}), dy = g.input("dy", {{tokens, width}, type});
  const auto sent = expert_dispatch(x, weights, experts, {.experts = kExperts, .room = room, .ranks = 4});
  const Var y = expert_combine(x, sent[0], sent[3], {});
  std::vector<Var> found{sent[0], sent[1], sent[2], sent[3], y, expert_dropped(sent[3], Var())};
  for (auto& v : found) v = g.keep(v);
  g.backward(y, dy);
  found.push_back(g.keep(g.gradient(x)));
  const Instance exe(g.finish(), nullptr, device);
  for (std::uint64_t stream = 0; const Var& v : {x, weights, dy})
    copy(s, exe.tensor(v), testing::random_on(s, v.shape(), v.dtype(), ++stream).tensor), s.synchronize();
  std::vector<std::int32_t> chosen;
  for (std::int64_t n = 0; n < tokens; ++n)
    for (const std::int64_t i : {0, 1, 2})
      chosen.push_back(static_cast<std::int32_t>((n * n + i * (n % 3 + 1)) % kExperts));
  copy(s, exe.tensor(experts), View(chosen.data(), choices));
  s.synchronize();
  exe.run(s);
  std::vector<Floats> results;
  for (const auto& v : found) {
    if (v.dtype() != DType::i32) {
      results.push_back(testing::on_host(s, exe.tensor(v)));
      continue;
    }
    std::vector<std::int32_t> host(static_cast<std::size_t>(v.shape().size()));
    copy(s, Tensor(host.data(), v.spec()), exe.tensor(v));
    s.synchronize();
    results.emplace_back(host.begin(), host.end());
  }
  return results;
}

TEST(expert_exchange, a_gpu_sorts_tokens_as_a_cpu_does) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [tokens, width, room] :
         {std::tuple{1, 5, 1}, {33, 8, 40}, {300, 40, 90}, {2500, 24, 2500}, {1024, 7, 512}})
      EXPECT_EQ(sorted_and_back(Device::cuda(0), type, tokens, width, room),
                sorted_and_back({}, type, tokens, width, room))
          << dtype_name(type) << ' ' << tokens << ' ' << width << ' ' << room;
}

constexpr std::int64_t kTokens = 12, kWidth = 12, kHidden = 10;

/// Of the tokens of this rank, and of its experts.
struct Results {
  Floats y, dx, dscores, dmatrices;
  float dropped = 0;
};

Floats drawn(std::int64_t size, std::uint64_t stream) {
  Pool pool(1);
  Stream s(pool);
  return testing::on_host(s, testing::random_on(s, {size}, DType::f32, stream).tensor);
}

/// x + a mixture of x, for the tokens and with the experts of one of the ranks.
Results run_mixture(const comm::Group& group, std::int64_t room, int count) {
  const int ranks = group.size();
  const std::int64_t tokens = kTokens / ranks, first = group.rank() * tokens, of_rank = kExperts / ranks;
  Pool pool(1);
  Stream s(pool);
  Graph g;
  std::vector<std::pair<Var, Floats>> inputs;
  const auto leaf = [&](const std::string& name, const Shape& shape, const Floats& whole, std::int64_t from) {
    const Var v = g.differentiable_input(name, {shape, DType::f32});
    inputs.emplace_back(v, Floats(whole.begin() + from, whole.begin() + from + shape.size()));
    return v;
  };
  const Var x = leaf("x", {tokens, kWidth}, drawn(kTokens * kWidth, 1), first * kWidth),
            scores = leaf("scores", {tokens, kExperts}, drawn(kTokens * kExperts, 2), first * kExperts);
  std::vector<ExpertMatrices<Var>> mlps;
  for (auto e = group.rank() * of_rank; e < (group.rank() + 1) * of_rank; ++e) {
    const auto matrix = [&](int which, const Shape& shape) {
      const auto stream = static_cast<std::uint64_t>(10 + 3 * e + which);
      return Matrix<Var>{leaf(fmt::format("m{}.{}", e, which), shape, drawn(shape.size(), stream), 0), {}, {}, {}};
    };
    mlps.push_back({matrix(0, {kHidden, kWidth}), matrix(1, {kHidden, kWidth}), matrix(2, {kWidth, kHidden})});
  }
  const parallel::GroupAxis axis(group);
  const auto choice = moe_route(scores, {.count = count});
  const auto sent = expert_dispatch(x, choice[0], choice[1], {.experts = kExperts, .room = room, .ranks = ranks});
  const auto swap = [&](const Var& v) { return swap_parts(v, axis.axis("tokens")); };
  const Var results =
      expert_mlp(Var(), swap(sent[0]), swap(sent[1]), swap(sent[2]), std::span<const ExpertMatrices<Var>>(mlps), {});
  const Var y = g.keep(expert_combine(x, swap(results), sent[3], {})), dropped = g.keep(expert_dropped(sent[3], Var()));
  const auto leaves = inputs;
  const Var dy = leaf("dy", {tokens, kWidth}, drawn(kTokens * kWidth, 3), first * kWidth);
  g.backward(y, dy);
  std::vector<Var> gradients;
  for (const auto& [v, data] : leaves) gradients.push_back(g.keep(g.gradient(v)));
  const Instance exe(g.finish());
  for (const auto& [v, data] : inputs) std::copy(data.begin(), data.end(), exe.tensor(v).ptr<float>());
  exe.run(s);
  const auto get = [&](const Var& v) {
    const Tensor t = exe.tensor(v);
    return Floats(t.ptr<float>(), t.ptr<float>() + t.size());
  };
  Results r{get(y), get(gradients[0]), get(gradients[1]), {}, get(dropped)[0]};
  for (std::size_t i = 2; i < gradients.size(); ++i) {
    const auto d = get(gradients[i]);
    r.dmatrices.insert(r.dmatrices.end(), d.begin(), d.end());
  }
  return r;
}

void expect_near(const Floats& got, const Floats& whole, int rank, const char* what) {
  const auto* want = whole.data() + static_cast<std::size_t>(rank) * got.size();
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 1e-5 * (1 + std::fabs(want[i]))) << what << ' ' << i << ", rank " << rank;
}

/// Some experts are chosen by no token, and some ranks send nothing to each other.
TEST(expert_exchange, ranks_that_divide_experts_compute_what_one_rank_computes) {
  for (const int count : {1, 2, 5}) {
    Results one;
    testing::run_ranks(1, [&](const comm::Group& g) { one = run_mixture(g, kTokens, count); });
    for (const int ranks : {2, 4})
      testing::run_ranks(ranks, [&](const comm::Group& g) {
        const auto r = run_mixture(g, kTokens / ranks, count);
        EXPECT_EQ(r.dropped, 0);
        expect_near(r.y, one.y, g.rank(), "y");
        expect_near(r.dx, one.dx, g.rank(), "dx");
        expect_near(r.dscores, one.dscores, g.rank(), "dscores");
        expect_near(r.dmatrices, one.dmatrices, g.rank(), "dmatrices");
      });
  }
}

/// Of the room, only whether it is enough counts.
TEST(expert_exchange, room_beyond_what_is_needed_changes_no_bit) {
  testing::run_ranks(2, [](const comm::Group& g) {
    const auto some = run_mixture(g, kTokens / 2, 2), much = run_mixture(g, 3 * kTokens, 2),
               little = run_mixture(g, 1, 2);
    EXPECT_EQ(some.y, much.y);
    EXPECT_EQ(some.dx, much.dx);
    EXPECT_EQ(some.dscores, much.dscores);
    EXPECT_EQ(some.dmatrices, much.dmatrices);
    EXPECT_GT(little.dropped, 0);
  });
}

}  // namespace
}  // namespace hpcdl
