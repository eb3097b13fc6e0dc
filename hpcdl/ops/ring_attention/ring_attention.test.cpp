#include "hpcdl/ops/ring_attention/ring_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/parallel/axis.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl {
namespace {

struct Case {
  int ranks;
  bool zigzag;
  std::int64_t batch, chunk, depth;
  int heads, kv_heads;
  float cap = 0;
  std::int64_t window = 0;
  DType type = DType::f32;
  float scale = 0;

  std::int64_t length() const { return 2 * ranks * chunk; }
  RingArgs args(const Axis& axis, int rank) const {
    return {.axis = axis,
            .rank = rank,
            .zigzag = zigzag,
            .heads = heads,
            .kv_heads = kv_heads,
            .scale = scale,
            .cap = cap,
            .window = window};
  }
  std::string describe() const {
    return fmt::format("{} ranks, {}, {} x {} tokens, {}/{} heads of {}, cap {}, window {}, {}", ranks,
                       zigzag ? "zigzag" : "in a row", batch, chunk, heads, kv_heads, depth, cap, window,
                       dtype_name(type));
  }
};

using Values = std::vector<float>;  // (B, T, C)

Values random(std::int64_t n, std::uint64_t key) {
  Values v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(Rng{7, key}.normal(i));
  return v;
}

/// What all ranks together have, or what attention() on one rank gives: the output and the gradients of q, k and v.
struct Results {
  std::map<std::string, Values> of;
};

void put(const Tensor& t, std::int64_t i, float x) {
  visit_dtype(t.dtype(), [&]<class T>() { t.ptr<T>()[i] = T(x); });
}
float get(const Tensor& t, std::int64_t i) {
  float x = 0;
  visit_dtype(t.dtype(), [&]<class T>() { x = static_cast<float>(t.ptr<T>()[i]); });
  return x;
}

/// f(element of the rank's tensor, element of the whole one).
template <class F> void each_element(const Case& c, int rank, std::int64_t width, F&& f) {
  const auto plan = RingPlan{c.ranks, c.zigzag, c.chunk, c.window};
  std::int64_t mine = 0;
  for (int i = 0; i < 2; ++i)
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t t = 0; t < c.chunk; ++t)
        for (std::int64_t w = 0; w < width; ++w, ++mine) {
          const auto whole = plan.place(rank, i) * c.chunk + t;
          f(mine, (b * c.length() + whole) * width + w);
        }
}

struct Recorded {
  Var q, k, v, y, dy, dq, dk, dv;
};

/// y = attend(...) of columns of one tensor; with `twice`, y is the sum of two calls.
template <class F> Recorded record_call(Graph& g, const Shape& rows, const Case& c, bool twice, F&& attend) {
  const std::int64_t a = c.heads * c.depth, w = c.kv_heads * c.depth;
  Recorded r;
  const Var qkv = g.differentiable_input("qkv", {{rows[0], rows[1], a + 2 * w}, c.type});
  r.q = g.slice(qkv, 0, a), r.k = g.slice(qkv, a, w), r.v = g.slice(qkv, a + w, w);
  r.y = attend(r.q, r.k, r.v);
  if (twice) r.y = add(r.y, attend(r.q, r.k, r.v));
  r.dy = g.input("dy", r.y.spec());
  g.keep(r.y);
  g.backward(r.y, r.dy);
  const Var all = g.keep(g.gradient(qkv));
  r.dq = g.slice(all, 0, a), r.dk = g.slice(all, a, w), r.dv = g.slice(all, a + w, w);
  return r;
}

/// f(element of a dense tensor of the columns, element of the memory from their first on).
template <class F> void each_column(const Tensor& columns, F&& f) {
  const auto width = columns.cols();
  for (std::int64_t i = 0; i < columns.size(); ++i) f(i, i / width * columns.row_stride() + i % width);
}

Results on_one_rank(const Case& c, bool twice) {
  Graph g;
  const auto r = record_call(g, {c.batch, c.length()}, c, twice, [&](const Var& q, const Var& k, const Var& v) {
    return attention(q, k, v,
                     {.heads = c.heads, .kv_heads = c.kv_heads, .scale = c.scale, .cap = c.cap, .window = c.window});
  });
  const Instance exe(g.finish());
  Pool pool(2);
  Stream s(pool);
  std::uint64_t key = 0;
  for (const auto& x : {r.q, r.k, r.v, r.dy}) {
    const Tensor t = exe.tensor(x);
    const auto from = random(t.size(), ++key);
    each_column(t, [&](std::int64_t i, std::int64_t at) { put(t, at, from[static_cast<std::size_t>(i)]); });
  }
  exe.run(s);
  Results got;
  for (const auto& [name, x] : {std::pair{"y", r.y}, {"dq", r.dq}, {"dk", r.dk}, {"dv", r.dv}}) {
    const Tensor t = exe.tensor(x);
    auto& to = got.of[name];
    to.resize(static_cast<std::size_t>(t.size()));
    each_column(t, [&](std::int64_t i, std::int64_t at) { to[static_cast<std::size_t>(i)] = get(t, at); });
  }
  return got;
}

/// The same on the ranks of a ring. checked(program, group) sees what each of them has run.
template <class F> Results on_the_ring(const Case& c, bool twice, F&& checked) {
  Results got;
  for (const auto& [name, heads] : {std::pair{"y", c.heads}, {"dq", c.heads}, {"dk", c.kv_heads}, {"dv", c.kv_heads}})
    got.of[name].resize(static_cast<std::size_t>(c.batch * c.length() * heads * c.depth));
  testing::run_ranks(c.ranks, [&](const comm::Group& group) {
    const parallel::GroupAxis axis(group);
    Graph g;
    const auto r = record_call(g, {2 * c.batch, c.chunk}, c, twice, [&](const Var& q, const Var& k, const Var& v) {
      return ring_attention(q, k, v, c.args(axis.axis(), group.rank()));
    });
    const Instance exe(g.finish());
    Pool pool(1);
    Stream s(pool);
    std::uint64_t key = 0;
    for (const auto& x : {r.q, r.k, r.v, r.dy}) {
      const Tensor t = exe.tensor(x);
      const auto whole = random(c.batch * c.length() * t.cols(), ++key);
      Values mine(static_cast<std::size_t>(t.size()));
      each_element(c, group.rank(), t.cols(), [&](std::int64_t i, std::int64_t from) {
        mine[static_cast<std::size_t>(i)] = whole[static_cast<std::size_t>(from)];
      });
      each_column(t, [&](std::int64_t i, std::int64_t at) { put(t, at, mine[static_cast<std::size_t>(i)]); });
    }
    exe.run(s);
    checked(exe, group);
    for (const auto& [name, x] : {std::pair{"y", r.y}, {"dq", r.dq}, {"dk", r.dk}, {"dv", r.dv}}) {
      const Tensor t = exe.tensor(x);
      Values mine(static_cast<std::size_t>(t.size()));
      each_column(t, [&](std::int64_t i, std::int64_t at) { mine[static_cast<std::size_t>(i)] = get(t, at); });
      auto& to = got.of.at(name);  // ranks write different elements
      each_element(c, group.rank(), t.cols(), [&](std::int64_t i, std::int64_t at) {
        to[static_cast<std::size_t>(at)] = mine[static_cast<std::size_t>(i)];
      });
    }
  });
  return got;
}

/// of: "y", "dq", "dk", "dv". error: of an element, in units of the largest.
void expect_alike(const Case& c, const Results& got, const Results& want, double error,
                  std::initializer_list<std::string_view> of) {
  for (const auto& [name, values] : want.of) {
    if (std::find(of.begin(), of.end(), name) == of.end()) continue;
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::fabs(double{values[i]}));
      worst = std::max(worst, std::fabs(double{values[i]} - double{got.of.at(name)[i]}));
    }
    EXPECT_LE(worst, error * std::max(largest, 1.0)) << name << " of " << c.describe();
    EXPECT_GT(largest, 0) << name << " of " << c.describe();
  }
}

Results on_the_ring(const Case& c, bool twice = false) {
  return on_the_ring(c, twice, [](const Instance&, const comm::Group&) {});
}

void expect_like_one_rank(const Case& c, bool twice = false) {
  // Partial results are rounded to their type, so an element is off by a few of its half ulps.
  const double ulp = c.type == DType::f32 ? 2e-6 : c.type == DType::bf16 ? 0x1p-7 : 0x1p-10;
  expect_alike(c, on_the_ring(c, twice), on_one_rank(c, twice), ulp, {"y", "dq", "dk", "dv"});
}

TEST(ring_attention, is_attention_to_the_whole_sequence) {
  for (const bool zigzag : {true, false})
    for (const int ranks : {1, 2, 3, 4, 8}) {
      expect_like_one_rank({ranks, zigzag, 2, 5, 8, 2, 2});
      expect_like_one_rank({ranks, zigzag, 1, 1, 5, 3, 1});
    }
}

TEST(ring_attention, of_grouped_and_wide_heads_with_a_cap) {
  for (const bool zigzag : {true, false}) {
    expect_like_one_rank({2, zigzag, 2, 33, 64, 6, 2});
    expect_like_one_rank({3, zigzag, 1, 17, 256, 2, 1, 2.0f});
    expect_like_one_rank({2, zigzag, 1, 70, 33, 7, 1, 0.5f, 90});
  }
}

/// Windows from one key to more than the sequence has: rows of a pair see some of its keys, or none.
TEST(ring_attention, of_windows) {
  for (const bool zigzag : {true, false})
    for (const std::int64_t window : {1, 2, 4, 5, 6, 9, 11, 16, 29, 30, 41})
      expect_like_one_rank({3, zigzag, 2, 5, 8, 2, 1, 0, window});
  for (const std::int64_t window : {40, 100, 150, 200}) expect_like_one_rank({2, true, 1, 65, 16, 2, 2, 0, window});
}

TEST(ring_attention, of_16_bit_types) {
  for (const auto type : {DType::bf16, DType::f16})
    for (const std::int64_t window : {0, 13}) {
      expect_like_one_rank({2, true, 2, 9, 24, 4, 2, 0, window, type});
      expect_like_one_rank({4, false, 1, 20, 64, 2, 2, 0, window, type});
    }
}

/// A log-sum-exp of thousands keeps few digits of the logarithm, so backward on one rank finds it again in the scores. A
/// part of the keys cannot: its probabilities are those of all keys, with the error of that rounding.
TEST(ring_attention, of_far_scores) {
  for (const bool zigzag : {true, false}) {
    const Case c{3, zigzag, 1, 7, 16, 2, 1, 0, 0, DType::f32, 2000};
    expect_alike(c, on_the_ring(c), on_one_rank(c, false), 5e-3, {"y", "dv"});
  }
}

TEST(ring_attention, adds_to_gradients) {
  for (const int ranks : {1, 2, 3}) expect_like_one_rank({ranks, true, 2, 4, 8, 2, 1}, true);
}

TEST(ring_attention, sends_what_it_declares) {
  for (const bool zigzag : {true, false})
    for (const std::int64_t window : {0, 7}) {
      const Case c{4, zigzag, 2, 6, 8, 4, 2, 0, window};
      on_the_ring(c, false, [&](const Instance& exe, const comm::Group& group) {
        const std::int64_t packed = 4 * c.batch * c.chunk * c.kv_heads * c.depth * 4;
        const int steps = RingPlan{c.ranks, c.zigzag, c.chunk, window}.last_step();
        EXPECT_EQ(steps, window == 0 || zigzag ? 3 : 1);
        EXPECT_EQ(wire_bytes(exe.program(), "world of 4"), 3.0 * steps * packed);
        EXPECT_EQ(exe.program().cost().wire, 3.0 * steps * packed);
        EXPECT_EQ(static_cast<double>(group.counters().wire_bytes), wire_bytes(exe.program()));
      });
    }
}

/// However many ranks there are, two packed tensors of keys are alive at a time, and transfers go on beside records.
TEST(ring_attention, holds_two_chunks_of_keys_and_waits_late) {
  for (const int ranks : {3, 8})
    on_the_ring({ranks, true, 1, 4, 8, 2, 2}, false, [&](const Instance& exe, const comm::Group&) {
      const auto& p = exe.program();
      const auto& plan = exe.plan();
      for (std::size_t r = 0; r < p.records.size(); ++r) {
        int alive = 0;
        for (std::size_t i = 0; i < p.slots.size(); ++i) {
          const auto& l = plan.lifetime[i];
          alive += p.slots[i].name == "ring.keys" && l.first <= static_cast<int>(r) && static_cast<int>(r) <= l.last;
        }
        EXPECT_LE(alive, 2) << r;
      }
      std::vector<Lane> lanes;
      std::vector<Grad> operands;
      for (std::size_t r = 0; r < p.records.size(); ++r) {
        const auto& record = p.records[r];
        lanes.push_back(record.op == Rotate::name ? record.lane : Lane::compute);
        const auto of = exe.operands(static_cast<int>(r));
        operands.insert(operands.end(), of.begin(), of.end());
      }
      const auto found = lane_dependencies(p, lanes, operands, false);
      int rotations = 0, beside = 0;
      for (std::size_t r = 0; r < p.records.size(); ++r) {
        if (p.records[r].op != Rotate::name) continue;
        ++rotations;
        std::size_t waiting = r + 1;
        const auto waits = [&](std::size_t i) {
          return std::any_of(found.waits[i].begin(), found.waits[i].end(), [&](int w) {
            return w >= static_cast<int>(r) && lanes[static_cast<std::size_t>(w)] == lanes[r];
          });
        };
        while (waiting < p.records.size() && !waits(waiting)) ++waiting;
        for (auto i = r + 1; i < waiting; ++i)
          if (p.records[i].op.starts_with("attention")) {
            ++beside;
            break;
          }
      }
      EXPECT_EQ(rotations, 3 * (ranks - 1));
      EXPECT_EQ(beside, rotations) << "each transfer has an attention beside it";
    });
}

TEST(ring_attention, goes_through_a_file) {
  on_the_ring({2, true, 1, 4, 8, 2, 2}, false, [&](const Instance& exe, const comm::Group&) {
    const auto bytes = to_bytes(exe.program());
    EXPECT_EQ(to_bytes(program_of(bytes, "test")), bytes);
  });
}

TEST(ring_attention, refuses_what_does_not_fit) {
  const parallel::GroupAxis axis{comm::Group()};
  const Spec q{{4, 5, 16}, DType::f32}, k{{4, 5, 8}, DType::f32}, lse{{4, 2, 5}, DType::f32};
  const RingArgs a{.axis = axis.axis(), .heads = 2, .kv_heads = 1};
  EXPECT_EQ(RingAttention::infer(q, lse, q, k, k, a), q);
  EXPECT_THROW(RingAttention::infer(q, lse, {{3, 5, 16}, DType::f32}, k, k, a), Error);
  EXPECT_THROW(RingAttention::infer(q, lse, q, {{4, 6, 8}, DType::f32}, {{4, 6, 8}, DType::f32}, a), Error);
  auto other = a;
  other.rank = 1;
  EXPECT_THROW(RingAttention::infer(q, lse, q, k, k, other), Error);
}

}  // namespace
}  // namespace hpcdl
