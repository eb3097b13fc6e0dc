#include "tools/probe/bound.h"

#include <pthread.h>

namespace hpcdl::lab {

std::vector<int> allowed_cpus() {
  std::vector<int> list;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return list;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) list.push_back(c);
  return list;
}

bool bind_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

BoundPools::BoundPools(const std::vector<Pool*>& pools) {
  const auto cpus = allowed_cpus();
  for (Pool* pool : pools) {
    if (pool->threads() > static_cast<int>(cpus.size()))
      continue;  // more threads than CPUs: leave their placement to the system
    Before b{pool, std::vector<cpu_set_t>(static_cast<std::size_t>(pool->threads()))};
    pool->run_on_each_thread([&](int t) {
      pthread_getaffinity_np(pthread_self(), sizeof(cpu_set_t), &b.masks[static_cast<std::size_t>(t)]);
      bind_to(cpus[static_cast<std::size_t>(t)]);
    });
    before_.push_back(std::move(b));
  }
}

BoundPools::~BoundPools() {
  // The calling thread is the first of every pool, so bindings are removed in reverse order.
  for (auto b = before_.rbegin(); b != before_.rend(); ++b)
    b->pool->run_on_each_thread([&](int t) {
      pthread_setaffinity_np(pthread_self(), sizeof(cpu_set_t), &b->masks[static_cast<std::size_t>(t)]);
    });
}

}  // namespace hpcdl::lab
