#include "hpcdl/simd/wanted_isa.h"

#include <fmt/format.h>

#include "hpcdl/simd/isa.h"

namespace hpcdl::simd {

std::string use_wanted_isa(const char* wanted) {
  if (!wanted) return "";
  for (const auto kind : kIsaKinds)
    if (isa_name(kind) == wanted) {
      set_active_isa(kind);
      return "";
    }
  return fmt::format("[simd] HPCDL_ISA={}: expected scalar, avx2, avx512 or amx; using {}", wanted,
                     isa_name(active_isa()));
}

}  // namespace hpcdl::simd
