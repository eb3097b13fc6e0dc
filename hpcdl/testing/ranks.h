#pragma once

#include <functional>
#include <vector>

#include "hpcdl/comm/world.h"
#include "hpcdl/group.h"
#include "hpcdl/pool.h"
#include "hpcdl/stream.h"

namespace hpcdl::testing {

/// What a rank calls collectives with.
struct Cpu {
  Pool pool{1};
  Stream stream{pool};
};

template <class T> Tensor tensor(std::vector<T>& v) {
  return Tensor(v.data(), Spec{Shape{static_cast<std::int64_t>(v.size())}, dtype_of<T>});
}

struct RankOptions {
  double deadline_seconds = 60;  // of a collective
  std::vector<int> hosts;        // on which ranks pretend to be; empty: one host
  comm::OnLost on_lost;
};

/// Runs `body` on n ranks, each a thread with its own world group, and waits for all. The first exception of any of
/// them is thrown here; the other ranks, which would wait for the one that threw, get PeerLost at once. Assertions of
/// gtest work in it: if they end a rank early, the others end, too.
void run_ranks(int n, const std::function<void(comm::Group world)>& body, const RankOptions& options = {});

/// The error of each rank, or an empty string: for tests of failures.
std::vector<std::string> rank_errors(int n, const std::function<void(comm::Group world)>& body,
                                     const RankOptions& options = {});

}  // namespace hpcdl::testing
