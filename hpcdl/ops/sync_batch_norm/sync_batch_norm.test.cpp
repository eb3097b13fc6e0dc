#include "hpcdl/ops/sync_batch_norm/sync_batch_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "hpcdl/comm/device_group.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/parallel/axis.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl {
namespace {

using Floats = std::vector<float>;
constexpr std::int64_t kRows = 141, C = 19;

/// Rows [begin, end) of the whole batch; each channel has a different mean, far from zero.
Floats batch(std::uint64_t seed, std::int64_t begin, std::int64_t end, float offset) {
  Floats v;
  for (auto i = begin * C; i < end * C; ++i)
    v.push_back(static_cast<float>(Rng{seed}.normal(static_cast<std::uint64_t>(i))) +
                offset * static_cast<float>(i % C));
  return v;
}

struct Result {
  Floats y, dx, dresidual, dweight, dbias, mean, var;
  bool operator==(const Result&) const = default;
};

struct Where {
  Device device = {};
  comm::Group group = {};  // the group of the norm's ranks
  bool captured = false;   // the second pass is a replay of a captured graph
};

/// Two training passes over rows [begin, end).
Result train(std::int64_t begin, std::int64_t end, bool residual,
             const std::function<Var(Var x, Var w, Var b, Var mean, Var var, Var residual)>& norm,
             const Where& where = {}) {
  Pool pool(2);
  StepParams params;
  Stream s(where.device, pool, &params);
  const Spec xs{{end - begin, C}, DType::f32}, cs{{C}, DType::f32};
  OwnedTensor weight(cs, where.device), bias(cs, where.device), dweight(cs, where.device), dbias(cs, where.device),
      mean(cs, where.device), var(cs, where.device), dy(xs, where.device);
  const auto put = [&](const Tensor& t, const Floats& v) { copy(s, t, View(v.data(), t.spec())); };
  const auto get = [&](const View& t) {
    Floats v(static_cast<std::size_t>(t.size()));
    copy(s, Tensor(v.data(), t.spec()), t);
    return v;
  };
  Floats w, b;
  for (std::int64_t c = 0; c < C; ++c)
    w.push_back(0.5f + static_cast<float>(c % 5) / 4), b.push_back(static_cast<float>(c % 3) - 1);
  put(weight.tensor, w), put(bias.tensor, b), put(mean.tensor, Floats(C, 0.0f)), put(var.tensor, Floats(C, 1.0f)),
      put(dy.tensor, batch(3, begin, end, 0));
  Graph g;
  const Var x = g.differentiable_input("x", xs), r = residual ? g.differentiable_input("r", xs) : Var();
  const Var y = norm(x, g.parameter("w", weight.tensor, dweight.tensor), g.parameter("b", bias.tensor, dbias.tensor),
                     g.constant("m", mean.tensor), g.constant("v", var.tensor), r);
  g.keep(y);
  g.backward(y, g.constant("dy", dy.tensor));
  const Var dx = g.keep(g.gradient(x)), dr = residual ? g.keep(g.gradient(r)) : Var();
  Instance exe(g.finish(), nullptr, where.device);
  for (std::uint64_t pass = 0; pass < 2; ++pass) {
    put(exe.tensor(x), batch(10 + pass, begin, end, 7));
    if (residual) put(exe.tensor(r), batch(20 + pass, begin, end, 0));
    if (where.captured && pass == 1) exe.capture(s);
    exe.run(s);
    comm::synchronize(where.group, s);
  }
  return {get(exe.tensor(y)),  get(exe.tensor(dx)), residual ? get(exe.tensor(dr)) : Floats(),
          get(dweight.tensor), get(dbias.tensor),   get(mean.tensor),
          get(var.tensor)};
}

void expect_near(const Floats& got, const float* want, float tolerance, const char* what) {
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << what << " " << i;
}

/// Batches of uneven size, one per rank, on GPUs or on threads of a CPU, against one process with the whole batch.
/// Means of up to 126 have ulps of 8e-6, values of y are below 8.
void ranks_equal_one(int ranks, bool on_gpus, bool captured) {
  const auto device = [&](int rank) { return on_gpus ? Device::cuda(rank) : Device(); };
  for (const bool residual : {false, true}) {
    const BatchNorm::Args args{.momentum = 0.3f, .relu = true};
    const Result want =
        train(0, kRows, residual,
              [&](Var x, Var w, Var b, Var m, Var v, Var r) { return batch_norm(x, w, b, m, v, args, r); },
              {.device = device(0)});
    std::vector<Result> got(static_cast<std::size_t>(ranks));
    const auto begin = [&](int r) { return r == ranks ? kRows : kRows * r / ranks / 2; };
    testing::run_ranks(ranks, [&](const comm::Group& world) {
      const parallel::GroupAxis data(world);
      if (on_gpus) world.connect(device(world.rank()));  // which is not possible while a graph is captured
      const auto part = [&](bool graph) {
        return train(begin(world.rank()), begin(world.rank() + 1), residual,
                     [&](Var x, Var w, Var b, Var m, Var v, Var r) {
                       return sync_batch_norm(x, w, b, m, v, args, data.axis(), r);
                     },
                     {.device = device(world.rank()), .group = world, .captured = graph});
      };
      auto& mine = got[static_cast<std::size_t>(world.rank())];
      mine = part(false);
      if (captured) {
        EXPECT_TRUE(part(true) == mine) << "a replay has different bits";
      }
    });
    Floats dweight(C), dbias(C);
    for (int r = 0; r < ranks; ++r) {
      const auto& one = got[static_cast<std::size_t>(r)];
      const auto at = static_cast<std::size_t>(begin(r) * C);
      expect_near(one.y, &want.y[at], 4e-5f, "y");
      expect_near(one.dx, &want.dx[at], 4e-5f, "dx");
      if (residual) expect_near(one.dresidual, &want.dresidual[at], 0, "dresidual");
      expect_near(one.mean, want.mean.data(), 4e-5f, "running mean");
      expect_near(one.var, want.var.data(), 1e-5f, "running var");
      EXPECT_EQ(one.mean, got[0].mean) << "bits differ between ranks";
      EXPECT_EQ(one.var, got[0].var);
      for (std::size_t c = 0; c < C; ++c) dweight[c] += one.dweight[c], dbias[c] += one.dbias[c];
    }
    expect_near(dweight, want.dweight.data(), 2e-3f, "dweight");  // sums of 141 products of about 1, n is off by 1e-5
    expect_near(dbias, want.dbias.data(), 1e-4f, "dbias");
  }
}

class SyncBatchNormTest : public ::testing::TestWithParam<int> {};

TEST_P(SyncBatchNormTest, EqualsOneRankOnTheWholeBatch) { ranks_equal_one(GetParam(), false, false); }

class SyncBatchNormCudaRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, SyncBatchNormCudaRanks, ::testing::Values(2, 4));

TEST_P(SyncBatchNormCudaRanks, EqualOneGpuOnTheWholeBatch) {
  if (cuda_devices() < GetParam())
    GTEST_SKIP() << "SKIPPED: needs " << GetParam() << " GPUs, this process sees " << cuda_devices();
  ranks_equal_one(GetParam(), true, true);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SyncBatchNormTest, ::testing::Values(1, 2, 3, 4));

TEST(SyncBatchNorm, NormalisingEachBatchAloneIsSomethingElse) {
  const auto alone =
      train(0, 40, false, [](Var x, Var w, Var b, Var m, Var v, Var) { return batch_norm(x, w, b, m, v); });
  const auto whole =
      train(0, kRows, false, [](Var x, Var w, Var b, Var m, Var v, Var) { return batch_norm(x, w, b, m, v); });
  float most = 0;
  for (std::size_t i = 0; i < alone.y.size(); ++i) most = std::max(most, std::fabs(alone.y[i] - whole.y[i]));
  EXPECT_GT(most, 1e-2f) << "the tolerances above would not detect the difference";
}

}  // namespace
}  // namespace hpcdl
