#include "hpcdl/parallel/shard_pass.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/instance.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/parallel/unit.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::parallel {
namespace {

constexpr std::int64_t kWidth = 20;

/// Square matrices in one unit each, and a chain of products with some of them.
struct Chain {
  std::vector<std::string> names;
  UnitPlan plan;
  std::vector<std::size_t> order;  // of the products

  Chain(int matrices, std::vector<std::size_t> products, int ranks) : order(std::move(products)) {
    std::vector<UnitTensor> tensors;
    for (int i = 0; i < matrices; ++i) {
      names.push_back("m" + std::to_string(i));
      tensors.push_back({"unit " + names.back(), kWidth * kWidth, names.back()});
    }
    plan = plan_units(tensors, ranks);
  }
  struct Vars {
    Var x, y;
  };
  Vars record(Graph& g, const std::vector<Tensor>& values) const {
    const Var x = g.input("x", {{3, kWidth}, DType::f32});
    Var y = x;
    for (const auto i : order) y = linear(y, g.constant(names[i], values[i]));
    return {x, g.keep(y)};
  }
  std::vector<Tensor> specs() const {
    return std::vector<Tensor>(names.size(), Tensor(nullptr, {{kWidth, kWidth}, DType::f32}));
  }
  Program program() const {
    Graph g;
    record(g, specs());
    return g.finish().program;
  }
  std::vector<Held> held(int ahead) const {
    const UnitExchange units(comm::Group::described(0, plan.ranks, "dp"), plan, {}, false, {});
    const ShardedBlock block{"values", &units, Tensor(nullptr, {{plan.share_elements()}, DType::f32}), names};
    return held_units(program(), std::span(&block, 1), ahead);
  }
};

/// "owner gather first last" of each.
std::string text_of(const std::vector<Held>& held) {
  std::string text;
  for (const auto& h : held)
    text += (text.empty() ? "" : ", ") + h.owner + " " + std::to_string(h.gather) + " " + std::to_string(h.first) +
            " " + std::to_string(h.last);
  return text;
}

TEST(shard_pass, units_are_held_from_shortly_before_their_uses_to_the_last_of_them) {
  const Chain forward_and_back(4, {0, 1, 2, 3, 2, 1, 0}, 2);
  EXPECT_EQ(text_of(forward_and_back.held(0)), "m0 0 0 0, m1 1 1 1, m2 2 2 2, m3 3 3 3, m2 4 4 4, m1 5 5 5, m0 6 6 6");
  EXPECT_EQ(text_of(forward_and_back.held(1)), "m0 0 0 0, m1 0 1 1, m2 1 2 4, m3 2 3 3, m1 4 5 5, m0 5 6 6")
      << "m2 would be gathered again while it is there";
  EXPECT_EQ(text_of(forward_and_back.held(9)), "m0 0 0 6, m1 0 1 5, m2 0 2 4, m3 0 3 3");
  EXPECT_EQ(text_of(Chain(2, {0, 0, 1, 1}, 2).held(1)), "m0 0 0 1, m1 0 2 3");
  EXPECT_EQ(text_of(Chain(3, {1}, 2).held(1)), "m1 0 0 0") << "what no record uses is not gathered";
  EXPECT_EQ(text_of(Chain(1, {}, 2).held(1)), "");
}

/// A part that is much smaller than the others, as a norm is, takes no time in which a gather could run.
TEST(shard_pass, small_units_hide_no_gather) {
  Chain chain(4, {0, 1, 2, 3, 2, 1, 0}, 2);
  for (std::size_t u = 0; u < 4; ++u) chain.plan.units[u].elements *= u == 2 ? 1 : 100;
  EXPECT_EQ(text_of(chain.held(1)), "m0 0 0 0, m1 0 1 1, m2 1 2 4, m3 1 3 3, m1 3 5 5, m0 5 6 6");
}

/// The same bits as with whole values, whatever is held how long, and the program as it was under the edit.
TEST(shard_pass, passes_compute_the_same_bits_from_shares) {
  for (const int n : {1, 2, 3, 7})
    for (const int ahead : {0, 1, 5})
      testing::run_ranks(n, [&](const comm::Group& world) {
        const Chain chain(4, {0, 1, 2, 3, 2, 1, 0}, n);
        const OwnedTensor all({{chain.plan.elements}, DType::f32}), shares({{chain.plan.share_elements()}, DType::f32});
        std::vector<Tensor> whole;
        std::memset(all.tensor.data(), 0, static_cast<std::size_t>(all.tensor.bytes()));
        for (std::size_t i = 0; i < chain.names.size(); ++i) {
          whole.emplace_back(all.tensor.ptr<float>() + chain.plan.offset[i], Spec{{kWidth, kWidth}, DType::f32});
          for (std::int64_t k = 0; k < kWidth * kWidth; ++k)
            whole[i].ptr<float>()[k] = static_cast<float>(Rng{1, i}.normal(static_cast<std::uint64_t>(k)));
        }
        for (const auto& unit : chain.plan.units) {
          const auto mine = chain.plan.share(unit, world.rank());
          std::memcpy(shares.tensor.ptr<float>() + unit.offset / n, all.tensor.ptr<float>() + mine.begin,
                      static_cast<std::size_t>(mine.count()) * sizeof(float));
        }
        Pool pool(1);
        Stream s(pool);
        const auto result = [&](Recording pass, const Chain::Vars& vars) {
          const Instance exe(std::move(pass));
          auto x = exe.tensor(vars.x);
          std::iota(x.ptr<float>(), x.ptr<float>() + x.size(), -20.0f);
          exe.run(s);
          const auto y = exe.tensor(vars.y);
          return std::vector<float>(y.ptr<float>(), y.ptr<float>() + y.size());
        };
        Graph g, sharded;
        const auto vars = chain.record(g, whole), same = chain.record(sharded, chain.specs());
        auto plain = g.finish();
        const auto before = to_bytes(plain.program);
        const UnitExchange units(world, chain.plan, {}, false, {});
        const ShardedBlock block{"values", &units, shares.tensor, chain.names};
        auto edited = shard_pass(sharded.finish(), std::span(&block, 1), ahead);
        EXPECT_EQ(to_bytes(strip(edited.program)), before);
        EXPECT_EQ(edited.program.records.size(), chain.order.size() + chain.held(ahead).size());
        EXPECT_EQ(result(std::move(edited), same), result(std::move(plain), vars));
      });
}

}  // namespace
}  // namespace hpcdl::parallel
