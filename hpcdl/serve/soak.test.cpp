// Many clients that ask, leave in the middle and send rubbish: afterwards everything is as it was before.
// HPCDL_SOAK_SECONDS (5): how long; from a minute on, the model is a larger one, and the memory of the process must not
// grow by more than one part in a hundred.

#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "hpcdl/serve/running_for_tests.h"

namespace hpcdl::serve {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kPath = "/v1/completions";
constexpr unsigned kClients = 64;

/// When connections that have ended are closed on both sides.
std::size_t open_files() {
  std::size_t least = SIZE_MAX;
  for (int i = 0; i < 30; ++i) {
    std::size_t n = 0;
    const std::unique_ptr<DIR, int (*)(DIR*)> list(opendir("/proc/self/fd"), closedir);
    while (readdir(list.get())) ++n;
    least = std::min(least, n);
    std::this_thread::sleep_for(milliseconds(10));
  }
  return least;
}

/// Of this process, now.
std::int64_t resident_bytes() {
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// That is allocated, now.
std::int64_t heap_bytes() {
  const auto m = mallinfo2();
  return static_cast<std::int64_t>(m.uordblks + m.hblkhd);
}

struct Counts {
  std::atomic<int> answered{0}, wrong{0}, left{0}, malformed{0};
};

/// One request, and what becomes of it.
void ask(int port, std::mt19937& random, Counts& counts) {
  TestClient client(port);
  const json body{{"prompt", std::string(1 + random() % 200, static_cast<char>('a' + random() % 26))},
                  {"max_tokens", 1 + random() % 40},
                  {"n", 1 + random() % 3},
                  {"stream", random() % 2 == 0},
                  {"temperature", 1}};
  auto request = TestClient::request("POST", kPath, body.dump());
  const auto kind = random() % 20;
  if (kind < 6) {
    client.send(request);
    std::this_thread::sleep_for(milliseconds(random() % 20));
    ++counts.left;
  } else if (kind == 6) {
    request[random() % request.size()] = static_cast<char>(random());
    client.send(request);
    ++counts.malformed;
  } else {
    client.send(request);
    const auto r = client.read();
    const bool whole = body["stream"] ? !events_of(r.body).empty() : r.json().contains("usage");
    ++(r.status == 200 && whole ? counts.answered : counts.wrong);
  }
}

void clients_for(std::chrono::seconds time, int port, Counts& counts) {
  const auto end = Clock::now() + time;
  std::vector<std::jthread> clients;
  for (unsigned c = 0; c < kClients; ++c)
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      do ask(port, random, counts);
      while (Clock::now() < end);
    });
}

TEST(Soak, leaves_nothing_behind) {
  const char* given = std::getenv("HPCDL_SOAK_SECONDS");
  const std::chrono::seconds time(given ? std::atoi(given) : 5);
  const bool long_enough = time >= std::chrono::minutes(1);
  auto config = RunningServer::config();
  config.engine.kv_memory = "4M";  // pages are soon all touched, and then taken from other texts
  const io::TempFolder folder;
  if (long_enough) {  // 200 MB, so that one part in a hundred is more than what malloc keeps for its threads
    auto large = test_model();
    large.layers = 16, large.width = 512, large.ffn = 1408;
    write_test_model(folder / "large", large);
    config.engine.model = (folder / "large").string();
  }
  const RunningServer server(config);
  Counts counts;
  clients_for(time / 5, server.port(), counts);  // buffers and programs take the sizes that they keep
  expect_unharmed(server);
  const auto files = open_files();
  const auto memory = resident_bytes();
  const auto sizes = [] {
    return fmt::format(" {:.2f} ({:.2f})", 1e-6 * static_cast<double>(resident_bytes()),
                       1e-6 * static_cast<double>(heap_bytes()));
  };
  std::string seen = sizes();
  for (int part = 0; part < 5; ++part) {
    clients_for(time / 5, server.port(), counts);
    expect_unharmed(server);
    seen += sizes();
  }
  fmt::print("{} answered, {} left, {} malformed; resident MB (allocated):{}\n", counts.answered.load(),
             counts.left.load(), counts.malformed.load(), seen);
  EXPECT_EQ(counts.wrong, 0);
  EXPECT_GT(counts.answered, 50);
  EXPECT_GT(counts.left, 10);
  EXPECT_GT(counts.malformed, 3);
  expect_unharmed(server);
  EXPECT_TRUE(server.wait_for([](auto m) { return m["connections"] == 1; })) << "the one that asks";
  EXPECT_EQ(open_files(), files);
  if (long_enough) {
    const auto minutes = static_cast<int>(time / std::chrono::minutes(1));
    EXPECT_GE(counts.left, 100 * minutes);
    EXPECT_GE(counts.malformed, 100 * minutes);
    EXPECT_LE(resident_bytes(), memory + memory / 100) << seen;
  }
}

}  // namespace
}  // namespace hpcdl::serve
