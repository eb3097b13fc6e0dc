#pragma once
// The threads on which calls compute. One pool for the module; calls from several Python threads take turns.

#include <mutex>

#include "hpcdl/stream.h"

namespace hpcdl::python {

int threads();
/// 0: as many as this process may use (affinity, cgroup quota, OMP_NUM_THREADS, HPCDL_THREADS).
void set_threads(int n);

/// A turn on the pool. Must not be taken with the GIL held, because the thread that has the turn may need the GIL.
class Turn {
 public:
  Turn();
  Pool& pool() const { return *pool_; }

 private:
  std::unique_lock<std::mutex> lock_;
  Pool* pool_;
};

}  // namespace hpcdl::python
