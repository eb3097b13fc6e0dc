#include "hpcdl/core/thread_limit.h"

#include <algorithm>
#include <thread>

#include "hpcdl/core/error.h"
#include "hpcdl/pool.h"

namespace hpcdl {

int most_threads() {
  const int processors = std::max(static_cast<int>(std::thread::hardware_concurrency()), usable_cpus());
  return std::min(16 * processors, 1024);
}

void check_threads(std::int64_t threads, std::string_view area, std::string_view name) {
  if (threads >= 0 && threads <= most_threads()) return;
  fail_usage(area, "{} = {}: expected 1 to {} threads on this machine, or 0 for all that it can run at once, {}", name,
             threads, most_threads(), usable_cpus());
}

}  // namespace hpcdl
