#pragma once
// The instruction set that a program is asked to use, by HPCDL_ISA=scalar|avx2|avx512|amx. The library itself reads no
// environment.

#include <string>

namespace hpcdl::simd {

/// Makes the set named by `wanted` the active one; a CPU that lacks it keeps the best that it has. Null: nothing is
/// wanted. Returns what is wrong with the name, or "".
std::string use_wanted_isa(const char* wanted);

}  // namespace hpcdl::simd
