#include "hpcdl/ops/exchange/exchange.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/exchange/chunks.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/parallel/axis.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl {
namespace {

using Floats = std::vector<float>;
using Call = std::function<Var(const Var&, const Axis&)>;
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
Floats twice(Floats v) {
  for (auto& x : v) x *= 2;
  return v;
}

struct Results {
  Floats y, dx;
  Program program;
};

/// y = f(x + 0) and the gradient of x; with `again`, y = f(x + 0) + f(x + 0), whose gradients are summed in that of x +
/// 0.
Results run(const comm::Group& group, const Call& f, const Shape& shape, const Floats& x, const Floats& dy,
            bool again = false) {
  const parallel::GroupAxis ranks(group);
  Pool pool(2);
  Stream s(pool);
  Graph g;
  const Spec spec{shape, DType::f32};
  const Var in = g.differentiable_input("x", spec), zero = g.input("zero", spec);
  const Var z = add(in, zero);
  const Var y = again ? add(f(z, ranks.axis()), f(z, ranks.axis())) : f(z, ranks.axis());
  const Var up = g.input("dy", y.spec());
  g.keep(y);
  g.backward(y, up);
  const Var dx = g.keep(g.gradient(in));
  const Instance exe(g.finish());
  const auto fill = [&](const Var& v, const Floats& from) {
    EXPECT_EQ(v.shape().size(), std::ssize(from));
    if (from.empty()) return;
    std::copy(from.begin(), from.end(), exe.tensor(v).ptr<float>());
  };
  fill(in, x), fill(zero, Floats(x.size())), fill(up, dy);
  exe.run(s);
  const auto get = [&](const Var& v) {
    if (v.shape().size() == 0) return Floats();
    const Tensor t = exe.tensor(v);
    return Floats(t.ptr<float>(), t.ptr<float>() + t.size());
  };
  return {get(y), get(dx), exe.program()};
}

std::vector<std::string> ops_of(const Program& p) {
  std::vector<std::string> list;
  for (const auto& r : p.records) list.emplace_back(r.op.view());
  return list;
}

const Call kEnter = [](const Var& x, const Axis& a) { return enter(x, a); };
const Call kLeave = [](const Var& x, const Axis& a) { return leave(x, a); };
const Call kGather = [](const Var& x, const Axis& a) { return gather_rows(x, a); };
const Call kScatter = [](const Var& x, const Axis& a) { return scatter_rows(x, a); };
const Call kSwap = [](const Var& x, const Axis& a) { return swap_parts(x, a); };
const Call kColumns = [](const Var& x, const Axis& a) { return gather_columns(x, a); };

/// Runs f(ranks, group) for every number of ranks.
void on_ranks(const std::function<void(int, const comm::Group&)>& f) {
  for (const int n : kRanks) testing::run_ranks(n, [&](const comm::Group& world) { f(n, world); });
}

TEST(exchange, enter_sums_gradients_and_leave_sums_values) {
  on_ranks([](int n, const comm::Group& g) {
    const std::int64_t size = B * 4 * C;
    const auto in = run(g, kEnter, {B, 4, C}, values(size, 1), values(size, 50 + g.rank()));
    EXPECT_EQ(in.y, values(size, 1));
    EXPECT_EQ(in.dx, sum_of(n, size, 50));
    EXPECT_EQ(run(g, kEnter, {B, 4, C}, values(size, 1), values(size, 50 + g.rank()), true).dx,
              twice(sum_of(n, size, 50)));
    const auto out = run(g, kLeave, {B, 4, C}, values(size, 50 + g.rank()), values(size, 1));
    EXPECT_EQ(out.y, sum_of(n, size, 50));
    EXPECT_EQ(out.dx, values(size, 1));
  });
}

/// Neither copies: the only records are the sum itself and those of the surrounding ops.
TEST(exchange, enter_and_leave_take_no_pass_over_memory) {
  testing::run_ranks(2, [](const comm::Group& g) {
    const Floats x = values(B * C, 1);
    const Call before = [](const Var& v, const Axis& a) { return softmax(enter(v, a)); };
    const auto in = run(g, before, {B, C}, x, x), out = run(g, kLeave, {B, C}, x, x);
    EXPECT_EQ(ops_of(in.program), (std::vector<std::string>{"add", "softmax", "softmax", "all_reduce", "add"}));
    EXPECT_EQ(in.program.records[3].phase, Phase::backward);
    EXPECT_EQ(ops_of(out.program), (std::vector<std::string>{"add", "all_reduce", "add"}));
    EXPECT_EQ(out.program.records[1].phase, Phase::forward);
  });
}

TEST(exchange, rows_are_gathered_and_scattered_in_the_order_of_memory) {
  on_ranks([](int n, const comm::Group& g) {
    const std::int64_t mine = B * 4 * C, all = mine * n;
    const Floats own = part(values(all, 1), g.rank(), n), whole = values(all, 50 + g.rank());
    const auto sums = part(sum_of(n, all, 50), g.rank(), n);
    const auto gathered = run(g, kGather, {B, 4, C}, own, whole);
    EXPECT_EQ(gathered.y, values(all, 1));
    EXPECT_EQ(gathered.dx, sums);
    EXPECT_EQ(run(g, kGather, {B, 4, C}, own, whole, true).dx, twice(sums));
    const auto scattered = run(g, kScatter, {B, 4 * n, C}, whole, own);
    EXPECT_EQ(scattered.y, sums);
    EXPECT_EQ(scattered.dx, values(all, 1));
    EXPECT_EQ(run(g, kScatter, {B, 4 * n, C}, whole, own, true).dx, twice(values(all, 1)));
  });
}

TEST(exchange, columns_of_all_ranks_stand_side_by_side) {
  on_ranks([](int n, const comm::Group& g) {
    const std::int64_t rows = B * 4, all = rows * C * n;
    const auto columns = [&](const Floats& v) {
      Floats mine;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < C; ++c) mine.push_back(v[static_cast<std::size_t>((r * n + g.rank()) * C + c)]);
      return mine;
    };
    const Call same = [&](const Var& x, const Axis& a) { return gather_columns(x, a, g.rank()); };
    for (const bool again : {false, true}) {
      const auto times = [&](const Floats& v) { return again ? twice(v) : v; };
      const auto summed = run(g, kColumns, {B, 4, C}, columns(values(all, 1)), values(all, 50 + g.rank()), again);
      EXPECT_EQ(summed.y, times(values(all, 1)));
      EXPECT_EQ(summed.dx, times(columns(sum_of(n, all, 50))));
      const auto alike = run(g, same, {B, 4, C}, columns(values(all, 1)), values(all, 9), again);
      EXPECT_EQ(alike.y, times(values(all, 1)));
      EXPECT_EQ(alike.dx, times(columns(values(all, 9))));
    }
  });
}

TEST(exchange, parts_are_swapped_with_all_ranks) {
  on_ranks([](int n, const comm::Group& g) {
    const std::int64_t of_part = 2 * C, mine = of_part * n;
    // Part r of what rank `of` has.
    const auto swapped = [&](int seed) {
      Floats all;
      for (int r = 0; r < n; ++r) {
        const auto from = part(values(mine, seed + r), g.rank(), n);
        all.insert(all.end(), from.begin(), from.end());
      }
      return all;
    };
    for (const bool again : {false, true}) {
      const auto got = run(g, kSwap, {2 * n, C}, values(mine, 1 + g.rank()), values(mine, 50 + g.rank()), again);
      EXPECT_EQ(got.y, again ? twice(swapped(1)) : swapped(1));
      EXPECT_EQ(got.dx, again ? twice(swapped(50)) : swapped(50));
    }
  });
}

/// Every token of every rank at its position, and columns of all ranks; the gradients are the inverse.
TEST(exchange, chunks_and_columns_take_their_places) {
  for (const int n : kRanks)
    testing::run_ranks(1, [&](const comm::Group& g) {
      constexpr std::int64_t kTokens = 2;  // of a chunk
      const std::int64_t chunks = 2 * n, length = chunks * kTokens, all = B * length * C;
      std::vector<std::size_t> of_rank;  // where the elements of the order by rank are in that by position
      for (int r = 0; r < n; ++r)
        for (const std::int64_t chunk : {std::int64_t{r}, chunks - 1 - r})
          for (std::int64_t b = 0; b < B; ++b)
            for (std::int64_t i = 0; i < kTokens * C; ++i)
              of_rank.push_back(static_cast<std::size_t>((b * length + chunk * kTokens) * C + i));
      const auto by_rank = [&](const Floats& v) {
        Floats list;
        for (const auto i : of_rank) list.push_back(v[i]);
        return list;
      };
      const Shape rows{chunks * B, kTokens, C}, sequences{B, length, C};
      const Floats x = values(all, 1), dy = values(all, 2);
      for (const bool again : {false, true}) {
        const auto times = [&](const Floats& v) { return again ? twice(v) : v; };
        const Call order = [&](const Var& v, const Axis&) { return order_chunks(v, n); };
        const auto ordered = run(g, order, rows, by_rank(x), dy, again);
        EXPECT_EQ(ordered.y, times(x));
        EXPECT_EQ(ordered.dx, times(by_rank(dy)));
        const Call divide = [&](const Var& v, const Axis&) { return divide_chunks(v, n); };
        const auto divided = run(g, divide, sequences, x, by_rank(dy), again);
        EXPECT_EQ(divided.y, times(by_rank(x)));
        EXPECT_EQ(divided.dx, times(dy));
        Floats columns;
        for (int r = 0; r < n; ++r)
          for (std::int64_t row = 0; row < B * 2; ++row)
            for (std::int64_t c = 0; c < C; ++c)
              columns.push_back(values(B * 2 * C * n, 3)[static_cast<std::size_t>((row * n + r) * C + c)]);
        const Call apart = [&](const Var& v, const Axis&) { return record<DivideColumns>({n}, v); };
        const auto got = run(g, apart, {B, 2, C * n}, values(B * 2 * C * n, 3), columns, again);
        EXPECT_EQ(got.y, times(columns));
        EXPECT_EQ(got.dx, times(values(B * 2 * C * n, 3)));
      }
    });
  EXPECT_THROW(OrderChunks::infer({{6, 2, C}, DType::f32}, {2}), Error);
  EXPECT_THROW(DivideChunks::infer({{B, 6, C}, DType::f32}, {2}), Error);
  EXPECT_THROW(DivideColumns::infer({{B, 6, C}, DType::f32}, {2}), Error);
}

/// Slices of a wider tensor, as of a packed projection, become dense; their gradients are parts of its gradient.
TEST(exchange, columns_of_a_slice_are_divided) {
  testing::run_ranks(1, [](const comm::Group& g) {
    const Call copy = [](const Var& x, const Axis&) { return record<DivideColumns>({2}, x.graph().slice(x, 1, 4)); };
    const auto got = run(g, copy, {2, 3, 5}, values(30, 1), values(24, 2));
    Floats want(30);
    for (std::size_t i = 0; i < 24; ++i) {
      const std::size_t row = i % 12 / 2, column = 1 + i / 12 * 2 + i % 2;
      EXPECT_EQ(got.y[i], values(30, 1)[row * 5 + column]);
      want[row * 5 + column] = values(24, 2)[i];
    }
    EXPECT_EQ(got.dx, want);
  });
}

/// Shares of a different width on each rank, without gradient.
TEST(exchange, uneven_columns_are_joined) {
  on_ranks([](int n, const comm::Group& g) {
    const ColumnShares shares{17, 1, n};
    const auto begin = shares.begin(g.rank()), count = shares.count(g.rank());
    OwnedTensor x({{2, count}, DType::f32});
    for (std::int64_t i = 0; i < x.tensor.size(); ++i)
      x.tensor.ptr<float>()[i] = static_cast<float>(i / count * 17 + begin + i % count);
    const parallel::GroupAxis ranks(g);
    Pool pool(1);
    Stream s(pool);
    Graph graph({.inference = true});
    const Var y = graph.keep(gather_columns(graph.constant("x", x.tensor), ranks.axis(), shares));
    const Instance exe(graph.finish());
    exe.run(s);
    Floats want(34);
    std::iota(want.begin(), want.end(), 0.0f);
    EXPECT_EQ(Floats(exe.tensor(y).ptr<float>(), exe.tensor(y).ptr<float>() + 34), want);
  });
}

/// Each record declares the bytes that the communicator counts.
TEST(exchange, what_records_declare_is_what_is_counted) {
  for (const auto& [f, shape] : {std::pair(kEnter, Shape{B, 4, C}),
                                 {kLeave, Shape{B, 4, C}},
                                 {kGather, {B, 4, C}},
                                 {kScatter, {B, 12, C}},
                                 {kSwap, {B, 4, C}},
                                 {kColumns, {B, 4, C}}})
    testing::run_ranks(3, [&](const comm::Group& g) {
      const parallel::GroupAxis ranks(g);
      Graph graph;
      const Var x = graph.input("x", {shape, DType::f32});
      const auto out = f(add(x, x), ranks.axis()).shape().size();
      const auto before = g.counters().bytes;
      const auto r = run(g, f, shape, values(shape.size(), 1), values(out, 1));
      std::int64_t declared = 0;
      for (const auto& record : r.program.records)
        for (const auto& e : exchanges(r.program, record)) {
          EXPECT_EQ(e.axis, "world of 3");
          declared += e.kind == ExchangeKind::all_reduce ? e.bytes : e.bytes / e.ranks;
        }
      EXPECT_GT(declared, 0);
      EXPECT_EQ(g.counters().bytes - before, declared);
    });
}

TEST(exchange, empty_tensors_and_lengths_that_do_not_divide) {
  testing::run_ranks(3, [](const comm::Group& g) {
    const parallel::GroupAxis ranks(g);
    for (const auto& f : {kEnter, kLeave, kGather, kColumns}) EXPECT_TRUE(run(g, f, {0, 4, C}, {}, {}).y.empty());
    EXPECT_THROW(ReduceScatter::infer({{B, 4, C}, DType::f32}, {ranks.axis()}), Error);
    EXPECT_THROW(AllGather::infer({{}, DType::f32}, {ranks.axis()}), Error);
  });
}

std::string refusal(const std::function<void(Graph&, const Var&, const Axis&)>& f) try {
  const parallel::GroupAxis ranks{comm::Group()};
  Graph g;
  f(g, g.differentiable_input("x", {{B, C}, DType::f32}), ranks.axis());
  return "no error";
} catch (const Error& e) {
  return e.what();
}

TEST(exchange, what_cannot_be_overwritten_is_refused) {
  EXPECT_NE(refusal([](Graph&, const Var& x, const Axis& a) {
              leave(x, a);
            }).find("[all_reduce] works in place, so it needs all of what another op made, got F32"),
            std::string::npos);
  EXPECT_NE(refusal([](Graph&, const Var& x, const Axis& a) {
              const Var y = add(x, x);
              add(y, x), leave(y, a);
            }).find("\"add\" has already read its operand"),
            std::string::npos);
  EXPECT_NE(refusal([](Graph&, const Var& x, const Axis& a) {
              leave(softmax(x), a);
            }).find("the gradient of \"softmax\" needs what it would overwrite"),
            std::string::npos);
  EXPECT_NE(refusal([](Graph& g, const Var& x, const Axis& a) {
              const Var y = add(x, x);
              g.checkpoint([&] { return leave(y, a); });
            }).find("within the checkpoint() that computes its operand"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl
