#pragma once
// Software prefetching where that of the hardware is not enough.

#include <cstdint>

namespace hpcdl::simd {

/// Fetches into L2: of every 16 KiB, one line of each of its four pages in turns, for streams that are fetched at least
/// that far ahead. Hardware prefetchers follow each page separately and stop at its end, so four pages have more
/// requests under way than one after the other.
[[gnu::always_inline]] inline void prefetch_pages_in_turn(const void* p) {
  constexpr std::uintptr_t kPages = 4, kLines = 64, kLine = 64, kBytes = kPages * kLines * kLine;
  const auto at = reinterpret_cast<std::uintptr_t>(p), line = at % kBytes / kLine;
  __builtin_prefetch(reinterpret_cast<const char*>(at - at % kBytes + (line % kPages * kLines + line / kPages) * kLine),
                     0, 2);
}

}  // namespace hpcdl::simd
