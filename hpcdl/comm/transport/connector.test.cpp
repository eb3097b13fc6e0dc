// Two ranks end up with one socket between them, however they connect; a rank that has ended is reported at once.

#include "hpcdl/comm/transport/connector.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hpcdl/comm/bootstrap/ranks_for_tests.h"

namespace hpcdl::comm {
namespace {

struct Side {
  explicit Side(int rank, int world = 2, const RunKey& key = "round")
      : Side(rank, world, key, listen_at("127.0.0.1", 0)) {}
  Side(int rank, int world, const RunKey& key, Socket listening)
      : card{port_of(listening), {"127.0.0.1"}},
        connector(std::make_unique<Connector>(rank, std::vector<std::string>(static_cast<std::size_t>(world), "here"),
                                              key, std::move(listening))) {}
  Card card;
  std::unique_ptr<Connector> connector;

  std::vector<Connector::News> wait_for_news(std::chrono::milliseconds time = 20s) const {
    for (const auto until = in(time); Clock::now() < until; std::this_thread::sleep_for(1ms))
      if (connector->has_news()) return connector->take_news();
    return {};
  }
};

/// What one side sends arrives at the other.
void expect_connected(const Socket& a, const Socket& b) {
  for (const auto& [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    std::size_t count = 0;
    std::byte word[3] = {std::byte{1}, std::byte{2}, std::byte{3}}, heard[3] = {};
    ASSERT_EQ(send_some(*from, word, count), Io::done);
    ASSERT_TRUE(wait_for(*to, false, in(20s)));
    ASSERT_EQ(receive_some(*to, heard, count), Io::done);
    EXPECT_EQ(heard[2], std::byte{3});
  }
}

TEST(connector, ranks_that_call_each_other_have_one_socket) {
  for (int round = 0; round < 100; ++round) {
    const Side low(0), high(1);
    if (round % 3 != 1) low.connector->want(1, high.card);
    if (round % 6 >= 3) std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
    if (round % 3 != 2) high.connector->want(0, low.card);
    const auto of_low = low.wait_for_news(), of_high = high.wait_for_news();
    ASSERT_EQ(of_low.size(), 1u) << round;
    ASSERT_EQ(of_high.size(), 1u) << round;
    ASSERT_TRUE(of_low[0].socket) << of_low[0].why;
    ASSERT_TRUE(of_high[0].socket) << of_high[0].why;
    expect_connected(of_low[0].socket, of_high[0].socket);
  }
}

TEST(connector, many_ranks_that_call_each_other_all_have_sockets) {
  constexpr int n = 12;
  std::vector<std::unique_ptr<Side>> sides;
  for (int r = 0; r < n; ++r) sides.push_back(std::make_unique<Side>(r, n));
  for (int r = 0; r < n; ++r)
    for (int other = 0; other < n; ++other)
      if (other != r)
        sides[static_cast<std::size_t>(r)]->connector->want(other, sides[static_cast<std::size_t>(other)]->card);
  std::vector<std::vector<Socket>> sockets(n);
  for (auto& list : sockets) list.resize(n);
  for (std::size_t r = 0; r < n; ++r)
    for (int count = 0; count < n - 1;) {
      auto news = sides[r]->wait_for_news();
      ASSERT_FALSE(news.empty()) << r << " has " << count;
      for (auto& one : news) {
        ASSERT_TRUE(one.socket) << one.why;
        ASSERT_FALSE(sockets[r][static_cast<std::size_t>(one.rank)]) << "connected twice";
        sockets[r][static_cast<std::size_t>(one.rank)] = std::move(one.socket), ++count;
      }
    }
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) expect_connected(sockets[a][b], sockets[b][a]);
}

TEST(connector, a_rank_that_has_ended_or_leaves_is_reported) {
  for (const bool leaves : {false, true}) {
    const Side here(1);
    Side other(0);
    if (leaves) other.connector->leave();
    else other.connector.reset();
    here.connector->want(0, other.card);
    const auto news = here.wait_for_news();
    ASSERT_EQ(news.size(), 1u);
    EXPECT_FALSE(news[0].socket);
    EXPECT_EQ(news[0].why, "rank 0 on here does not listen any more: it has ended");
  }
}

TEST(connector, sockets_end_when_a_rank_leaves) {
  const Side low(0), high(1);
  low.connector->want(1, high.card);
  const auto of_low = low.wait_for_news(), of_high = high.wait_for_news();
  ASSERT_EQ(of_low.size(), 1u);
  ASSERT_EQ(of_high.size(), 1u);
  low.connector->leave();
  std::byte nothing[1];
  std::size_t count = 0;
  ASSERT_TRUE(wait_for(of_high[0].socket, false, in(20s)));
  EXPECT_EQ(receive_some(of_high[0].socket, nothing, count), Io::closed);
}

TEST(connector, a_rank_of_another_round_is_not_let_in) {
  const Side here(0), stranger(1, 2, "another round");
  stranger.connector->want(0, here.card);
  EXPECT_TRUE(here.wait_for_news(300ms).empty());
  EXPECT_TRUE(stranger.wait_for_news(1ms).empty());
}

/// A kernel reports to its own processes that a peer has gone. With keep-alive probes every 5 s for 32,640 connections,
/// it lost probes and ended the connections.
TEST(connector, a_peer_on_this_host_is_not_probed) {
  const Socket listening = listen_at("127.0.0.1", 0);
  std::string why;
  const Socket near = connect_to("127.0.0.1", port_of(listening), 2s, why);
  ASSERT_TRUE(near) << why;
  const Socket far = accept_from(listening);
  for (const Socket* s : {&near, &far}) {
    int asks = 1;
    socklen_t size = sizeof asks;
    ASSERT_EQ(getsockopt(s->fd(), SOL_SOCKET, SO_KEEPALIVE, &asks, &size), 0);
    EXPECT_EQ(asks, 0);
  }
}

}  // namespace
}  // namespace hpcdl::comm
