#include "hpcdl/comm/transport/tcp.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "hpcdl/comm/bootstrap/ranks_for_tests.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/pool.h"
#include "hpcdl/testing/exercise.h"

namespace hpcdl::comm {
namespace {

TEST(tcp, collectives_over_split_groups) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ranks that are threads map their shared memory at different addresses, which a thread sanitizer "
                  "takes for different memory";
#endif
  for (const int n : {1, 2, 3, 5}) {
    Launch launch(n);
    expect_none(run_ranks(n, [&](int rank) {
      auto store = launch.join(rank);
      Group world = make_world(tcp_transport(store, launch.deadline), {.deadline_seconds = 30, .on_lost = {}});
      EXPECT_EQ(world.transport(), "tcp");
      if (n > 1) {
        EXPECT_TRUE(world.share(1000));
      }
      testing::exercise(world, 5, 150);
      world.close();
      store->close(launch.deadline);
    }));
  }
}

TEST(tcp, collectives_between_hosts) {
  Launch launch(4);
  expect_none(run_ranks(4, [&](int rank) {
    auto store = launch.join(rank);
    Group world = make_world(tcp_transport(store, launch.deadline, fmt::format("node{}", rank)),
                             {.deadline_seconds = 30, .on_lost = {}});
    EXPECT_EQ(world.host(3), 3);
    EXPECT_EQ(world.host_name(2), "node2");
    testing::exercise(world, 6, 150);
    world.close();
    store->close(launch.deadline);
  }));
}

TEST(tcp, messages_out_of_order_and_taken_back) {
  Launch launch(2);
  expect_none(run_ranks(2, [&](int rank) {
    auto store = launch.join(rank);
    auto t = tcp_transport(store, launch.deadline);
    const std::vector<int> ranks = {0, 1};
    const Patience patience{.deadline = 20s};
    Peers peers(*t, ranks, rank, 0, patience);
    std::vector<std::byte> large(3 << 20, std::byte{1}), small(100, std::byte{2}), x(3 << 20), y(100), z(100);
    if (rank == 0) {
      auto a = t->start_send(1, 7, large), b = t->start_send(1, 8, small), c = t->start_send(1, 9, {});
      for (auto* p : {&a, &b, &c}) peers.wait(*p);
      auto d = t->start_send(1, 11, large);
      t->cancel(d);  // half of it is in the socket: the other side must not notice
      std::fill(large.begin(), large.end(), std::byte{9});
      auto e = t->start_send(1, 12, small);
      peers.wait(e);
      auto f = t->start_receive(1, 13, z);
      peers.wait(f);
      EXPECT_EQ(z, small);
    } else {
      auto wrong = t->start_receive(0, 10, z);
      auto c = t->start_receive(0, 9, {}), b = t->start_receive(0, 8, y);
      peers.wait(c);
      peers.wait(b);
      EXPECT_EQ(y, small);
      t->cancel(wrong);
      auto a = t->start_receive(0, 7, x);
      peers.wait(a);
      EXPECT_EQ(x, large);
      auto e = t->start_receive(0, 12, y);
      peers.wait(e);
      auto f = t->start_send(0, 13, small);
      peers.wait(f);
    }
    store->barrier("end", launch.deadline);
    store->close(launch.deadline);
  }));
}

/// A message is sent while the other rank computes, as over an existing connection.
TEST(tcp, a_rank_that_computes_is_reached) {
  Launch launch(4);
  expect_none(run_ranks(4, [&](int rank) {
    auto store = launch.join(rank);
    auto t = tcp_transport(store, launch.deadline);
    const std::vector<int> ranks = {0, 1, 2, 3};
    const Patience patience{.deadline = 20s};
    Peers peers(*t, ranks, rank, 5, patience);
    std::byte word[4] = {};
    const int other = rank ^ 3;  // not neighbours in the initial tree
    if (rank < 2) {
      auto sent = peers.send(other, word);
      peers.wait(sent);
    }
    store->barrier("sent", launch.deadline);
    if (rank >= 2) {
      auto got = peers.receive(other, word);
      peers.wait(got);
    }
    store->barrier("end", launch.deadline);
    store->close(launch.deadline);
  }));
}

/// Nothing was ever sent between them: only an attempt to connect can detect the loss.
TEST(tcp, a_rank_that_has_gone_before_it_was_needed_is_lost_at_once) {
  Launch launch(4);
  std::atomic<bool> gone = false;
  const auto errors = run_ranks(4, [&](int rank) {
    auto store = launch.join(rank);
    auto t = tcp_transport(store, launch.deadline);
    store->barrier("started", launch.deadline);
    if (rank == 2) {
      t.reset();
      gone = true;
    }
    if (rank != 1) {
      store->barrier("end", in(60s));
      return;
    }
    while (!gone) std::this_thread::sleep_for(1ms);
    const std::vector<int> ranks = {0, 1, 2, 3};
    const Patience patience{.deadline = 300s};
    Peers peers(*t, ranks, rank, 5, patience);
    EXPECT_THROW(peers.wait_until(2, [] { return false; }), PeerLost) << "a wait for what it writes in shared memory";
    std::byte word[4] = {};
    auto got = peers.receive(2, word);
    EXPECT_THROW(peers.wait(got), PeerLost);
    t->cancel(got);
    store->barrier("end", in(60s));
  });
  expect_none(errors);
}

TEST(tcp, a_rank_that_has_gone_is_lost_at_once) {
  Launch launch(3);
  const auto errors = run_ranks(3, [&](int rank) {
    auto store = launch.join(rank);
    Group world = make_world(tcp_transport(store, launch.deadline), {.deadline_seconds = 300, .on_lost = {}});
    Pool pool(1);
    if (rank == 1) {
      store->close(launch.deadline);
      return;
    }
    std::vector<float> x(100000);
    world.all_reduce(Stream(pool), Tensor(x.data(), Spec{Shape{100000}, DType::f32}), Reduce::sum, Algorithm::ring)
        .wait();
  });
  EXPECT_EQ(errors[1], "");
  for (const int r : {0, 2})
    EXPECT_NE(errors[static_cast<std::size_t>(r)].find("all_reduce number 1 of group world"), std::string::npos)
        << errors[static_cast<std::size_t>(r)];
}

/// For as long as the deadline allows: TCP itself may give up a peer that does not read.
TEST(tcp, a_rank_that_is_late_to_read_is_waited_for) {
  Launch launch(2, 60s);
  expect_none(run_ranks(2, [&](int rank) {
    auto store = launch.join(rank);
    auto t = tcp_transport(store, launch.deadline);
    const std::vector<int> ranks = {0, 1};
    const Patience patience{.deadline = 50s};
    Peers peers(*t, ranks, rank, 0, patience);
    std::vector<std::byte> x(64 << 20, std::byte{static_cast<unsigned char>(rank)});  // more than sockets buffer
    if (rank == 1) std::this_thread::sleep_for(23s);
    auto p = rank == 0 ? t->start_send(1, 7, x) : t->start_receive(0, 7, x);
    peers.wait(p);
    EXPECT_EQ(x.back(), std::byte{0});
    store->barrier("end", launch.deadline);
    store->close(launch.deadline);
  }));
}

TEST(tcp, a_message_of_another_size_is_an_error) {
  Launch launch(2);
  const auto errors = run_ranks(2, [&](int rank) {
    auto store = launch.join(rank);
    auto t = tcp_transport(store, launch.deadline);
    const std::vector<int> ranks = {0, 1};
    const Patience patience{.deadline = 20s};
    Peers peers(*t, ranks, rank, 0, patience);
    std::vector<std::byte> x(100);
    auto p = rank == 0 ? t->start_send(1, 7, {x.data(), 50}) : t->start_receive(0, 7, x);
    peers.wait(p);
    store->barrier("end", launch.deadline);
  });
  EXPECT_NE(errors[1].find("another size"), std::string::npos) << errors[1];
}

}  // namespace
}  // namespace hpcdl::comm
