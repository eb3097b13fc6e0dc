#pragma once

#include <functional>
#include <vector>

#include "hpcdl/comm/group.h"
#include "hpcdl/comm/world.h"

namespace hpcdl::testing {

struct RankOptions {
  double deadline_seconds = 60;  // of a collective
  std::vector<int> hosts;        // that ranks pretend to be on; empty: one
  comm::OnLost on_lost;
};

/// Runs `body` on n ranks, each a thread with its own world group, and waits for all. The first exception of any of
/// them is thrown here; the other ranks, who would wait for the one that threw, get PeerLost at once. Assertions of
/// gtest work in it: a rank that they end early ends the others, too.
void run_ranks(int n, const std::function<void(comm::Group world)>& body, const RankOptions& options = {});

/// What each rank threw, or an empty string: for tests of failures.
std::vector<std::string> rank_errors(int n, const std::function<void(comm::Group world)>& body,
                                     const RankOptions& options = {});

}  // namespace hpcdl::testing
