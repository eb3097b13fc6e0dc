// Every collective on 1-9 ranks, all dtypes, odd and zero sizes, against plain loops; groups that split; errors that
// reach every rank.

#include "hpcdl/group.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::comm {
namespace {

using testing::Cpu;
using testing::rank_errors;
using testing::run_ranks;
using testing::tensor;

/// A small value that every dtype represents exactly, even after a sum over 9 ranks.
template <class T> T value(int rank, std::int64_t i) { return T(static_cast<float>((rank * 3 + i * 7) % 11)); }

template <class T> std::vector<T> values(int rank, std::int64_t n) {
  std::vector<T> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(value<T>(rank, i));
  return v;
}

template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T> void reductions(const Group& g, const Stream& s, std::int64_t n) {
  for (const Reduce op : {Reduce::sum, Reduce::max, Reduce::avg}) {
    if (op == Reduce::avg && !is_float(dtype_of<T>)) continue;
    const auto expected = [&](std::int64_t i) {
      float sum = 0, max = 0;
      for (int r = 0; r < g.size(); ++r) {
        sum += static_cast<float>(value<T>(r, i));
        max = std::max(max, static_cast<float>(value<T>(r, i)));
      }
      return T(op == Reduce::max ? max : op == Reduce::avg ? sum / static_cast<float>(g.size()) : sum);
    };
    auto x = values<T>(g.rank(), n);
    g.all_reduce(s, tensor(x), op).wait();
    for (std::int64_t i = 0; i < n; ++i)
      ASSERT_EQ(float(x[static_cast<std::size_t>(i)]), float(expected(i)))
          << reduce_name(op) << " of " << g.size() << ", element " << i;

    auto in = values<T>(g.rank(), n * g.size());
    std::vector<T> out(static_cast<std::size_t>(n));
    g.reduce_scatter(s, tensor(out), tensor(in), op).wait();
    for (std::int64_t i = 0; i < n; ++i)
      ASSERT_EQ(float(out[static_cast<std::size_t>(i)]), float(expected(g.rank() * n + i)));
    const Tensor place(in.data() + g.rank() * n, Spec{Shape{n}, dtype_of<T>});
    g.reduce_scatter(s, place, tensor(in), op).wait();
    ASSERT_TRUE(n == 0 || std::memcmp(place.data(), out.data(), out.size() * sizeof(T)) == 0) << "in place";
  }
}

template <class T> void moves(const Group& g, const Stream& s, std::int64_t n) {
  const int size = g.size(), rank = g.rank();
  std::vector<T> all(static_cast<std::size_t>(n * size)), want;
  for (int r = 0; r < size; ++r)
    for (const T v : values<T>(r, n)) want.push_back(v);
  auto mine = values<T>(rank, n);
  g.all_gather(s, tensor(all), tensor(mine)).wait();
  ASSERT_TRUE(same(all, want));
  std::fill(all.begin(), all.end(), T(0.f));
  std::copy(mine.begin(), mine.end(), all.begin() + rank * n);
  g.all_gather(s, tensor(all), View(all.data() + rank * n, Spec{Shape{n}, dtype_of<T>})).wait();
  ASSERT_TRUE(same(all, want)) << "in place";

  auto in = values<T>(rank, n * size);
  std::vector<T> out(in.size());
  g.all_to_all(s, tensor(out), tensor(in)).wait();
  for (int r = 0; r < size; ++r)
    for (std::int64_t i = 0; i < n; ++i)
      ASSERT_EQ(float(out[static_cast<std::size_t>(r * n + i)]), float(value<T>(r, rank * n + i)));

  for (int root = 0; root < size; ++root) {
    auto x = values<T>(rank, n);
    g.broadcast(s, tensor(x), root).wait();
    ASSERT_TRUE(same(x, values<T>(root, n)));
  }
  if (size > 1) {
    std::vector<T> got(static_cast<std::size_t>(n));
    Work sent = g.send(s, tensor(mine), (rank + 1) % size);
    Work received = g.receive(s, tensor(got), (rank + size - 1) % size);
    sent.wait();
    received.wait();
    ASSERT_TRUE(same(got, values<T>((rank + size - 1) % size, n)));
  }
}

template <class T> class collectives : public ::testing::Test {};
using Types = ::testing::Types<float, double, bf16, f16, std::int64_t, std::int32_t, std::int16_t, std::int8_t,
                               std::uint8_t, std::uint64_t, std::uint32_t, std::uint16_t>;
TYPED_TEST_SUITE(collectives, Types);

TYPED_TEST(collectives, equal_plain_loops) {
  for (int n = 1; n <= 9; ++n)
    run_ranks(n, [](Group g) {
      Cpu cpu;
      for (const std::int64_t count : {0, 1, 3, 17, 1000}) {
        reductions<TypeParam>(g, cpu.stream, count);
        moves<TypeParam>(g, cpu.stream, count);
        reductions<TypeParam>(g.blocking(), cpu.stream, count);
      }
      g.barrier(cpu.stream).wait();
      g.close();
      EXPECT_THROW(g.barrier(cpu.stream), Error);
    });
}

TEST(group, large_messages_between_many_ranks) {
  for (const int n : {2, 3, 8})
    run_ranks(n, [](Group g) {
      Cpu cpu;
      reductions<float>(g, cpu.stream, 100003);
      moves<float>(g, cpu.stream, 100003);
    });
}

TEST(group, asynchronous_work_keeps_its_order) {
  run_ranks(4, [](Group g) {
    Cpu cpu;
    std::vector<std::vector<float>> x(50);
    std::vector<Work> work;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = values<float>(g.rank(), static_cast<std::int64_t>(i * 37));
      work.push_back(g.all_reduce(cpu.stream, tensor(x[i])));
      if (i % 7 == 0) g.blocking().barrier(cpu.stream);
    }
    for (auto& w : work) w.wait();
    for (std::size_t i = 1; i < x.size(); ++i) {
      float sum = 0;
      for (int r = 0; r < 4; ++r) sum += value<float>(r, 36);
      ASSERT_EQ(x[i][36], sum);
    }
  });
}

TEST(group, split_orders_by_color_and_key) {
  run_ranks(6, [](Group world) {
    Cpu cpu;
    const Group g = world.split(world.rank() % 2, -world.rank(), "half");
    ASSERT_EQ(g.size(), 3);
    EXPECT_EQ(g.name(), "half");
    EXPECT_EQ(g.rank(), 2 - world.rank() / 2);
    EXPECT_EQ(g.world_rank(g.rank()), world.rank());
    reductions<float>(g, cpu.stream, 33);
    moves<float>(g, cpu.stream, 33);
    const Group alone = g.split(g.rank(), 0, "alone");
    ASSERT_EQ(alone.size(), 1);
    moves<float>(alone, cpu.stream, 5);
  });
}

TEST(group, only_ranks_of_one_host_share_memory) {
  testing::RankOptions options;
  options.hosts = {0, 0, 2, 2, 2};
  run_ranks(
      5,
      [](Group g) {
        Cpu cpu;
        EXPECT_EQ(g.host(4), 2);
        const auto window = g.share(1000);
        ASSERT_TRUE(window);
        EXPECT_EQ(window->size(), g.rank() < 2 ? 2 : 3);
        auto* mine = reinterpret_cast<float*>(window->block(g.local_rank()));
        EXPECT_EQ(mine[249], 0.f);
        for (int i = 0; i < 250; ++i) mine[i] = value<float>(g.rank(), i);
        const Tensor x(mine, Spec{Shape{250}, DType::f32});
        g.all_reduce(cpu.stream, x).wait();
        float sum = 0;
        for (int r = 0; r < 5; ++r) sum += value<float>(r, 249);
        EXPECT_EQ(mine[249], sum);
        reductions<bf16>(g, cpu.stream, 77);
      },
      options);
}

TEST(group, a_rank_that_fails_ends_the_others_at_once) {
  const auto errors = rank_errors(4, [](Group g) {
    Cpu cpu;
    if (g.rank() == 2) fail("test", "on purpose");
    g.barrier(cpu.stream).wait();
  });
  EXPECT_EQ(errors[2], "[test] on purpose");
  for (const int r : {0, 1, 3})
    EXPECT_NE(errors[static_cast<std::size_t>(r)].find("on purpose"), std::string::npos)
        << errors[static_cast<std::size_t>(r)];
  EXPECT_THROW(run_ranks(3,
                         [](Group g) {
                           Cpu cpu;
                           if (g.rank() == 0) return;  // as after a failed assertion
                           g.barrier(cpu.stream).wait();
                         }),
               PeerLost);
}

TEST(group, ranks_that_differ_fail_and_name_what_they_did) {
  testing::RankOptions options;
  options.deadline_seconds = 0.3;
  const auto errors = rank_errors(
      2,
      [](Group g) {
        Cpu cpu;
        const Label label("wte.grad");
        std::vector<float> x(static_cast<std::size_t>(10 + g.rank()));
        g.all_reduce(cpu.stream, tensor(x)).wait();
      },
      options);
  bool named = false;
  for (const auto& e : errors) {
    EXPECT_FALSE(e.empty());
    named = named || e.find("all_reduce number 1 of group world") != std::string::npos;
  }
  EXPECT_TRUE(named) << errors[0] << '\n' << errors[1];
}

TEST(group, calls_that_differ_only_in_their_tensor_are_distinguished) {
  for (const std::vector<int>& hosts : {std::vector{0, 0}, std::vector{0, 1}}) {  // in shared memory, and by messages
    testing::RankOptions options{.deadline_seconds = 0.3, .hosts = hosts, .on_lost = {}};
    const auto errors = rank_errors(
        2,
        [](Group g) {
          Cpu cpu;
          std::vector<float> x(4);
          const auto reduce = [&](std::string_view name) {
            const Label label(name);
            g.all_reduce(cpu.stream, tensor(x)).wait();
          };
          reduce("both");
          for (const char* name : g.rank() == 0 ? std::array{"a.grad", "b.grad"} : std::array{"b.grad", "a.grad"})
            reduce(name);
        },
        options);
    bool named = false;
    for (const auto& e : errors) {
      EXPECT_FALSE(e.empty()) << "a tensor was added to a different one";
      named = named || e.find("all_reduce number 2 of group world, sum of 4 F32, ") != std::string::npos;
    }
    EXPECT_TRUE(named) << errors[0] << '\n' << errors[1];
  }
}

/// A rank that waits for one of several messages continues as soon as that one has arrived: the others may only be sent
/// in response to what it does next.
TEST(group, messages_wait_for_no_others) {
  testing::RankOptions options{.deadline_seconds = 5, .hosts = {}, .on_lost = {}};
  run_ranks(
      2,
      [](Group g) {
        Cpu cpu;
        const int other = 1 - g.rank();
        std::vector<int> a(1), b(1), c(1);
        const auto tell = [&](bool now) { (now ? g.blocking() : g).send(cpu.stream, tensor(c), other).wait(); };
        for (int round = 0; round < 200; ++round) {
          const bool now = round % 2 == 0;
          if (g.rank() == 0) {
            Work first = g.receive(cpu.stream, tensor(a), 1), second = g.receive(cpu.stream, tensor(b), 1);
            first.wait();
            tell(now);
            second.wait();
          } else {
            tell(now);
            g.receive(cpu.stream, tensor(a), 0).wait();
            tell(now);
          }
        }
      },
      options);
}

/// A completed message is reported even if an earlier one is not complete.
TEST(group, messages_end_as_they_come) {
  testing::RankOptions options{.deadline_seconds = 5, .hosts = {}, .on_lost = {}};
  run_ranks(
      2,
      [](Group g) {
        Cpu cpu;
        std::vector<int> x(1), answer(1);
        for (int round = 0; round < 100; ++round) {
          if (g.rank() == 0) {
            Work answered = g.receive(cpu.stream, tensor(answer), 1);
            g.send(cpu.stream, tensor(x), 1).wait();
            g.send(cpu.stream, tensor(x), 1).wait();
            answered.wait();
          } else {
            for (int i = 0; i < 2; ++i) g.receive(cpu.stream, tensor(x), 0).wait();
            g.send(cpu.stream, tensor(answer), 0).wait();
          }
        }
      },
      options);
}

/// Shares of a tensor in memory that the ranks share: each rank's lies elsewhere.
TEST(group, parts_in_their_place_in_the_window_are_reduced_and_gathered) {
  for (const int n : {2, 3, 5})
    for (const std::int64_t part : {1, 7, 5000})
      testing::run_ranks(n, [&](const Group& g) {
        const auto window = g.share(n * part * 4);
        ASSERT_TRUE(window);
        auto* x = reinterpret_cast<float*>(window->block(g.local_rank()));
        for (std::int64_t i = 0; i < n * part; ++i) x[i] = static_cast<float>(i + 1);
        Pool pool(1);
        const Stream s(pool);
        const Tensor whole(x, {{n * part}, DType::f32}), mine(x + g.rank() * part, {{part}, DType::f32});
        g.reduce_scatter(s, mine, whole).wait();
        g.all_gather(s, whole, mine).wait();
        for (std::int64_t i = 0; i < n * part; ++i) ASSERT_EQ(x[i], static_cast<float>(n * (i + 1))) << n << ' ' << i;
      });
}

/// As if one host had no room for the window.
TEST(group, hosts_meet_wherever_their_tensors_lie) {
  testing::RankOptions options{.deadline_seconds = 5, .hosts = {0, 0, 2, 2}, .on_lost = {}};
  run_ranks(
      4,
      [](Group g) {
        Cpu cpu;
        const auto window = g.share(4000);
        std::vector<float> own(1000);
        const Spec spec{{1000}, DType::f32};
        const Tensor x = g.host(g.rank()) == 0 ? Tensor(window->block(g.local_rank()), spec) : tensor(own);
        std::fill_n(x.ptr<float>(), 1000, 1.0f);
        for (const Algorithm a : {Algorithm::hierarchical, Algorithm::ring, Algorithm::automatic})
          g.all_reduce(cpu.stream, x, Reduce::sum, a).wait();
        EXPECT_EQ(x.ptr<float>()[999], 64.0f);
      },
      options);
}

/// The number of ranks that one sweep sums on a host does not limit the total over all hosts.
TEST(group, more_ranks_than_are_summed_together) {
  testing::RankOptions options;
  for (int r = 0; r < 66; ++r) options.hosts.push_back(r < 33 ? 0 : 33);
  run_ranks(
      66,
      [](Group g) {
        Cpu cpu;
        std::vector<float> in(66, 1.0f), out(1);
        g.reduce_scatter(cpu.stream, tensor(out), tensor(in)).wait();
        EXPECT_EQ(out[0], 66.0f);
        g.all_reduce(cpu.stream, tensor(in)).wait();
        EXPECT_EQ(in[65], 66.0f);
      },
      options);
}

TEST(group, refuses_what_does_not_fit) {
  run_ranks(2, [](Group g) {
    Cpu cpu;
    std::vector<float> a(7), b(3);
    std::vector<std::int32_t> i(4);
    EXPECT_THROW(g.reduce_scatter(cpu.stream, tensor(b), tensor(a)), Error);
    EXPECT_THROW(g.all_gather(cpu.stream, tensor(a), tensor(b)), Error);
    EXPECT_THROW(g.all_to_all(cpu.stream, tensor(a), tensor(a)), Error);
    EXPECT_THROW(g.all_reduce(cpu.stream, tensor(i), Reduce::avg), Error);
    EXPECT_THROW(g.broadcast(cpu.stream, tensor(a), 2), Error);
    EXPECT_THROW(g.send(cpu.stream, tensor(a), g.rank()), Error);
    g.barrier(cpu.stream).wait();
  });
}

TEST(group, counts_what_it_did) {
  run_ranks(2, [](Group g) {
    Cpu cpu;
    std::vector<float> x(100);
    g.all_reduce(cpu.stream, tensor(x)).wait();
    g.blocking().all_reduce(cpu.stream, tensor(x));
    const Counters c = g.counters();
    EXPECT_EQ(c.calls, 2);
    EXPECT_EQ(c.bytes, 800);
    EXPECT_GT(c.seconds, 0);
  });
}

}  // namespace
}  // namespace hpcdl::comm
