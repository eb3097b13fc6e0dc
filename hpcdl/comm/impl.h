#pragma once

#include <map>
#include <vector>

#include "hpcdl/comm/engine.h"

namespace hpcdl::comm {

/// Counters: one thread at a time adds to each, and others read them. Times are in ticks().
struct LiveCounters {
  std::atomic<std::int64_t> calls = 0, bytes = 0, wire_bytes = 0, busy = 0, waited = 0;
  static void add(std::atomic<std::int64_t>& to, std::int64_t n) {
    to.store(to.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
};

class Group::Impl {
 public:
  Impl(std::shared_ptr<Engine> engine, std::string name, std::uint64_t id, std::vector<int> world_ranks, int rank);
  ~Impl();

  /// Checks, numbers and tags the call, then runs or queues it.
  Work submit(const Stream& s, Call& call, bool now);
  /// What a peer must send to make the shared memory of this group.
  void make_shared();
  std::shared_ptr<Window> share(std::int64_t bytes);
  DeviceGroup& connect(Device on);

  std::shared_ptr<Engine> engine;
  std::string name;
  std::uint64_t id;  // the same on all ranks of the group, different in all groups of a world
  std::vector<int> world_ranks;
  int rank;
  std::vector<int> local;  // ranks of the group on this host
  int local_index = 0;
  int hosts = 1, on_host = 0;  // hosts of the group; its ranks on the host that has the most
  std::unique_ptr<Shared> shared;
  std::mutex device_mutex;  // of the next
  std::shared_ptr<DeviceGroup> device;
  std::unique_ptr<Transport::Native> native;
  std::int64_t number = 0;                     // of the last collective
  std::map<int, std::int64_t> sent, received;  // messages, by rank
  bool closed = false;
  LiveCounters counters;
  Engine::Queue collectives, messages;
  Scratch scratch;  // of the collective that runs

  struct OwnBlock {
    const std::byte* begin;
    std::int64_t bytes;
    std::weak_ptr<Window> window;
    const Window* raw;
  };
  std::vector<OwnBlock> windows;  // from share()

 private:
  bool can_share() const;
  void on_device(const Stream& s, const Call& call);
  void one_rank(const Stream& s, const Call& call) const;
  LedgerEntry entry_of(const Call& call);
  InWindow place(const std::byte* data, std::int64_t bytes) const;
  std::uint32_t tag_of(const Call& call, std::int64_t n) const;
};

/// Hashes two values to 64 bits.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace hpcdl::comm
