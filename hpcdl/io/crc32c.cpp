#include "hpcdl/io/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace hpcdl::io {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1u) ? 0x82F63B78u : 0u);
    table[i] = c;
  }
  return table;
}
constexpr auto kTable = make_table();

}  // namespace

std::uint32_t crc32c_table(std::span<const std::byte> bytes, std::uint32_t crc) {
  std::uint32_t c = ~crc;
  for (std::byte b : bytes) c = kTable[(c ^ static_cast<std::uint32_t>(b)) & 0xffu] ^ (c >> 8);
  return ~c;
}

#if defined(__x86_64__)
bool has_sse42() { return __builtin_cpu_supports("sse4.2") != 0; }

// One dependent chain: 8 bytes in 3 cycles, about 11 GB/s at 4.2 GHz, above what any disk here delivers.
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::span<const std::byte> bytes, std::uint32_t crc) {
  std::uint64_t c = ~crc;
  const std::byte* p = bytes.data();
  std::size_t n = bytes.size();
  for (; n >= 8; p += 8, n -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, 8);
    c = _mm_crc32_u64(c, word);
  }
  for (; n > 0; ++p, --n) c = _mm_crc32_u8(static_cast<std::uint32_t>(c), static_cast<unsigned char>(*p));
  return ~static_cast<std::uint32_t>(c);
}
#else
bool has_sse42() { return false; }
std::uint32_t crc32c_sse42(std::span<const std::byte> bytes, std::uint32_t crc) { return crc32c_table(bytes, crc); }
#endif

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  static const bool fast = has_sse42();
  return fast ? crc32c_sse42(bytes, crc) : crc32c_table(bytes, crc);
}

}  // namespace hpcdl::io
