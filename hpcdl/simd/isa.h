#pragma once
// The instruction sets, and the one that this process uses.
//
// A file NAME.simd.cpp is compiled once per instruction set. In it, `simd::Isa` names the set being compiled, and every
// template it instantiates carries that tag in its symbol, so no two sets ever share a symbol (no ODR trap).

#include <optional>
#include <string_view>
#include <utility>

namespace hpcdl::simd {

struct Scalar {
  static constexpr std::string_view name = "scalar";
};  // x86-64 baseline, one lane
struct Avx2 {
  static constexpr std::string_view name = "avx2";
};  // AVX2, FMA, F16C
struct Avx512 {
  static constexpr std::string_view name = "avx512";
};  // F, BW, DQ, VL, VNNI, BF16 (Zen 4, Sapphire Rapids)

/// In ascending order. amx is avx512 with tile registers: no file is compiled for it as a whole, its kernels are those
/// of Avx512 except the few that check has_tiles() and use simd/tiles.h.
enum class IsaKind : unsigned char { scalar, avx2, avx512, amx };
inline constexpr IsaKind kIsaKinds[] = {IsaKind::scalar, IsaKind::avx2, IsaKind::avx512, IsaKind::amx};

/// The best set this CPU runs and the system lets this process use.
IsaKind best_isa();
/// The best one, unless set_active_isa() was called.
IsaKind active_isa();
/// Makes `k` the active set. Returns false, and changes nothing, if the CPU lacks it.
bool set_active_isa(IsaKind k);
std::string_view isa_name(IsaKind k);
inline bool has_tiles() { return active_isa() == IsaKind::amx; }
/// Whether the CPU has AMX, even if the system does not let this process use it.
bool cpu_has_amx();

/// Calls f(tag) with the tag type of `k`.
template <class F> decltype(auto) with_isa(IsaKind k, F&& f) {
  switch (k) {
    case IsaKind::amx:
    case IsaKind::avx512: return f(Avx512{});
    case IsaKind::avx2: return f(Avx2{});
    default: return f(Scalar{});
  }
}
template <class F> decltype(auto) with_isa(F&& f) { return with_isa(active_isa(), std::forward<F>(f)); }

}  // namespace hpcdl::simd
