#pragma once
// Whether a GPU may add up in another order each time, where that is faster. By default every op repeats its bits.

#include <cstdlib>
#include <string_view>

#include "hpcdl/core/scoped_value.h"

namespace hpcdl {

namespace detail {
inline thread_local bool atomic_sums = [] {
  const char* text = std::getenv("HPCDL_ATOMIC_SUMS");
  return text && std::string_view(text) == "1";
}();
}  // namespace detail

/// Of what the calling thread launches; captured work keeps what it was captured with. Where HPCDL_ATOMIC_SUMS=1, true
/// to begin with.
inline bool atomic_sums() { return detail::atomic_sums; }

/// Sets it for as long as this lives.
struct WithAtomicSums : private ScopedValue<bool> {
  explicit WithAtomicSums(bool allowed) : ScopedValue(detail::atomic_sums, allowed) {}
};

}  // namespace hpcdl
