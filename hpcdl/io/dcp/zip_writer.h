#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io::dcp {

/// The bytes of a zip archive below 4 GiB whose files are not compressed, from its beginning on; the caller puts
/// them into a file, one after the other.
class ZipWriter {
 public:
  std::string file(const std::string& name, std::string_view bytes);
  /// A file whose `bytes` the caller writes next, from a multiple of `alignment` on; then end(), with their CRC-32.
  std::string begin(const std::string& name, std::int64_t bytes, std::int64_t alignment);
  std::string end(std::uint32_t crc);
  /// The directory.
  std::string finish();

  static std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

 private:
  struct Entry {
    std::string name;
    std::int64_t at, bytes;  // of its header
    std::uint32_t crc;
    bool sizes_follow;  // its data
  };
  static std::string facts(const Entry& e);
  static std::string sizes(const Entry& e);
  static std::string header(const Entry& e, std::int64_t padding);
  std::string count(std::string bytes);

  std::vector<Entry> entries_;
  std::int64_t at_ = 0;
};

}  // namespace hpcdl::io::dcp
