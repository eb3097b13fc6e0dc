#pragma once
// A launch whose ranks are threads, each with its own store.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/comm/bootstrap/store.h"
#include "hpcdl/comm/bootstrap/store_server.h"

namespace hpcdl::comm {

using namespace std::chrono_literals;

inline Deadline in(std::chrono::milliseconds time) { return Clock::now() + time; }

/// The error of each thread; empty: none.
inline std::vector<std::string> run_ranks(int world, const std::function<void(int rank)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  std::vector<std::jthread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  threads.clear();
  return errors;
}

/// All ranks of a world of threads; rank 0 listens at a free port.
struct Launch {
  explicit Launch(int world_size, std::chrono::milliseconds timeout = 20s)
      : world(world_size), deadline(in(timeout)), listening(listen_at("127.0.0.1", 0)), port(port_of(listening)) {}

  std::shared_ptr<Store> join(int rank, int said_world = 0, const RunKey& key = "test") {
    std::unique_ptr<StoreServer> server;
    if (rank == 0)
      server = std::make_unique<StoreServer>(std::move(listening),
                                             ServerOptions{world, "test", deadline, {"a", "b", "c", "d"}});
    std::string why;
    Socket s = connect_to("127.0.0.1", port, 2s, why);
    return Store::introduce(std::move(s), rank, said_world ? said_world : world, key, deadline, std::move(server));
  }

  int world;
  Deadline deadline;
  Socket listening;
  int port;
};

inline void expect_none(const std::vector<std::string>& errors) {
  for (std::size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

}  // namespace hpcdl::comm
