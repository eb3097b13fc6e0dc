#include "hpcdl/pool.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <thread>

#include "hpcdl/core/cgroup.h"
#include "hpcdl/core/team.h"

namespace hpcdl {
namespace {

int positive_env(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::max(0, std::atoi(text)) : 0;
}

/// HPCDL_THREADS; 0 if it is unset, empty or 0. Warns once about an invalid value.
int asked_threads() {
  const char* text = std::getenv("HPCDL_THREADS");
  if (!text || !*text) return 0;
  char* end = nullptr;
  const auto n = std::strtol(text, &end, 10);
  while (std::isspace(static_cast<unsigned char>(*end))) ++end;
  if (end != text && !*end && n >= 0) return static_cast<int>(std::min<long>(n, std::numeric_limits<int>::max()));
  static std::once_flag told;
  std::call_once(
      told, [&] { std::fprintf(stderr, "[pool] HPCDL_THREADS=%s is not a number of threads and is ignored\n", text); });
  return 0;
}

}  // namespace

int usable_cpus() {
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                      : static_cast<int>(std::thread::hardware_concurrency());
  for (int limit : {static_cast<int>(std::ceil(cgroup_cpus())), positive_env("OMP_NUM_THREADS"), asked_threads()})
    if (limit > 0) n = std::min(n, limit);
  return std::max(n, 1);
}

Pool::Pool(int threads)
    : threads_(threads > 0 ? threads : usable_cpus()), scratch_(static_cast<std::size_t>(threads_)) {
  if (threads_ > 1) team_ = std::make_unique<Team>(threads_);
}

Pool::~Pool() = default;

void Pool::reserve_scratch(std::int64_t bytes) {
  for (auto& block : scratch_)
    if (block.bytes() < bytes) block = Buffer(bytes);
}

void Pool::run_raw(Job f, void* ctx, bool each) {
  if (each) team_->run_on_each({f, ctx, busy_});
  else team_->run({f, ctx, busy_});
}

}  // namespace hpcdl
