#pragma once
// Whether a GPU may add in a different order each time, where that is faster. By default every op is reproducible bit
// for bit.

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

/// Applies to launches of the calling thread; captured work keeps the setting it was captured with. Initially true if
/// HPCDL_ATOMIC_SUMS=1.
inline bool atomic_sums() { return detail::atomic_sums; }

/// Sets the flag for the lifetime of this object.
struct WithAtomicSums : private ScopedValue<bool> {
  explicit WithAtomicSums(bool allowed) : ScopedValue(detail::atomic_sums, allowed) {}
};

}  // namespace hpcdl
