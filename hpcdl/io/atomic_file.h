#pragma once
// A file that is either whole or absent: written aside as ".tmp-NAME" in the same folder, synced, renamed over NAME.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "hpcdl/core/unfinished.h"
#include "hpcdl/io/file.h"

namespace hpcdl::io {

/// Prefix of the name under which the file is written, in the same folder.
inline constexpr std::string_view kAsidePrefix = ".tmp-";
fs::path aside_of(const fs::path& path);
struct Aside {
  Fd fd;
  Unfinished unfinished;  // after fd: a file that is no longer listed may be reused by another process
};
/// Creates the empty file `aside` for one process at a time, while it is open: throws Error while another process
/// writes `path`. A leftover of a killed writer is reused.
Aside open_aside(const fs::path& aside, const fs::path& path);

/// Every failure (disk full, no permission, ...) throws Error and leaves neither a half file nor the old one changed.
class AtomicFile {
 public:
  /// See open_aside() for what it throws. A symbolic link stays, and its target is written; a device or a
  /// pipe gets the bytes at once, and only in order.
  explicit AtomicFile(const fs::path& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Without commit() no file remains.
  ~AtomicFile();

  /// Asks the file system for the space now, so that a full disk is noticed before the work. Only a hint, which may do
  /// nothing.
  void reserve(std::int64_t bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  void append(std::span<const std::byte> bytes);
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Bytes appended so far.
  std::int64_t size() const { return end_; }
  /// Syncs the file, renames it into place, syncs the folder.
  void commit();

 private:
  fs::path path_, aside_;  // aside_: empty for a device
  Aside file_;             // of a device or a pipe: not listed
  std::int64_t end_ = 0;
  bool committed_ = false;
};

void write_file_atomic(const fs::path& path, std::string_view text);

}  // namespace hpcdl::io
