#include "python/src/memory.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "hpcdl/buffer.h"

namespace hpcdl::python {
namespace {

constexpr std::int64_t kSmall = 64 << 10;  // below this size, malloc is fast and does not return pages
constexpr std::int64_t kAlign = 64;

/// Eight sizes between powers of two: at most an eighth is wasted, and similar sizes share blocks.
std::int64_t size_class(std::int64_t bytes) {
  if (bytes <= kSmall) return (std::max<std::int64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  const std::int64_t step = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes - 1))) / 8;
  return (bytes + step - 1) / step * step;
}

struct Cache {
  std::mutex mutex;
  std::map<std::int64_t, std::vector<Buffer>> free;
  std::map<std::byte*, Buffer> used;
  std::int64_t kept = 0, limit = 0;

  Cache() {
    limit = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / 8;
    // A fork waits until no thread is inside, so that the child has consistent lists and a free lock.
    pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); }, [] { get().mutex.unlock(); });
  }
  /// Never destroyed: frameworks free tensors until the very end of the process.
  static Cache& get() {
    static Cache* cache = new Cache;
    return *cache;
  }

  std::byte* take(std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    auto found = free.find(bytes);
    Buffer b;
    if (found == free.end() || found->second.empty()) {
      b = Buffer(bytes);
    } else {
      b = std::move(found->second.back());
      found->second.pop_back();
      kept -= bytes;
    }
    std::byte* p = b.data();
    used.emplace(p, std::move(b));
    return p;
  }

  void give(std::byte* p, std::int64_t bytes) {
    Buffer b;  // freed after the lock, if there is no room
    const std::lock_guard lock(mutex);
    auto node = used.extract(p);
    b = std::move(node.mapped());
    if (kept + bytes > limit) return;
    kept += bytes;
    free[bytes].push_back(std::move(b));
  }

  void trim(std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    limit = bytes;
    while (kept > limit) {
      auto last = std::prev(free.end());
      if (last->second.empty()) {
        free.erase(last);
        continue;
      }
      last->second.pop_back();
      kept -= last->first;
    }
  }
};

}  // namespace

Block::Block(std::int64_t bytes) : bytes_(size_class(bytes)) {
  if (bytes_ > kSmall) data_ = Cache::get().take(bytes_);
  else data_ = static_cast<std::byte*>(std::aligned_alloc(kAlign, static_cast<std::size_t>(bytes_)));
  if (!data_) throw std::bad_alloc();
}

Block& Block::operator=(Block&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

Block::~Block() {
  if (!data_) return;
  if (bytes_ > kSmall) Cache::get().give(data_, bytes_);
  else std::free(data_);
}

std::int64_t cached_bytes() {
  auto& c = Cache::get();
  const std::lock_guard lock(c.mutex);
  return c.kept;
}
std::int64_t cache_limit() {
  auto& c = Cache::get();
  const std::lock_guard lock(c.mutex);
  return c.limit;
}
void set_cache_limit(std::int64_t bytes) { Cache::get().trim(bytes); }

}  // namespace hpcdl::python
