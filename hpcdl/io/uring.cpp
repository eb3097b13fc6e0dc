#include "hpcdl/io/uring.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

std::uint32_t load(std::uint32_t& shared) { return std::atomic_ref(shared).load(std::memory_order_acquire); }
void store(std::uint32_t& shared, std::uint32_t v) { std::atomic_ref(shared).store(v, std::memory_order_release); }

std::byte* map(int fd, std::size_t bytes, std::uint64_t what) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(what));
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

}  // namespace

std::optional<Uring> Uring::open(unsigned depth) {
  io_uring_params p{};
  Uring u;
  u.fd_ = Fd(static_cast<int>(::syscall(__NR_io_uring_setup, depth, &p)));
  // The second one came with IORING_OP_READ and IORING_OP_WRITE.
  constexpr auto kNeeds = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;
  if (!u.fd_ || (p.features & kNeeds) != kNeeds) return {};
  u.rings_.bytes = std::max(p.sq_off.array + p.sq_entries * sizeof(std::uint32_t),
                            p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe));
  u.entries_.bytes = p.sq_entries * sizeof(io_uring_sqe);
  u.rings_.at = map(u.fd_.get(), u.rings_.bytes, IORING_OFF_SQ_RING);
  u.entries_.at = map(u.fd_.get(), u.entries_.bytes, IORING_OFF_SQES);
  if (!u.rings_.at || !u.entries_.at) return {};
  u.sq_tail_ = p.sq_off.tail, u.sq_mask_ = u.word(p.sq_off.ring_mask), u.sq_array_ = p.sq_off.array;
  u.cq_head_ = p.cq_off.head, u.cq_tail_ = p.cq_off.tail, u.cq_mask_ = u.word(p.cq_off.ring_mask);
  u.cqes_ = p.cq_off.cqes;
  return u;
}

Uring::~Uring() {
  for (const auto& m : {rings_, entries_})
    if (m.at) ::munmap(m.at, m.bytes);
}

void Uring::swap(Uring& o) noexcept {
  std::swap(fd_, o.fd_);
  std::swap(rings_, o.rings_), std::swap(entries_, o.entries_);
  std::swap(sq_tail_, o.sq_tail_), std::swap(sq_mask_, o.sq_mask_), std::swap(sq_array_, o.sq_array_);
  std::swap(cq_head_, o.cq_head_), std::swap(cq_tail_, o.cq_tail_), std::swap(cq_mask_, o.cq_mask_);
  std::swap(cqes_, o.cqes_), std::swap(queued_, o.queued_);
}

void Uring::queue(const Request& r, std::uint64_t tag) {
  const auto tail = word(sq_tail_), at = tail & sq_mask_;  // no other thread writes the tail
  auto& e = reinterpret_cast<io_uring_sqe*>(entries_.at)[at];
  e = {};
  e.opcode = r.write ? IORING_OP_WRITE : IORING_OP_READ, e.fd = r.fd, e.user_data = tag;
  e.addr = reinterpret_cast<std::uintptr_t>(r.memory), e.len = r.bytes, e.off = static_cast<std::uint64_t>(r.offset);
  word(sq_array_ + at * std::uint32_t{sizeof(std::uint32_t)}) = at;
  store(word(sq_tail_), tail + 1);
  ++queued_;
}

void Uring::wait(const std::function<void(std::uint64_t, std::int64_t)>& f) {
  // EBUSY: the kernel lacks the memory for more requests until some have been taken from the queue of results.
  const auto n = ::syscall(__NR_io_uring_enter, fd_.get(), queued_, 1U, IORING_ENTER_GETEVENTS, nullptr, 0);
  if (n >= 0) queued_ -= static_cast<std::uint32_t>(n);
  else if (errno != EINTR && errno != EAGAIN && errno != EBUSY)
    fail("io", "io_uring: cannot wait for requests: {}", std::strerror(errno));
  auto head = word(cq_head_);
  for (const auto tail = load(word(cq_tail_)); head != tail; ++head) {
    const auto& e = reinterpret_cast<const io_uring_cqe*>(rings_.at + cqes_)[head & cq_mask_];
    const auto tag = e.user_data;
    const std::int64_t result = e.res;
    store(word(cq_head_), head + 1);
    f(tag, result);
  }
}

}  // namespace hpcdl::io
