#include "hpcdl/io/dcp/zip_writer.h"

#include <zlib.h>

#include <utility>

#include "hpcdl/io/dcp/little_endian.h"

namespace hpcdl::io::dcp {
namespace {

constexpr std::int64_t kHeaderBytes = 30, kPaddingHead = 4;
constexpr std::uint64_t kVersion = 20, kSizesFollow = 8, kFirstDay = 0x21;  // 1980-01-01, so that bytes repeat

std::string le(std::uint64_t value, int bytes) { return little_endian(value, bytes); }
std::string le(std::int64_t value, int bytes) { return little_endian(static_cast<std::uint64_t>(value), bytes); }

}  // namespace

std::uint32_t ZipWriter::crc32(std::string_view bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(
      ::crc32_z(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

/// Version, flags, method (stored), time and date.
std::string ZipWriter::facts(const Entry& e) {
  return le(kVersion, 2) + le(e.sizes_follow ? kSizesFollow : 0, 2) + le(std::uint64_t{0}, 4) + le(kFirstDay, 2);
}

std::string ZipWriter::sizes(const Entry& e) { return le(std::uint64_t{e.crc}, 4) + le(e.bytes, 4) + le(e.bytes, 4); }

std::string ZipWriter::header(const Entry& e, std::int64_t padding) {
  return "PK\3\4" + facts(e) + (e.sizes_follow ? std::string(12, '\0') : sizes(e)) + le(e.name.size(), 2) +
         le(padding, 2) + e.name;
}

std::string ZipWriter::count(std::string bytes) {
  at_ += std::ssize(bytes);
  return bytes;
}

std::string ZipWriter::file(const std::string& name, std::string_view bytes) {
  entries_.push_back({name, at_, std::ssize(bytes), crc32(bytes), false});
  return count(header(entries_.back(), 0) + std::string(bytes));
}

std::string ZipWriter::begin(const std::string& name, std::int64_t bytes, std::int64_t alignment) {
  entries_.push_back({name, at_, bytes, 0, true});
  const auto unpadded = at_ + kHeaderBytes + std::ssize(name) + kPaddingHead;
  const auto padding = (alignment - unpadded % alignment) % alignment;
  auto head = header(entries_.back(), padding + kPaddingHead) + "FB" + le(padding, 2) +
              std::string(static_cast<std::size_t>(padding), '\0');
  at_ += bytes;
  return count(std::move(head));
}

std::string ZipWriter::end(std::uint32_t crc) {
  entries_.back().crc = crc;
  return count("PK\7\x8" + sizes(entries_.back()));
}

std::string ZipWriter::finish() {
  std::string directory;
  for (const auto& e : entries_)
    directory += "PK\1\2" + le(kVersion, 2) + facts(e) + sizes(e) + le(e.name.size(), 2) + std::string(12, '\0') +
                 le(e.at, 4) + e.name;
  return directory + "PK\5\6" + std::string(4, '\0') + le(entries_.size(), 2) + le(entries_.size(), 2) +
         le(directory.size(), 4) + le(at_, 4) + std::string(2, '\0');
}

}  // namespace hpcdl::io::dcp
