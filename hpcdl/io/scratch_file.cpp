#include "hpcdl/io/scratch_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/mapped_faults.h"

namespace hpcdl::io {
namespace {

std::string in_words(std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

DirectFile reserved(const fs::path& folder, std::int64_t bytes, bool try_direct) {
  require_scratch_folder(folder);
  auto file = DirectFile::unnamed(folder, try_direct);
  const auto room = free_bytes(folder);
  require(bytes <= room, "offload",
          "{}: expected {} for the state that lies there, found {} free: free {} more, or set offload.folder to a "
          "folder on another disk",
          folder.string(), in_words(bytes), in_words(room), in_words(bytes - room));
  file.reserve(bytes);
  return file;
}

}  // namespace

bool lies_in_memory(const fs::path& folder) {
  struct statfs s{};
  if (::statfs(folder.c_str(), &s) != 0) return false;
  return s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC || s.f_type == HUGETLBFS_MAGIC;
}

std::int64_t free_bytes(const fs::path& folder) {
  std::error_code error;
  const auto space = fs::space(folder, error);
  return error ? 0 : static_cast<std::int64_t>(space.available);
}

void require_scratch_folder(const fs::path& folder) {
  std::error_code error;
  require(fs::is_directory(folder, error), "offload",
          "{}: expected a folder on a disk, found {}: make it, or set offload.folder to another one", folder.string(),
          fs::exists(folder, error) ? "a file" : "nothing");
  require(
      !lies_in_memory(folder), "offload",
      "{}: expected a folder on a disk, found one in memory (tmpfs), which would save none: set offload.folder to a "
      "folder on a disk",
      folder.string());
}

ScratchFile::ScratchFile(const fs::path& folder, std::int64_t bytes, bool try_direct)
    : file_(reserved(folder, bytes, try_direct)),
      queue_(file_.direct() ? FileQueue::Way::uring : FileQueue::Way::threads) {
  void* p = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd(), 0);
  if (p == MAP_FAILED) fail_file(folder, "map a file (see ulimit -v) in", errno);
  data_ = static_cast<std::byte*>(p);
  list_mapping(data_, static_cast<std::size_t>(bytes), file_.fd(), file_.path());
}

ScratchFile::~ScratchFile() {
  forget_mapping(data_);
  ::munmap(data_, static_cast<std::size_t>(bytes()));
}

void ScratchFile::settle() const {
  const auto size = static_cast<std::size_t>(bytes());
  if (::msync(data_, size, MS_SYNC) != 0) fail_file(file_.path(), "write", errno);
  ::madvise(data_, size, MADV_DONTNEED);
  ::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED);
}

FileQueue::Moving ScratchFile::start(Way way, std::int64_t at, std::byte* memory, std::int64_t bytes) const {
  require(at >= 0 && at <= file_.size() - bytes && at % kAlign == 0 && bytes % kAlign == 0, "offload",
          "expected whole pages of a file of {} bytes, got {} at {}", file_.size(), bytes, at);
  moved_.fetch_add(bytes, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  std::erase_if(under_way_, [&](const UnderWay& u) { return queue_.done(u.moving); });
  for (const auto& u : under_way_) {
    const bool conflict = u.begin < at + bytes && at < u.end && (u.way == Way::write || way == Way::write);
    if (conflict) wait(u.moving);
  }
  const FilePiece piece{&file_, at, bytes, memory, way == Way::write};
  auto moving = queue_.start({&piece, 1});
  under_way_.push_back({way, at, at + bytes, moving});
  return moving;
}

void ScratchFile::wait(const FileQueue::Moving& moving) const {
  const auto start = Clock::now();
  queue_.wait(moving);
  waited_.fetch_add(seconds_since(start), std::memory_order_relaxed);
}

}  // namespace hpcdl::io
