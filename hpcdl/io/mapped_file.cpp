#include "hpcdl/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/mapped_faults.h"

namespace hpcdl::io {
namespace {

const std::int64_t kPage = ::sysconf(_SC_PAGESIZE);
constexpr std::int64_t kChunk = std::int64_t{8} << 20;

std::int64_t clamp_end(std::int64_t offset, std::int64_t bytes, std::int64_t size) {
  return bytes < 0 || bytes > size - offset ? size : offset + bytes;
}

// Measured on a cold 512 MB file, GB/s, medians of 7: populate 3.6, plain faults 3.0, pread of 1 MB 3.0, readahead
// hints followed by pread 1.5, the same from two or four threads 1.8 to 2.5.
bool load_chunk(std::byte* data, int fd, std::int64_t at, std::int64_t bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ of Linux 5.14, which older C libraries do not define
  if (::madvise(data + at, static_cast<std::size_t>(bytes), kPopulateRead) == 0) return true;
  std::vector<char> scratch(1 << 20);
  for (const std::int64_t end = at + bytes; at < end;) {
    const auto n = ::pread(fd, scratch.data(), std::min(scratch.size(), static_cast<std::size_t>(end - at)), at);
    if (n <= 0) return false;
    at += n;
  }
  return true;
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path), fd_(open_for_reading(path)) {
  size_ = file_size(fd_, path);
  if (size_ == 0) return;
  void* p = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_PRIVATE, fd_.get(), 0);
  if (p == MAP_FAILED) {
    const int error = errno;
    size_ = 0;
    fail_file(path, "map into memory (see ulimit -v)", error);
  }
  data_ = static_cast<std::byte*>(p);
  list_mapping(data_, static_cast<std::size_t>(size_), fd_.get(), path);
}

MappedFile::~MappedFile() {
  if (!data_) return;
  forget_mapping(data_);
  ::munmap(data_, static_cast<std::size_t>(size_));
}

void MappedFile::swap(MappedFile& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
}

Prefetch MappedFile::prefetch(std::int64_t offset, std::int64_t bytes) const {
  Prefetch out;
  offset = std::clamp<std::int64_t>(offset, 0, size_);
  const std::int64_t end = clamp_end(offset, bytes, size_);
  // The thread must not refer to *this, because a MappedFile may move. The mapping and the descriptor stay valid.
  if (offset < end)
    out.thread_ = std::jthread([data = data_, fd = fd_.get(), offset, end](std::stop_token stop) {
      for (std::int64_t at = offset / kPage * kPage; at < end && !stop.stop_requested(); at += kChunk)
        if (!load_chunk(data, fd, at, std::min(kChunk, end - at))) return;
    });
  return out;
}

void MappedFile::drop(std::int64_t offset, std::int64_t bytes) const {
  offset = std::clamp<std::int64_t>(offset, 0, size_);
  const std::int64_t end = clamp_end(offset, bytes, size_);
  const std::int64_t first = (offset + kPage - 1) / kPage * kPage;
  const std::int64_t last = end == size_ ? size_ : end / kPage * kPage;
  if (first < last) ::madvise(data_ + first, static_cast<std::size_t>(last - first), MADV_DONTNEED);
}

void MappedFile::evict() const {
  drop();
  ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

std::int64_t MappedFile::resident_bytes() const {
  if (size_ == 0) return 0;
  std::vector<unsigned char> map(static_cast<std::size_t>((size_ + kPage - 1) / kPage));
  if (::mincore(data_, static_cast<std::size_t>(size_), map.data()) != 0)
    fail_file(path_, "ask for resident pages of", errno);
  return kPage * std::count_if(map.begin(), map.end(), [](unsigned char m) { return (m & 1) != 0; });
}

}  // namespace hpcdl::io
