#pragma once
// Bytes that are not in use, between those that are: an address sanitizer is told of them, and reports any read or
// writes one. It knows the blocks of malloc(); not where within one a tensor ends, nor of what is mapped. Without a
// sanitizer these do nothing.

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

/// From here on no code may touch [begin, end). Exact at `begin` where memory in use lies before it, and at `end` to 8
/// bytes: what of a group of eight lies before memory in use stays open.
inline void close_red_zone([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#ifdef HPCDL_RED_ZONES
  __asan_poison_memory_region(begin, static_cast<std::size_t>(end - begin));
#endif
}

/// To be called before memory that this process did not get by malloc() is given back.
inline void open_red_zone([[maybe_unused]] const std::byte* begin, [[maybe_unused]] const std::byte* end) {
#ifdef HPCDL_RED_ZONES
  __asan_unpoison_memory_region(begin, static_cast<std::size_t>(end - begin));
#endif
}

}  // namespace hpcdl
