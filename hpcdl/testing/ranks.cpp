#include "hpcdl/testing/ranks.h"

#include <exception>
#include <mutex>
#include <thread>

#include "hpcdl/comm/transport/threads.h"

namespace hpcdl::testing {
namespace {

struct Outcome {
  std::exception_ptr first;
  std::vector<std::string> errors;
};

Outcome run_all(int n, const std::function<void(comm::Group)>& body, const RankOptions& options) {
  auto transports = comm::thread_transports(n, options.hosts);
  Outcome outcome;
  outcome.errors.resize(static_cast<std::size_t>(n));
  std::mutex mutex;
  const auto record = [&](int rank, const char* what) {
    std::lock_guard lock(mutex);
    outcome.errors[static_cast<std::size_t>(rank)] = what;
    if (!outcome.first) outcome.first = std::current_exception();
  };
  const auto rank_main = [&](int rank) {
    comm::Group world;
    try {
      world = comm::make_world(std::move(transports[static_cast<std::size_t>(rank)]),
                               {options.deadline_seconds, options.on_lost});
      body(world);
    } catch (const std::exception& e) {
      record(rank, e.what());
      world.abandon(e.what());
    } catch (...) {
      record(rank, "something that is not a std::exception");
      world.abandon("an unknown error");
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back(rank_main, r);
  for (auto& t : threads) t.join();
  return outcome;
}

}  // namespace

void run_ranks(int n, const std::function<void(comm::Group)>& body, const RankOptions& options) {
  const Outcome outcome = run_all(n, body, options);
  if (outcome.first) std::rethrow_exception(outcome.first);
}

std::vector<std::string> rank_errors(int n, const std::function<void(comm::Group)>& body, const RankOptions& options) {
  return run_all(n, body, options).errors;
}

}  // namespace hpcdl::testing
