#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hpcdl::io {

/// CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected; RFC 3720 B.4). Pass the result of one piece as `crc` to
/// continue with the next: crc32c(b, crc32c(a)) is the checksum of a followed by b.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);
inline std::uint32_t crc32c(std::string_view text, std::uint32_t crc = 0) {
  return crc32c(std::as_bytes(std::span(text)), crc);
}

/// The two implementations of crc32c, for tests: a table, and the SSE4.2 instruction (precondition: the CPU has
/// it).
std::uint32_t crc32c_table(std::span<const std::byte> bytes, std::uint32_t crc);
std::uint32_t crc32c_sse42(std::span<const std::byte> bytes, std::uint32_t crc);
bool has_sse42();

}  // namespace hpcdl::io
