// Many ranks: the resources of each rank grow with its number of neighbours, not with the number of ranks, and its
// messages through rank 0 with the number of ranks. Counts are asserted, but no times.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hpcdl/comm/bootstrap/ranks_for_tests.h"
#include "hpcdl/comm/bootstrap/rendezvous.h"
#include "hpcdl/comm/transport/tcp.h"
#include "hpcdl/comm/watch/watch.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/pool.h"

namespace hpcdl::comm {
namespace {

namespace fs = std::filesystem;

std::size_t descriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(fs::begin(all), fs::end(all)));
}

/// Per rank: both ends of its connection to rank 0, its listener, three to wake threads.
constexpr std::size_t kOfItsOwn = 6;

/// As many ranks as one process has descriptors for, up to 1,024.
int ranks_for_test() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 96;
#else
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 1 << 16);
  setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur >= 19000 ? 1024 : limit.rlim_cur >= 5000 ? 256 : 96;
#endif
}

struct Member {
  int rank;
  std::shared_ptr<Store> store;
  Group world;
  Deadline deadline;
};

/// Runs body(member) for each of n ranks that are threads, after all have started.
template <class Body> void in_world(int n, Body&& body) {
  const int port = port_of(listen_at("127.0.0.1", 0));
  expect_none(run_ranks(n, [&](int rank) {
    Place place;
    place.rank = rank, place.world = n, place.local_rank = rank, place.local_world = n;
    const auto deadline = in(300s);
    auto store = open_store(
        place, {.method = fmt::format("tcp://127.0.0.1:{}", port), .timeout = 300s, .silent = 300s, .secret = ""});
    Member m{rank, store, make_world(tcp_transport(store, deadline), {.deadline_seconds = 200, .on_lost = {}}),
             deadline};
    store->barrier("started", deadline);
    body(m);
    m.world.close();
    EXPECT_TRUE(store->close(deadline));
    if (rank == 0) {
      // Per rank: its messages at its start, in the body and at its end.
      EXPECT_LE(store->messages(), 32 * n) << "of " << n << " ranks";
    }
  }));
}

TEST(growth, ranks_hold_sockets_only_to_their_neighbours) {
  const int n = ranks_for_test();
  const auto links =
      static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(n - 1)));  // of halving, and of trees
  const auto before = descriptors();
  const auto begin = Clock::now();
  const auto took = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  in_world(n, [&](Member& m) {
    auto& [rank, store, world, deadline] = m;
    Watch watch(store_channel(store), {.beat_seconds = 3600});
    watch.guard(world);
    if (rank == 0) {
      std::printf("%d ranks started after %.1f s, with %lld messages\n", n, took(),
                  static_cast<long long>(store->messages()));
      EXPECT_LE(descriptors() - before, static_cast<std::size_t>(n) * (kOfItsOwn + 2) + 16) << "a tree has n - 1 links";
    }
    store->barrier("looked", deadline);

    Pool pool(1);
    const Stream s(pool);
    std::vector<float> x(3, static_cast<float>(rank));
    world.all_reduce(s, Tensor(x.data(), Spec{Shape{3}, DType::f32})).wait();
    EXPECT_EQ(x[2], static_cast<float>(n) * static_cast<float>(n - 1) / 2);
    world.barrier(s).wait();
    std::int32_t word = rank == 0 ? 7 : 0;
    world.broadcast(s, Tensor(&word, Spec{Shape{1}, DType::i32}), 0).wait();
    EXPECT_EQ(word, 7);
    std::vector<std::int32_t> all(static_cast<std::size_t>(n));
    world
        .all_gather(s, Tensor(all.data(), Spec{Shape{n}, DType::i32}),
                    View(&rank, Spec{Shape{1}, DType::i32}, Device{}))
        .wait();
    EXPECT_EQ(all.back(), n - 1);
    const Group half = world.split(rank % 2, 0, "half");
    EXPECT_EQ(half.size(), (n + 1 - rank % 2) / 2);
    store->barrier("worked", deadline);
    if (rank == 0) {
      std::printf("worked after %.1f s\n", took());
      const auto each = (descriptors() - before) / static_cast<std::size_t>(n);
      EXPECT_LE(each, kOfItsOwn + links + 2) << "two more if the number of ranks is not a power of two";
      EXPECT_LE(each, 64 + links);
    }
    watch.close();
    if (rank == 0)
      std::printf("ended after %.1f s, with %lld messages\n", took(), static_cast<long long>(store->messages()));
  });
}

/// A tensor so small that its parts in a ring are hardly worth a step, and the collectives that all ranks run before
/// training, in a world whose size is not a power of two.
TEST(growth, more_ranks_than_share_memory) {
  constexpr int n = 75;
  in_world(n, [&](Member& m) {
    auto& [rank, store, world, deadline] = m;
    EXPECT_EQ(world.share(1000), nullptr);
    Pool pool(1);
    const Stream s(pool);
    for (int round = 0; round < 3; ++round) {
      std::vector<float> x(20000);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i + static_cast<std::size_t>(rank)) % 5);
      world.all_reduce(s, Tensor(x.data(), Spec{Shape{20000}, DType::f32})).wait();
      EXPECT_EQ(x[17], 2 * n);
      world.barrier(s).wait();
      std::vector<float> part(16), whole(static_cast<std::size_t>(16 * n), 1.f);
      world
          .reduce_scatter(s, Tensor(part.data(), Spec{Shape{16}, DType::f32}),
                          View(whole.data(), Spec{Shape{16 * n}, DType::f32}, Device{}))
          .wait();
      EXPECT_EQ(part[15], n);
    }
  });
}

}  // namespace
}  // namespace hpcdl::comm
