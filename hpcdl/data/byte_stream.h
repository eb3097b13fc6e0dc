#pragma once
// The bytes of a file, decompressed if its name ends in .gz or .zst.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace hpcdl::data {

namespace fs = std::filesystem;

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Appends up to `bytes` bytes; appends nothing only at the end. Throws Error for damaged or truncated data.
  virtual void read(std::string& out, std::size_t bytes) = 0;
  /// Bytes of the file consumed so far, to measure progress.
  virtual std::int64_t position() const = 0;
};

std::unique_ptr<ByteStream> open_stream(const fs::path& path);

/// The name without .gz or .zst.
fs::path without_compression(const fs::path& path);

}  // namespace hpcdl::data
