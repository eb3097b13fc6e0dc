#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/io/direct_file.h"
#include "hpcdl/io/file_queue.h"

namespace hpcdl::io {

/// Parts of files that are read together into one block of memory: for direct reads, the aligned ranges around them,
/// one after the other. So every byte keeps its position within a page, and a tensor the alignment that it has where
/// its file is mapped.
class FileBlock {
 public:
  /// Adds bytes of file number `file`.
  void add(std::size_t file, std::int64_t offset, std::int64_t bytes);
  /// To be called after the last add(): joins ranges that touch.
  void close();

  /// The size of the memory, a multiple of DirectFile::kAlign.
  std::int64_t bytes() const { return bytes_; }
  /// Where in the memory this byte is, which has been added.
  std::int64_t position(std::size_t file, std::int64_t offset) const;
  /// The reads that fill the memory at `to`, which is aligned.
  std::vector<FilePiece> pieces(std::span<const DirectFile> files, std::byte* to) const;

 private:
  struct Range {
    std::size_t file;
    std::int64_t begin, end;
    std::int64_t at;  // in the memory
  };
  std::vector<Range> ranges_;
  std::int64_t bytes_ = 0;
};

}  // namespace hpcdl::io
