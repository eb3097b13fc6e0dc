#pragma once
// A benchmark on N processes of this host, one for each GPU: this one, which is rank 0 and has stdin, and copies of it.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hpcdl/comm/bootstrap/join.h"
#include "hpcdl/parallel/agree.h"

namespace hpcdl::bench {

/// Runs body(world) on every rank and returns the exit code of all. To be called before the process uses a GPU: a copy
/// of a process that has cannot use it.
template <class F> int fork_ranks(int ranks, F&& body) {
  const std::string run = "bench." + std::to_string(getpid());
  std::vector<pid_t> others;
  int rank = 0;
  for (int r = 1; r < ranks && rank == 0; ++r) {
    const pid_t pid = fork();
    if (pid == 0) rank = r, others.clear(), prctl(PR_SET_PDEATHSIG, SIGKILL);
    else others.push_back(pid);
  }
  int code = 0;
  try {
    comm::Place place;
    place.rank = place.local_rank = rank, place.world = place.local_world = ranks;
    place.source = "the benchmark", place.run_id = run;
    auto joined = comm::join(place, {.transport = "tcp", .init_timeout = 60, .timeout = 60, .leave = {}});
    body(joined.world());
    joined.close();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    code = 1;
  }
  for (const pid_t pid : others) {
    int status = 0;
    if (waitpid(pid, &status, 0) < 0 || status != 0) code = 1;
  }
  return code;
}

/// Calls timed() on all ranks for every line that rank 0 reads, and prints its result (JSON) there; "ready" comes
/// first.
template <class F> void for_each_line(const comm::Group& world, F&& timed) {
  const bool speaks = world.rank() == 0;
  if (speaks) std::cout << "ready" << std::endl;
  for (std::string line;;) {
    const bool more = speaks && static_cast<bool>(std::getline(std::cin, line));
    if (!parallel::any_rank(world, more)) return;
    const auto j = timed();
    if (speaks) std::cout << j.dump() << std::endl;
  }
}

}  // namespace hpcdl::bench
