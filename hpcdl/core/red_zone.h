#pragma once
// Unused bytes between used ones: the address sanitizer is told about them, and reports any read or
// write. By itself it knows blocks of malloc(), but not where a tensor ends within one, and not mapped memory. Without
// a sanitizer these do nothing.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define HPCDL_RED_ZONES
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HPCDL_RED_ZONES
#endif
#endif

#ifdef HPCDL_RED_ZONES
#include <sanitizer/asan_interface.h>
#endif

namespace hpcdl {

/// From now on no code may access [begin, end). Exact at `begin` if memory in use lies before it, and at `end` to 8
/// bytes: a partial group of eight bytes before memory in use stays accessible.
inline void close_red_zone([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#ifdef HPCDL_RED_ZONES
  __asan_poison_memory_region(begin, static_cast<std::size_t>(end - begin));
#endif
}

/// To be called before releasing memory that did not come from malloc().
inline void open_red_zone([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#ifdef HPCDL_RED_ZONES
  __asan_unpoison_memory_region(begin, static_cast<std::size_t>(end - begin));
#endif
}

}  // namespace hpcdl
