#include "cli/bench_ranks.h"

#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/self.h"
#include "cli/verb.h"
#include "cli/world.h"
#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/comm/world.h"

namespace hpcdl::cli {
namespace {

void on_threads(int ranks, const std::string& device, const std::function<void(const comm::Group&, Device)>& work) {
  auto transports = comm::thread_transports(ranks);
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (auto& t : transports)
    threads.emplace_back([&] {
      comm::Group world;
      try {
        world = comm::make_world(std::move(t));
        work(world, device_from_name(device == "cuda" ? fmt::format("cuda:{}", world.rank()) : device));
        world.close();
      } catch (const std::exception& e) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world.abandon(e.what());
      }
    });
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace

int on_launched_ranks(std::string_view verb, int threads, const std::string& device,
                      const std::function<void(const comm::Group& world, Device device)>& work) {
  if (threads > 0) return on_threads(threads, device, work), exit_code::kDone;
  auto joined = join_ranks({});
  return on_ranks(joined, [&] {
    if (joined.place().world == 1)
      fail_usage(
          verb.substr(0, verb.find(' ')),
          "there is only one rank: start several with mpirun -n 2 hpcdl {0} ..., or with hpcdl {0} -n 2 for ranks "
          "that are threads",
          verb);
    expect_same_start(joined, std::string(verb), {{"the command", own_command()}});
    work(joined.world(), device_from_name(device_of_rank(device, joined.place())));
    return exit_code::kDone;
  });
}

int on_bench_ranks(std::string_view name, int threads, const std::string& device,
                   const std::function<void(const comm::Group& world, Device device)>& bench) {
  return on_launched_ranks(fmt::format("bench {}", name), threads, device, bench);
}

}  // namespace hpcdl::cli
