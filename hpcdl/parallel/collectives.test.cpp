#include "hpcdl/parallel/collectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::parallel {
namespace {

using Floats = std::vector<float>;
constexpr std::int64_t B = 3, C = 5;
const int kRanks[] = {1, 2, 3, 4, 5, 8};

/// Small integers: sums are exact in any order.
Floats values(std::int64_t n, int seed) {
  Floats v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(seed) * 31) % 23) - 11;
  return v;
}
Floats sum_of(int ranks, std::int64_t n, int seed) {
  Floats sum(static_cast<std::size_t>(n));
  for (int r = 0; r < ranks; ++r) {
    const auto v = values(n, seed + r);
    for (std::size_t i = 0; i < v.size(); ++i) sum[i] += v[i];
  }
  return sum;
}
/// The r-th of `ranks` parts.
Floats part(const Floats& v, int r, int ranks) {
  const auto n = std::ssize(v) / ranks;
  return Floats(v.begin() + r * n, v.begin() + (r + 1) * n);
}
Floats plus(Floats v, float add) {
  for (auto& x : v) x += add;
  return v;
}

struct Results {
  Floats y, dx, added;  // added: dx on top of 3
};

template <class Op> Results run(const typename Op::Args& a, const Shape& shape, Floats x, Floats dy) {
  Pool pool(2);
  Stream s(pool);
  const Spec in{shape, DType::f32}, out = Op::infer(in, a);
  EXPECT_EQ(std::ssize(dy), out.size());
  Results r{Floats(static_cast<std::size_t>(out.size()), NAN), Floats(x.size(), NAN), Floats(x.size(), 3.0f)};
  std::vector<OwnedTensor> memory;
  const auto scratch = [&](const auto& list, std::size_t i) { return memory.emplace_back(list[i]).tensor; };
  const Tensor y(r.y.data(), out);
  if constexpr (requires { Op::scratch(in, a); })
    Op::forward(s, y, View(x.data(), in), scratch(Op::scratch(in, a), 0), a);
  else Op::forward(s, y, View(x.data(), in), a);
  for (const Grad& dx :
       {Grad(Tensor(r.dx.data(), in), Write::overwrite), Grad(Tensor(r.added.data(), in), Write::accumulate)}) {
    const View up(dy.data(), out);
    if constexpr (requires { Op::scratch(in, a); }) {
      const Tensor first = scratch(Op::backward_scratch(in, a), 0);
      Op::backward(s, dx, up, first, scratch(Op::backward_scratch(in, a), 1), a);
    } else if constexpr (requires { Op::backward_scratch(in, a); }) {
      Op::backward(s, dx, up, scratch(Op::backward_scratch(in, a), 0), a);
    } else {
      Op::backward(s, dx, up, a);
    }
  }
  EXPECT_EQ(r.added, plus(r.dx, 3)) << Op::name;
  return r;
}

/// f(ranks, group) on every number of ranks.
void on_ranks(const std::function<void(int, const comm::Group&)>& f) {
  for (const int n : kRanks) testing::run_ranks(n, [&](const comm::Group& world) { f(n, world); });
}

TEST(collectives, enter_sums_gradients_and_leave_sums_values) {
  on_ranks([](int n, const comm::Group& g) {
    const std::int64_t size = B * 4 * C;
    const auto in = run<Enter>(Peers(g), {B, 4, C}, values(size, 1), values(size, 50 + g.rank()));
    EXPECT_EQ(in.y, values(size, 1));
    EXPECT_EQ(in.dx, sum_of(n, size, 50));
    const auto out = run<Leave>(Peers(g), {B, 4, C}, values(size, 50 + g.rank()), values(size, 1));
    EXPECT_EQ(out.y, sum_of(n, size, 50));
    EXPECT_EQ(out.dx, values(size, 1));
  });
}

TEST(collectives, rows_are_gathered_and_scattered_in_the_order_of_memory) {
  on_ranks([](int n, const comm::Group& g) {
    const std::int64_t mine = B * 4 * C, all = mine * n;
    const auto gathered =
        run<GatherRows>(Peers(g), {B, 4, C}, part(values(all, 1), g.rank(), n), values(all, 50 + g.rank()));
    EXPECT_EQ(gathered.y, values(all, 1));
    EXPECT_EQ(gathered.dx, part(sum_of(n, all, 50), g.rank(), n));
    const auto scattered =
        run<ScatterRows>(Peers(g), {B, 4 * n, C}, values(all, 50 + g.rank()), part(values(all, 1), g.rank(), n));
    EXPECT_EQ(scattered.y, part(sum_of(n, all, 50), g.rank(), n));
    EXPECT_EQ(scattered.dx, values(all, 1));
  });
}

TEST(collectives, columns_of_all_ranks_stand_side_by_side) {
  on_ranks([](int n, const comm::Group& g) {
    const std::int64_t rows = B * 4, all = rows * C * n;
    const auto columns = [&](const Floats& v) {
      Floats mine;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < C; ++c) mine.push_back(v[static_cast<std::size_t>((r * n + g.rank()) * C + c)]);
      return mine;
    };
    const auto summed =
        run<GatherColumns>({Peers(g), true}, {B, 4, C}, columns(values(all, 1)), values(all, 50 + g.rank()));
    EXPECT_EQ(summed.y, values(all, 1));
    EXPECT_EQ(summed.dx, columns(sum_of(n, all, 50)));
    EXPECT_EQ(run<GatherColumns>({Peers(g), false}, {B, 4, C}, columns(values(all, 1)), values(all, 9)).dx,
              columns(values(all, 9)));
  });
}

TEST(collectives, empty_tensors_and_lengths_that_do_not_divide) {
  testing::run_ranks(3, [](const comm::Group& g) {
    EXPECT_TRUE(run<Leave>(Peers(g), {0, 4, C}, {}, {}).y.empty());
    EXPECT_TRUE(run<GatherRows>(Peers(g), {0, 4, C}, {}, {}).y.empty());
    EXPECT_TRUE(run<GatherColumns>({Peers(g), true}, {0, 4, C}, {}, {}).y.empty());
    EXPECT_THROW(ScatterRows::infer({{B, 4, C}, DType::f32}, Peers(g)), Error);
    EXPECT_THROW(GatherRows::infer({{C}, DType::f32}, Peers(g)), Error);
  });
}

}  // namespace
}  // namespace hpcdl::parallel
