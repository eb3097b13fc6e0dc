#include "tools/probe/parts.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hpcdl/buffer.h"
#include "hpcdl/core/clock.h"
#include "hpcdl/io/file.h"

namespace hpcdl::lab {

namespace {

constexpr std::int64_t kBlock = std::int64_t{4} << 20;

std::string file_system(const std::filesystem::path& folder) {
  struct statfs s{};
  if (statfs(folder.c_str(), &s) != 0) return "unknown";
  switch (static_cast<unsigned long>(s.f_type)) {
    case TMPFS_MAGIC: return "tmpfs";
    case EXT4_SUPER_MAGIC: return "ext4";
    case XFS_SUPER_MAGIC: return "xfs";
    case BTRFS_SUPER_MAGIC: return "btrfs";
    case OVERLAYFS_SUPER_MAGIC: return "overlayfs";
    case NFS_SUPER_MAGIC: return "nfs";
    case FUSE_SUPER_MAGIC: return "fuse";
    case 0x0BD00BD0: return "lustre";
    case 0x47504653: return "gpfs";
    case 0x2FC12FC1: return "zfs";
    case 0x01021997: return "9p";
    default: return fmt::format("type 0x{:x}", static_cast<unsigned long>(s.f_type));
  }
}

/// A file without a name, or with one that is removed at once, so that nothing remains in any case.
struct Scratch {
  io::Fd fd, direct;
  std::string path, error, direct_error;

  explicit Scratch(const std::filesystem::path& folder) {
    path = (folder / ".tmp-hpcdl-probe-XXXXXX").string();
    fd = io::Fd(::mkstemp(path.data()));
    if (!fd) {
      error = fmt::format("{}: cannot write a file in this folder: {}", folder.string(), std::strerror(errno));
      return;
    }
    direct = io::Fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!direct) direct_error = fmt::format("direct reads refused by this file system: {}", std::strerror(errno));
    ::unlink(path.c_str());
  }
};

/// Seconds, or negative with errno set.
double write_all(int fd, std::byte* block, std::int64_t bytes) {
  const auto start = Clock::now();
  for (std::int64_t at = 0; at < bytes;) {
    const auto n = ::pwrite(fd, block, static_cast<std::size_t>(std::min(kBlock, bytes - at)), at);
    if (n <= 0) return -1;
    at += n;
  }
  return ::fsync(fd) == 0 ? seconds_since(start) : -1;
}

double read_all(int fd, std::byte* block, std::int64_t bytes) {
  const auto start = Clock::now();
  for (std::int64_t at = 0; at < bytes;) {
    const auto n = ::pread(fd, block, kBlock, at);
    if (n <= 0) return -1;
    at += n;
  }
  return seconds_since(start);
}

}  // namespace

Disk probe_disk(const std::filesystem::path& folder, std::int64_t bytes, double seconds, const OnProgress& progress) {
  std::error_code ignored;
  Disk d{.folder = std::filesystem::absolute(folder, ignored).lexically_normal().string(),
         .file_system = file_system(folder),
         .bytes = static_cast<double>(bytes),
         .write = {},
         .read_cold = {},
         .read_warm = {},
         .read_direct = {},
         .note = "",
         .direct_note = ""};
  if (const auto free = free_disk_bytes(folder.string()); free >= 0 && free < 2 * bytes)
    return d.note = fmt::format("{} of {} bytes free: too little to measure", free, bytes), d;
  Scratch file(folder);
  if (!file.fd) return d.note = file.error, d;
  Buffer block(kBlock);
  auto* words = reinterpret_cast<std::uint32_t*>(block.data());  // random data, which file systems cannot compress
  for (std::uint32_t i = 0, x = 1; i < kBlock / 4; ++i) words[i] = x = x * 1664525 + 1013904223;

  std::vector<double> write, cold, warm, direct;
  const auto start = Clock::now();
  const auto rate = [&](std::vector<double>& into, double took) {
    if (took > 0) into.push_back(static_cast<double>(bytes) / took);
    return took > 0;
  };
  for (int round = 0; round < 2 || (seconds_since(start) < seconds && round < 9); ++round) {
    if (progress) progress("disk", std::min(1.0, seconds_since(start) / seconds));
    if (round < 2 && !rate(write, write_all(file.fd.get(), block.data(), bytes)))
      return d.note = fmt::format("writing failed: {}", std::strerror(errno)), d;
    posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    rate(cold, read_all(file.fd.get(), block.data(), bytes));
    rate(warm, read_all(file.fd.get(), block.data(), bytes));
    if (!file.direct) continue;
    posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    if (!rate(direct, read_all(file.direct.get(), block.data(), bytes)))
      file.direct_error = fmt::format("direct reads failed: {}", std::strerror(errno)), file.direct = {};
  }
  d.write = figure_of(std::move(write)), d.read_cold = figure_of(std::move(cold));
  d.read_warm = figure_of(std::move(warm)), d.read_direct = figure_of(std::move(direct));
  d.direct_note = file.direct_error;
  if (d.file_system == "tmpfs") d.note = "this folder is in memory, not on a disk";
  return d;
}

}  // namespace hpcdl::lab
