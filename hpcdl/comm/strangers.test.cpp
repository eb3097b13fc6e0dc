// Programs that do not belong to a job: they connect and send nothing, nonsense, too much or too slowly; ranks with
// another secret; false rank 0s. None of them causes the loss of a rank, or uses more than a bounded share of
// descriptors and memory.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "hpcdl/comm/bootstrap/ranks_for_tests.h"
#include "hpcdl/comm/bootstrap/rendezvous.h"
#include "hpcdl/comm/transport/link.h"
#include "hpcdl/comm/transport/tcp.h"
#include "hpcdl/comm/watch/messages.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/pool.h"

namespace hpcdl::comm {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

Socket knock(int port) {
  std::string why;
  return connect_to("127.0.0.1", port, 2s, why);
}

void say_to(const Socket& s, std::string_view text) {
  std::size_t sent = 0;
  if (s) send_some(s, std::as_bytes(std::span(text)), sent);
}

/// Listening sockets of this process, by their ports.
std::vector<std::pair<std::string, int>> listeners() {
  std::vector<std::string> own;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    own.push_back(fs::read_symlink(entry.path(), none).string());
  }
  std::vector<std::pair<std::string, int>> list;
  for (const char* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      if (state != "0A" || std::find(own.begin(), own.end(), "socket:[" + inode + "]") == own.end()) continue;
      const auto colon = local.find(':');
      list.emplace_back(local.substr(0, colon), std::stoi(local.substr(colon + 1), nullptr, 16));
    }
  }
  return list;
}

std::size_t descriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(fs::begin(all), fs::end(all)));
}

/// Everything that a stranger may send first.
std::vector<std::string> nonsense() {
  const auto frame = [](std::uint32_t size, FrameKind kind, const std::string& text) {
    return (Packer() << size << std::uint32_t{0} << static_cast<std::uint32_t>(kind)).take() + text;
  };
  Hello other_version;
  other_version.protocol = kProtocol + 1;
  const auto hello = Hello{kProtocol, RunKey("test").name(), {}, false}.packed();
  return {"",
          "GET / HTTP/1.0\r\n\r\n",
          std::string(100, '\xff'),
          std::string(3, '\0'),
          frame(64 << 20, FrameKind::hello, ""),
          frame(0xffffffffu, FrameKind::hello, std::string(1 << 16, 'x')),
          frame(4, FrameKind::gather, "zzzz"),
          frame(static_cast<std::uint32_t>(hello.size()), FrameKind::hello, hello.substr(0, 20)),
          frame(static_cast<std::uint32_t>(hello.size()), FrameKind::hello, hello),
          frame(static_cast<std::uint32_t>(hello.size()), FrameKind::hello, hello) + std::string(1 << 16, 'x'),
          frame(static_cast<std::uint32_t>(other_version.packed().size()), FrameKind::hello, other_version.packed())};
}

void sum_over(const Group& world) {
  Pool pool(1);
  float x[] = {static_cast<float>(world.rank())};
  world.all_reduce(Stream(pool), Tensor(x, Spec{Shape{1}, DType::f32})).wait();
  EXPECT_EQ(x[0], static_cast<float>(world.size() * (world.size() - 1) / 2));
}

/// Strangers before, between and after the ranks of a job, at the store and at the sockets of the collectives.
TEST(strangers, cost_no_rank_at_any_port) {
  constexpr int kWorld = 3;
  Launch launch(kWorld);
  std::vector<Socket> before;
  for (int i = 0; i < 3; ++i)
    for (const auto& text : nonsense()) say_to(before.emplace_back(knock(launch.port)), text);
  std::atomic<bool> stop = false;
  std::jthread stranger([&] {  // at every port on which this process listens
    std::vector<Socket> all;
    while (!stop) {
      for (const auto& [_, port] : listeners())
        for (const auto& text : nonsense()) say_to(all.emplace_back(knock(port)), text);
      if (all.size() > 200) all.clear();
      std::this_thread::sleep_for(1ms);
    }
  });
  expect_none(run_ranks(kWorld, [&](int rank) {
    auto store = launch.join(rank);
    ASSERT_TRUE(store);
    Group world = make_world(tcp_transport(store, launch.deadline, fmt::format("node{}", rank)),
                             {.deadline_seconds = 30, .on_lost = {}});
    for (int i = 0; i < 20; ++i) sum_over(world);
    store->barrier("started", in(20s));
    if (rank == 0) stop = true, stranger.join();
    store->barrier("alone", in(20s));
    // In a running job, each rank listens for the others, and the store no longer listens.
    if (rank == 0) {
      EXPECT_EQ(listeners().size(), static_cast<std::size_t>(kWorld));
    }
    EXPECT_FALSE(knock(launch.port));
    sum_over(world);
    world.close();
    EXPECT_TRUE(store->close(in(20s)));
  }));
  stop = true;  // also if a rank has failed
}

TEST(strangers, that_are_silent_hold_few_descriptors) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit raised{std::min<rlim_t>(limit.rlim_max, 8192), limit.rlim_max};
  if (raised.rlim_cur > limit.rlim_cur) setrlimit(RLIMIT_NOFILE, &raised);
  const auto silent = std::min<std::size_t>(3000, std::max(raised.rlim_cur, limit.rlim_cur) - 500);
  Launch launch(2, 60s);
  std::vector<Socket> strangers;
  const auto before = descriptors();
  expect_none(run_ranks(2, [&](int rank) {
    if (rank == 1) {
      for (std::size_t i = 0; i < silent; ++i) strangers.push_back(knock(launch.port));
      // Half of them send the length of a frame, and nothing more.
      for (std::size_t i = 0; i < strangers.size(); i += 2)
        say_to(strangers[i], (Packer() << std::uint32_t{100} << std::uint32_t{0} << std::uint32_t{0}).take());
      EXPECT_LT(descriptors(), before + strangers.size() + 300);
    }
    auto store = launch.join(rank);
    ASSERT_TRUE(store);
    store->barrier("start", in(20s));
    EXPECT_LT(descriptors(), before + strangers.size() + 50);  // now none remains
    store->barrier("end", in(20s));
    EXPECT_TRUE(store->close(in(20s)));
  }));
  strangers.clear();
  setrlimit(RLIMIT_NOFILE, &limit);
}

TEST(strangers, with_another_secret_are_refused_at_once_and_end_no_start) {
  const RunKey key("run", "0123456789abcdef");
  std::vector<std::string> said;
  Socket listening = listen_at("127.0.0.1", 0);
  const int port = port_of(listening);
  const auto deadline = in(30s);
  expect_none(run_ranks(2, [&](int rank) {
    std::unique_ptr<StoreServer> server;
    if (rank == 0) {
      server = std::make_unique<StoreServer>(
          std::move(listening),
          ServerOptions{2, key, deadline, {}, [&](const std::string& sentence) { said.push_back(sentence); }});
    } else {
      for (const RunKey& wrong : {RunKey("run", "fedcba9876543210"), RunKey("run")}) {
        try {
          Store::introduce(knock(port), 1, 2, wrong, deadline);
          ADD_FAILURE();
        } catch (const PeerLost& e) {
          EXPECT_TRUE(has(e.what(), "does not have the secret of rank 1")) << e.what();
        }
      }
      EXPECT_EQ(Store::introduce(knock(port), 1, 2, RunKey("walk", "0123456789abcdef"), deadline), nullptr);
    }
    auto store = Store::introduce(knock(port), rank, 2, key, deadline, std::move(server));
    ASSERT_TRUE(store);
    EXPECT_TRUE(store->close(in(20s)));
  }));
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(has(said[0], "has another secret than rank 0 on ")) << said[0];
}

TEST(strangers, that_play_rank_0_are_not_believed) {
  Socket listening = listen_at("127.0.0.1", 0);
  const int port = port_of(listening);
  Door false_rank_0(std::move(listening), RunKey("run"), "rank 0");
  Caller rank_1(knock(port), RunKey("run", "0123456789abcdef"), {1, 2, "b"}, "what listens there");
  for (const auto until = in(20s); rank_1.advance() == Caller::State::under_way && Clock::now() < until;
       std::this_thread::sleep_for(1ms))
    EXPECT_TRUE(false_rank_0.open().empty());
  EXPECT_EQ(rank_1.state(), Caller::State::refused);
  EXPECT_TRUE(has(rank_1.words(), "what listens there does not have the secret of rank 1 on b")) << rank_1.words();
}

TEST(strangers, of_another_version_are_reported) {
  Socket listening = listen_at("127.0.0.1", 0);
  Connection old(knock(port_of(listening)));
  Door door(std::move(listening), "run", "rank 0 on a");
  Hello hello;
  hello.protocol = kProtocol + 1;
  old.put({FrameKind::hello, 0, hello.packed()});
  EXPECT_TRUE(old.flush());
  std::optional<Frame> answer;
  for (const auto until = in(20s); !answer && Clock::now() < until; std::this_thread::sleep_for(1ms))
    door.open(), old.fill(), answer = old.next();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, FrameKind::refused);
  EXPECT_TRUE(has(answer->payload, "runs another version of hpcdl than rank 0 on a")) << answer->payload;
}

TEST(strangers, cannot_reach_a_store_of_this_host_from_others) {
  for (const bool one_host : {true, false}) {
    const int port = port_of(listen_at("127.0.0.1", 0));
    Place p;
    p.rank = 0, p.world = 2, p.local_world = one_host ? 2 : 1;
    std::vector<std::pair<std::string, int>> found;
    EXPECT_THROW(open_store(p, {.method = fmt::format("tcp://127.0.0.1:{}", port),
                                .timeout = 20s,
                                .asked_to_stop =
                                    [&] {
                                      found = listeners();
                                      return true;
                                    }}),
                 Stopped);
    EXPECT_EQ(found, (std::vector<std::pair<std::string, int>>{{"0100007F", port}}));
  }
}

TEST(strangers, are_warned_of_where_other_hosts_reach_rank_0_and_there_is_no_secret) {
  const auto said = [](const std::string& host, const std::string& secret) {
    Place p;
    p.rank = 0, p.world = 2;
    std::string all;
    const int port = port_of(listen_at("", 0));
    try {
      open_store(p, {.method = fmt::format("tcp://{}:{}", host, port),
                     .timeout = 20s,
                     .asked_to_stop = [] { return true; },
                     .say = [&](const std::string& sentence) { all += sentence; },
                     .secret = secret});
    } catch (const Stopped&) {}
    return all;
  };
  EXPECT_TRUE(has(said(host_name(), ""), "this job has no secret"));
  EXPECT_EQ(said(host_name(), "0123456789abcdef"), "");
  EXPECT_EQ(said("127.0.0.1", ""), "");
}

TEST(strangers, cannot_leave_an_invitation) {
  const io::TempFolder folder;
  const auto file = folder / "meet.run";
  std::ofstream(file) << "hpcdl token\n127.0.0.1 1\nend\n";
  Place p;
  p.rank = 1, p.world = 2, p.run_id = "run";
  const auto error = [&](const std::string& secret) {
    try {
      open_store(p, {.method = "file://" + (folder / "meet").string(), .timeout = 300ms, .secret = secret});
    } catch (const PeerLost& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  chmod(file.c_str(), 0666);
  EXPECT_TRUE(has(error(""), "can be written by another user, so it is not trusted")) << error("");
  EXPECT_TRUE(has(error("0123456789abcdef"), "127.0.0.1:1")) << "with a secret, rank 0 proves its identity";
}

TEST(strangers, cannot_make_the_folder_of_a_user) {
  const char* was = std::getenv("TMPDIR");
  const std::string before = was ? was : "";
  const io::TempFolder folder;
  const auto own = folder / fmt::format("hpcdl-{}", geteuid());
  fs::create_directory(own);
  chmod(own.c_str(), 0777);
  setenv("TMPDIR", folder.path().c_str(), 1);
  Place p;
  p.rank = 0, p.world = 2, p.local_world = 2;
  EXPECT_THROW(open_store(p, {.timeout = 300ms}), UsageError);
  was ? setenv("TMPDIR", before.c_str(), 1) : unsetenv("TMPDIR");
}

/// A length that a peer announces is not a reason to allocate memory.
TEST(strangers, lengths_from_a_peer_are_checked) {
  struct Header {
    std::uint32_t tag = 0, zero = 0;
    std::uint64_t bytes = 0;
  };
  for (const Header& header : {Header{7, 0, std::uint64_t{1} << 63}, Header{7, 1, 4}, Header{7, 0, 1ull << 43}}) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    const Socket theirs(pair[0]);
    Link link{Socket(pair[1])};
    std::byte bytes[4];
    Link::Message m{.tag = 8, .to = bytes, .from = nullptr, .bytes = sizeof bytes};
    link.receive(m);  // different from what arrives
    say_to(theirs, std::string(reinterpret_cast<const char*>(&header), sizeof header) + std::string(100, 'x'));
    link.advance();
    EXPECT_FALSE(m.done);
    EXPECT_EQ(link.broken(), header.zero != 0 || header.bytes > (1ull << 43));
  }
}

TEST(strangers, reports_that_no_rank_packs_are_empty) {
  Report r;
  r.collective.number = 5;
  EXPECT_EQ(unpack_report(pack(r)).collective.number, 5);
  const auto spoilt = [&](auto&& spoil) {
    Report bad = r;
    spoil(bad.collective);
    return unpack_stuck(pack_stuck(1, bad, "")).report.collective.number == 0;
  };
  EXPECT_TRUE(spoilt([](LedgerEntry& e) { std::fill(std::begin(e.group), std::end(e.group), 'x'); }));
  EXPECT_TRUE(spoilt([](LedgerEntry& e) { std::fill(std::begin(e.tensor), std::end(e.tensor), 'x'); }));
  EXPECT_TRUE(spoilt([](LedgerEntry& e) { e.what = static_cast<Collective>(200); }));
  EXPECT_TRUE(spoilt([](LedgerEntry& e) { e.phase = static_cast<Phase>(200); }));
  EXPECT_TRUE(spoilt([](LedgerEntry& e) { e.dtype = static_cast<DType>(200); }));
}

}  // namespace
}  // namespace hpcdl::comm
