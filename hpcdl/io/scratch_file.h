#pragma once
// State of a run that lies on a disk instead of in memory.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "hpcdl/io/file_queue.h"

namespace hpcdl::io {

/// Whether files in this folder lie in memory (tmpfs).
bool lies_in_memory(const fs::path& folder);
/// Throws Error unless this is a folder on a disk in which this process may make files.
void require_scratch_folder(const fs::path& folder);
/// Bytes that this user may still write there; 0 if there is no such folder.
std::int64_t free_bytes(const fs::path& folder);

/// A file of zeros with reserved room, which no other process sees and which is gone when this is, however the process
/// ends. Bytes move between it and memory in the background; besides, it is mapped.
class ScratchFile {
 public:
  /// Offsets, lengths and addresses of what moves are multiples of this.
  static constexpr std::int64_t kAlign = DirectFile::kAlign;
  static std::int64_t padded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  /// `bytes`: a multiple of kAlign, above 0. Throws Error if there is no such folder, or it cannot be written to, lies
  /// in memory or has too little room: nothing that is written later can find the disk full.
  ScratchFile(const fs::path& folder, std::int64_t bytes, bool try_direct = true);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  std::int64_t bytes() const { return file_.size(); }
  /// Whether it is used past the page cache.
  bool direct() const { return file_.direct(); }

  /// The whole file, through the page cache. Reads see what has been moved there; call settle() after writes. Never
  /// while bytes move.
  std::byte* data() const { return data_; }
  /// Brings to the disk what was written to data(), and gives its memory back.
  void settle() const;

  enum class Way : unsigned char { read, write };
  /// Begins to move `bytes` from or to byte `at` of the file, after what was started before and touches the same bytes,
  /// if one of the two writes. The memory stays until wait() has returned.
  FileQueue::Moving start(Way way, std::int64_t at, std::byte* memory, std::int64_t bytes) const;
  /// Throws Error if the disk has failed.
  void wait(const FileQueue::Moving& moving) const;

  /// Bytes that have been moved in either direction, and seconds that wait() has waited, since the beginning.
  std::int64_t bytes_moved() const { return moved_.load(std::memory_order_relaxed); }
  double seconds_waited() const { return waited_.load(std::memory_order_relaxed); }

 private:
  struct UnderWay {
    Way way;
    std::int64_t begin, end;
    FileQueue::Moving moving;
  };

  DirectFile file_;
  mutable FileQueue queue_;
  std::byte* data_ = nullptr;
  mutable std::atomic<std::int64_t> moved_{0};
  mutable std::atomic<double> waited_{0};
  mutable std::mutex mutex_;
  mutable std::vector<UnderWay> under_way_;
};

}  // namespace hpcdl::io
