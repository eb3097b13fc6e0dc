#include "python/src/runtime.h"

#include <pthread.h>

#include <memory>

namespace hpcdl::python {
namespace {

struct Runtime {
  std::mutex mutex;
  std::unique_ptr<Pool> pool;  // made by the first call: importing the module starts no threads
  int wanted = 0;

  Runtime() {
    // The threads of a pool do not survive a fork: a fork waits for the running call, and the child starts its own
    // pool when it needs one. The old pool object is leaked, because its threads cannot be joined there.
    pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); },
                   [] {
                     static_cast<void>(get().pool.release());
                     get().mutex.unlock();
                   });
  }
  /// Never destroyed: Python threads may compute until the process ends.
  static Runtime& get() {
    static Runtime* runtime = new Runtime;
    return *runtime;
  }
  Pool& ready() {
    if (!pool) pool = std::make_unique<Pool>(wanted);
    return *pool;
  }
};

}  // namespace

Turn::Turn() : lock_(Runtime::get().mutex), pool_(&Runtime::get().ready()) {}

int threads() {
  auto& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  return r.pool ? r.pool->threads() : r.wanted > 0 ? r.wanted : usable_cpus();
}

void set_threads(int n) {
  auto& r = Runtime::get();
  const std::lock_guard lock(r.mutex);
  r.wanted = n;
  r.pool.reset();
}

}  // namespace hpcdl::python
