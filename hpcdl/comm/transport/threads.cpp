#include "hpcdl/comm/transport/threads.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "hpcdl/buffer.h"

namespace hpcdl::comm {
namespace {

constexpr std::size_t kEager = 16 << 10;  // bytes: copied, so that the sender need not wait for the receiver

struct Message {
  int from;
  std::uint32_t tag;
  const std::byte* source = nullptr;  // of a send
  std::byte* target = nullptr;        // of a receive
  std::size_t bytes = 0;
  std::vector<std::byte> copy;  // eager
  std::atomic<bool> done = false;
  const char* error = nullptr;  // written before `done`
};

/// Sends to one rank and receives of it that have not found their other side.
struct Mailbox {
  std::mutex mutex;
  std::deque<std::shared_ptr<Message>> sent, wanted;
};

class HeapWindow : public Window {
 public:
  HeapWindow(int ranks, std::int64_t bytes)
      : size_(ranks), bytes_(bytes), stride_((bytes + 4095) / 4096 * 4096), memory_(size_ * stride_ + 4096) {}
  int size() const override { return size_; }
  std::int64_t bytes() const override { return bytes_; }
  std::byte* block(int index) const override {
    const auto base = (reinterpret_cast<std::uintptr_t>(memory_.data()) + 4095) / 4096 * 4096;
    return reinterpret_cast<std::byte*>(base) + index * stride_;
  }

 private:
  int size_;
  std::int64_t bytes_, stride_;
  Buffer memory_;
};

struct World {
  World(int n, std::vector<int> h)
      : hosts(std::move(h)), boxes(static_cast<std::size_t>(n)), left(static_cast<std::size_t>(n)) {}
  std::vector<int> hosts;
  std::vector<Mailbox> boxes;
  std::vector<std::atomic<bool>> left;  // by rank: it has left
  std::atomic<bool> failed = false;
  std::mutex mutex;  // of the rest
  std::string why;   // the first that failed
  struct Sharing {
    std::shared_ptr<Window> window;
    int joined = 0;
  };
  std::map<std::pair<std::uint32_t, int>, Sharing> sharing;  // by tag and first rank
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}
  ~ThreadTransport() override {
    withdraw();
    world_->left[static_cast<std::size_t>(rank_)].store(true);
  }

  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_->boxes.size()); }
  int host(int rank) const override { return world_->hosts[static_cast<std::size_t>(rank)]; }
  std::string host_name(int rank) const override { return fmt::format("host{}", host(rank)); }

  Pending start_send(int to, std::uint32_t tag, std::span<const std::byte> bytes) override {
    auto m = std::make_shared<Message>();
    m->from = rank_;
    m->tag = tag;
    m->source = bytes.data();
    m->bytes = bytes.size();
    Mailbox& box = world_->boxes[static_cast<std::size_t>(to)];
    std::lock_guard lock(box.mutex);
    if (auto other = take(box.wanted, rank_, tag)) {
      meet(*m, *other);
      return {};
    }
    if (bytes.size() <= kEager) {
      m->copy.assign(bytes.begin(), bytes.end());
      m->source = m->copy.data();
    }
    box.sent.push_back(m);
    return bytes.size() <= kEager ? Pending{} : keep(std::move(m), to);
  }

  Pending start_receive(int from, std::uint32_t tag, std::span<std::byte> bytes) override {
    auto m = std::make_shared<Message>();
    m->from = from;
    m->tag = tag;
    m->target = bytes.data();
    m->bytes = bytes.size();
    Mailbox& box = world_->boxes[static_cast<std::size_t>(rank_)];
    std::lock_guard lock(box.mutex);
    if (auto other = take(box.sent, from, tag)) meet(*other, *m);
    else box.wanted.push_back(m);
    return keep(std::move(m), from);
  }

  bool done(Pending& pending) override {
    if (pending.id == 0) return true;
    const auto it = active_.find(pending.id);
    // Reads first whether the peer has left: what it sent before still counts.
    const bool left = world_->left[static_cast<std::size_t>(pending.peer)].load() || world_->failed.load();
    if (!it->second->done.load(std::memory_order_acquire)) {
      if (left) gone(pending.peer);
      return false;
    }
    const char* error = it->second->error;
    active_.erase(it);
    pending.id = 0;
    if (error) throw PeerLost(error, pending.peer);
    return true;
  }

  void cancel(Pending& pending) override {
    const auto it = active_.find(pending.id);
    if (it == active_.end()) return;
    forget(*it->second, pending.peer);
    active_.erase(it);
    pending.id = 0;
  }

  void withdraw() override {
    for (const auto& entry : active_) {
      for (auto& box : world_->boxes) {
        std::lock_guard lock(box.mutex);
        const auto same = [&](const auto& x) { return x == entry.second; };
        std::erase_if(box.sent, same);
        std::erase_if(box.wanted, same);
      }
    }
    active_.clear();
  }

  void check(int rank) override {
    if (world_->failed.load() || (rank >= 0 && world_->left[static_cast<std::size_t>(rank)].load())) gone(rank);
  }

  void nap(std::chrono::microseconds at_most) override { std::this_thread::sleep_for(at_most); }

  void leave(std::string_view why) noexcept override {
    {
      std::lock_guard lock(world_->mutex);
      if (!world_->failed.load()) world_->why = fmt::format("rank {} left: {}", rank_, why);
    }
    world_->failed.store(true);
  }

  std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes,
                                Deadline deadline) override {
    const std::pair key(tag, ranks.front());
    std::unique_lock lock(world_->mutex);
    auto& entry = world_->sharing[key];
    if (!entry.window) entry.window = std::make_shared<HeapWindow>(static_cast<int>(ranks.size()), bytes);
    auto window = entry.window;
    if (++entry.joined == static_cast<int>(ranks.size())) {
      world_->sharing.erase(key);
      return window;
    }
    while (world_->sharing.contains(key)) {
      lock.unlock();
      check(-1);
      for (const int r : ranks) check_shares(r, key);
      if (Clock::now() > deadline) throw PeerLost("not all ranks came to share memory in time");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
    }
    return window;
  }

 private:
  Pending keep(std::shared_ptr<Message> m, int peer) {
    active_.emplace(++last_, std::move(m));
    return {last_, peer};
  }

  static std::shared_ptr<Message> take(std::deque<std::shared_ptr<Message>>& from, int rank, std::uint32_t tag) {
    const auto it =
        std::find_if(from.begin(), from.end(), [&](const auto& m) { return m->from == rank && m->tag == tag; });
    if (it == from.end()) return nullptr;
    auto m = std::move(*it);
    from.erase(it);
    return m;
  }

  static void meet(Message& sent, Message& wanted) {
    if (sent.bytes != wanted.bytes)
      sent.error = wanted.error = "a message has another size than expected: the ranks make different calls";
    else if (sent.bytes > 0) std::memcpy(wanted.target, sent.source, sent.bytes);
    sent.done.store(true, std::memory_order_release);
    wanted.done.store(true, std::memory_order_release);
  }

  /// A send waits in the box of the peer, a receive in that of this rank.
  void forget(Message& m, int peer) {
    Mailbox& box = world_->boxes[static_cast<std::size_t>(m.source ? peer : rank_)];
    std::lock_guard lock(box.mutex);
    const auto same = [&](const auto& x) { return x.get() == &m; };
    std::erase_if(box.sent, same);
    std::erase_if(box.wanted, same);
  }

  void check_shares(int rank, const std::pair<std::uint32_t, int>& key) {
    if (!world_->left[static_cast<std::size_t>(rank)].load()) return;
    std::lock_guard lock(world_->mutex);
    if (world_->sharing.contains(key)) throw PeerLost(fmt::format("rank {} has ended", rank), rank);
  }

  [[noreturn]] void gone(int rank) {
    std::lock_guard lock(world_->mutex);
    if (world_->failed.load()) throw PeerLost(world_->why, rank);
    throw PeerLost(fmt::format("rank {} has ended", rank), rank);
  }

  std::shared_ptr<World> world_;
  int rank_;
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Message>> active_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> thread_transports(int n, std::vector<int> hosts) {
  require(n > 0, "comm", "threads: expected at least one rank, got {}", n);
  hosts.resize(static_cast<std::size_t>(n));
  auto world = std::make_shared<World>(n, std::move(hosts));
  std::vector<std::unique_ptr<Transport>> all;
  for (int r = 0; r < n; ++r) all.push_back(std::make_unique<ThreadTransport>(world, r));
  return all;
}

}  // namespace hpcdl::comm
