#include "hpcdl/core/lowest_cpu.h"

#include <sched.h>

namespace hpcdl {

int lowest_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  int lowest = 0;
  while (lowest < CPU_SETSIZE - 1 && !CPU_ISSET(lowest, &set)) ++lowest;
  return lowest;
}

}  // namespace hpcdl
