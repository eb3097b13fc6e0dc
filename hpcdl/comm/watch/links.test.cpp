// A link between two hosts that stops delivering: its hosts are named, not just two ranks of one of them.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/transport/passing_for_tests.h"
#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/comm/watch/watch.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/pool.h"

namespace hpcdl::comm {
namespace {

/// Drops messages to another host, once `cut`.
class CutTransport final : public PassingTransport {
 public:
  CutTransport(std::unique_ptr<Transport> below, const std::atomic<bool>& cut)
      : PassingTransport(std::move(below)), cut_(cut) {}
  Pending start_send(int to, std::uint32_t tag, std::span<const std::byte> bytes) override {
    if (cut_ && host(to) != host(rank())) return {};
    return PassingTransport::start_send(to, tag, bytes);
  }

 private:
  const std::atomic<bool>& cut_;
};

/// What each of four ranks on two hosts reports after the link between them is cut.
std::vector<std::string> errors_behind_a_cut(Algorithm algorithm) {
  constexpr int kRanks = 4;
  auto transports = thread_transports(kRanks, {0, 0, 1, 1});
  auto channels = thread_channels(kRanks, {"alpha", "alpha", "beta", "beta"});
  std::vector<std::string> errors(kRanks);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      std::atomic<bool> cut = false;  // the number of this rank's messages that the others need to reach this point
      Watch watch(std::move(channels[r]), {.settle_seconds = 20, .program = "hpcdl 9, commit abc"});
      try {
        Pool pool(1);
        const auto world = make_world(std::make_unique<CutTransport>(std::move(transports[r]), cut),
                                      {.deadline_seconds = 1.5, .on_lost = watch.on_lost()});
        watch.guard(world);
        OwnedTensor x({{1000}, DType::f32});
        world.all_reduce(Stream(pool), x.tensor, Reduce::sum, algorithm).wait();
        world.barrier(Stream(pool)).wait();
        cut = true;
        world.all_reduce(Stream(pool), x.tensor, Reduce::sum, algorithm).wait();
        watch.close();
      } catch (const PeerLost& e) {
        errors[r] = e.what();
      }
    });
  threads.clear();
  return errors;
}

TEST(links, the_two_hosts_are_named) {
  for (const auto algorithm : {Algorithm::ring, Algorithm::automatic})
    for (const auto& e : errors_behind_a_cut(algorithm)) {
      EXPECT_TRUE(e.starts_with("[dist] hosts alpha and beta cannot reach each other") ||
                  e.starts_with("[dist] hosts beta and alpha cannot reach each other"))
          << e;
      EXPECT_TRUE(e.ends_with(" (hpcdl 9, commit abc)")) << e;
      EXPECT_EQ(e.find("GPU"), std::string::npos) << e;
    }
}

}  // namespace
}  // namespace hpcdl::comm
