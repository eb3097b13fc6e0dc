#include "hpcdl/simd/isa.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace hpcdl::simd {
namespace {

IsaKind initial() {
  const IsaKind best = best_isa();
  const char* wish = std::getenv("HPCDL_ISA");
  if (!wish) return best;
  for (IsaKind k : {IsaKind::scalar, IsaKind::avx2, IsaKind::avx512})
    if (isa_name(k) == wish) return k <= best ? k : best;
  std::fprintf(stderr, "[simd] HPCDL_ISA=%s is none of scalar, avx2, avx512; using %s\n", wish, isa_name(best).data());
  return best;
}

std::atomic<IsaKind>& active() {
  static std::atomic<IsaKind> isa{initial()};
  return isa;
}

}  // namespace

IsaKind best_isa() {
  static const IsaKind best = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
    return avx2 && avx512 ? IsaKind::avx512 : avx2 ? IsaKind::avx2 : IsaKind::scalar;
  }();
  return best;
}

IsaKind active_isa() { return active().load(std::memory_order_relaxed); }

bool set_active_isa(IsaKind k) {
  if (k > best_isa()) return false;
  active().store(k, std::memory_order_relaxed);
  return true;
}

std::string_view isa_name(IsaKind k) {
  return with_isa(k, [](auto isa) { return decltype(isa)::name; });
}

}  // namespace hpcdl::simd
