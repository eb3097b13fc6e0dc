#include "hpcdl/simd/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace hpcdl::simd {
namespace {

/// Tile registers make a thread's state so large (8 KiB) that Linux saves it only for processes that have asked. Older
/// kernels do not know it, and some hypervisors do not allow it for their guests: then the answer is no.
bool system_grants_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA (Linux 5.16)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

/// Clang 14 does not know this name in __builtin_cpu_supports.
bool cpu_has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

std::atomic<IsaKind>& active() {
  static std::atomic<IsaKind> isa{best_isa()};
  return isa;
}

}  // namespace

bool cpu_has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAll) == kAll;
}

IsaKind best_isa() {
  static const IsaKind best = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
    if (avx2 && avx512) return cpu_has_amx() && system_grants_tiles() ? IsaKind::amx : IsaKind::avx512;
    return avx2 ? IsaKind::avx2 : IsaKind::scalar;
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
  return k == IsaKind::amx ? "amx" : with_isa(k, [](auto isa) { return decltype(isa)::name; });
}

}  // namespace hpcdl::simd
