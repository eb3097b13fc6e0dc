#pragma once

#include <sched.h>

#include <vector>

#include "hpcdl/pool.h"

namespace hpcdl::lab {

/// CPUs this process may run on.
std::vector<int> allowed_cpus();
/// Binds the calling thread; false if the system refuses.
bool bind_to(int cpu);

/// For its lifetime, thread t of each pool stays on the t-th CPU. Otherwise a woken worker starts on the CPU of
/// the thread that woke it, and waits there until that one stops spinning, which caused launches of 100 us, and half
/// the peak.
class BoundPools {
 public:
  explicit BoundPools(const std::vector<Pool*>& pools);
  BoundPools(const BoundPools&) = delete;
  BoundPools& operator=(const BoundPools&) = delete;
  ~BoundPools();

 private:
  struct Before {
    Pool* pool;
    std::vector<cpu_set_t> masks;  // by thread
  };
  std::vector<Before> before_;
};

}  // namespace hpcdl::lab
