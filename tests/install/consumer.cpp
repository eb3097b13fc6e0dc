#include <cstdio>

#include "hpcdl/core/pool.h"
#include "hpcdl/simd/isa.h"

int main() {
  hpcdl::Pool pool(2);
  int seen[2] = {};
  pool.run([&](int thread) { seen[thread] = 1; });
  std::printf("threads %d, instruction set %s\n", seen[0] + seen[1],
              hpcdl::simd::isa_name(hpcdl::simd::active_isa()).data());
  return seen[0] + seen[1] == pool.threads() ? 0 : 1;
}
