#include "cli/bench_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/world.h"
#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/comm/world.h"

namespace hpcdl::cli {
namespace {

void on_threads(int ranks, const std::function<void(const comm::Group&)>& bench) {
  auto transports = comm::thread_transports(ranks);
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (auto& t : transports)
    threads.emplace_back([&] {
      comm::Group world;
      try {
        world = comm::make_world(std::move(t));
        bench(world);
        world.close();
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        world.abandon(e.what());
      }
    });
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace

int on_bench_ranks(int threads, const std::function<void(const comm::Group& world)>& bench) {
  if (threads > 0) return on_threads(threads, bench), exit_code::kDone;
  auto joined = join_ranks({});
  return on_ranks(joined, [&] { return bench(joined.world()), exit_code::kDone; });
}

}  // namespace hpcdl::cli
