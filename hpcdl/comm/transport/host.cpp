#include "hpcdl/comm/transport/host.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "hpcdl/comm/bootstrap/socket.h"
#include "hpcdl/comm/transport/shared_file.h"

namespace hpcdl::comm {
namespace {

constexpr std::int64_t kPage = 4096, kHuge = 2 << 20;

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; older kernels refuse it
#endif

class MappedWindow : public Window {
 public:
  MappedWindow(std::byte* base, int ranks, std::int64_t bytes, std::int64_t stride)
      : base_(base), size_(ranks), bytes_(bytes), stride_(stride) {}
  ~MappedWindow() override { munmap(base_, static_cast<std::size_t>(size_ * stride_)); }
  int size() const override { return size_; }
  std::int64_t bytes() const override { return bytes_; }
  std::byte* block(int index) const override { return base_ + index * stride_; }

 private:
  std::byte* base_;
  int size_;
  std::int64_t bytes_, stride_;
};

/// Memory while it is offered to other ranks. Its name in /dev/shm is removed with it, whatever happens to those ranks.
struct Offered {
  int fd = -1;
  std::string name;
  void forget_name() {
    if (!name.empty()) shm_unlink(name.c_str());
    name.clear();
  }
  ~Offered() {
    if (fd >= 0) ::close(fd);
    forget_name();
  }
};

/// Short blocks, whose time is that of a few cache lines, have a page between them: processors prefetch the first line
/// of the next.
std::int64_t stride_of(std::int64_t bytes) {
  if (bytes >= kHuge) return (bytes + kHuge - 1) / kHuge * kHuge;
  return std::max(kPage, (bytes + kPage - 1) / kPage * kPage) + kPage;
}

/// Memory without a name, which others open through /proc; or, if they cannot, a name in /dev/shm. False: errno
/// says why.
bool create(Offered& memory, SharedFile& file, bool named, std::int64_t bytes) {
  if (named) {
    const auto name = fmt::format("hpcdl-{}-{:x}", getpid(), std::random_device{}());
    memory.fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (memory.fd >= 0) memory.name = name;
    file.name("/dev/shm/" + name);
  } else {
    memory.fd = memfd_create("hpcdl", MFD_CLOEXEC);
    if (memory.fd >= 0 && fchmod(memory.fd, 0600) != 0) return false;
    file.name(fmt::format("/proc/{}/fd/{}", getpid(), memory.fd));
  }
  if (memory.fd < 0 || !file.identify(memory.fd) || ftruncate(memory.fd, bytes) != 0) return false;
  // Writing to a full /dev/shm would kill the process: reserve the pages now.
  return !named || (errno = posix_fallocate(memory.fd, 0, bytes)) == 0;
}

/// A mapping that can have huge pages begins at a multiple of their size.
std::byte* map(int fd, std::int64_t bytes) {
  if (fd < 0) return nullptr;
  const std::int64_t room = bytes >= kHuge ? bytes + kHuge : bytes;
  void* const reserved =
      mmap(nullptr, static_cast<std::size_t>(room), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(reserved);
  const std::int64_t skipped =
      bytes >= kHuge ? -static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin)) & (kHuge - 1) : 0;
  void* const p =
      mmap(begin + skipped, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (p == MAP_FAILED) {
    munmap(reserved, static_cast<std::size_t>(room));
    return nullptr;
  }
  if (skipped > 0) munmap(begin, static_cast<std::size_t>(skipped));
  if (room - skipped > bytes) munmap(begin + skipped + bytes, static_cast<std::size_t>(room - skipped - bytes));
  return static_cast<std::byte*>(p);
}

/// Touches the pages in the rank that works on them, now and not in the first collective. Asks for huge pages whatever
/// the system's setting for shared memory is (its default is never): sums of 64 MiB take 14 % less time, and touching
/// the memory half as long. A huge page is made from existing pages.
void touch(std::byte* block, std::int64_t bytes) {
  const auto every = [&](std::int64_t step) {
    for (std::int64_t i = 0; i < bytes; i += step) *static_cast<volatile char*>(static_cast<void*>(block + i)) = 0;
  };
  if (bytes >= kHuge)
    every(kHuge), madvise(block, static_cast<std::size_t>(bytes), MADV_COLLAPSE);  // otherwise small pages stay
  every(kPage);
}

/// One attempt of all ranks together.
std::shared_ptr<Window> attempt(Peers& peers, std::int64_t bytes, bool named) {
  const std::int64_t stride = stride_of(bytes), all = stride * peers.size();
  struct Side {
    SharedFile file;
    std::uint64_t ok = 0;
  } offer;
  struct Answer {
    std::uint8_t ok;
  };
  Offered memory;
  const auto as_bytes = [](auto& x) { return std::span<std::byte>(reinterpret_cast<std::byte*>(&x), sizeof x); };
  const auto send = [&](int to, auto& x) {
    auto p = peers.send(to, as_bytes(x));
    peers.wait(p);
  };
  const auto receive = [&](int from, auto& x) {
    auto p = peers.receive(from, as_bytes(x));
    peers.wait(p);
  };
  std::byte* base = nullptr;
  Answer ok{1};
  if (peers.rank() == 0) {
    offer.ok = create(memory, offer.file, named, all);
    if (offer.ok) base = map(memory.fd, all);
    ok.ok = base != nullptr;
    for (int r = 1; r < peers.size(); ++r) send(r, offer);
    for (int r = 1; r < peers.size(); ++r) {
      Answer a{};
      receive(r, a);
      ok.ok = ok.ok && a.ok;
    }
    memory.forget_name();
    for (int r = 1; r < peers.size(); ++r) send(r, ok);
  } else {
    receive(0, offer);
    if (offer.ok) memory.fd = offer.file.open();
    base = map(memory.fd, all);
    Answer mine{base != nullptr};
    send(0, mine);
    receive(0, ok);
  }
  if (!base) return nullptr;
  auto window = std::make_shared<MappedWindow>(base, peers.size(), bytes, stride);
  if (!ok.ok) return nullptr;
  touch(window->block(peers.rank()), stride);
  return window;
}

}  // namespace

std::string host_key() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return host_name() + "/" + boot;
}

std::vector<int> number_hosts(std::span<const std::string> keys) {
  std::map<std::string_view, int> seen;
  std::vector<int> hosts;
  for (const auto& key : keys) hosts.push_back(seen.emplace(key, static_cast<int>(seen.size())).first->second);
  return hosts;
}

std::shared_ptr<Window> share_memory(Transport& transport, std::span<const int> ranks, std::uint32_t tag,
                                     std::int64_t bytes, Deadline deadline) {
  const auto me = std::find(ranks.begin(), ranks.end(), transport.rank());
  const Patience patience{.deadline = deadline - Clock::now()};
  Peers peers(transport, ranks, static_cast<int>(me - ranks.begin()), tag, patience);
  if (auto window = attempt(peers, bytes, false)) return window;
  return attempt(peers, bytes, true);
}

}  // namespace hpcdl::comm
