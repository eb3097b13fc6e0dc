#pragma once
// What a rank is doing, readable even while it hangs.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "hpcdl/comm/ticks.h"
#include "hpcdl/dtype.h"
#include "hpcdl/group.h"

namespace hpcdl::comm {

enum class Phase : std::uint8_t { start, data, compute, checkpoint, collective, idle };

constexpr std::string_view phase_name(Phase p) {
  constexpr std::string_view names[] = {"start", "data", "compute", "checkpoint", "collective", "idle"};
  return names[static_cast<int>(p)];
}

/// One line of the ledger. Plain bytes, which may be sent to another rank.
struct LedgerEntry {
  Phase phase = Phase::start;
  Collective what = Collective::barrier;  // the remaining fields describe a collective
  Reduce op = Reduce::sum;
  Algorithm algorithm = Algorithm::automatic;
  DType dtype = DType::none;
  std::uint8_t group_size = 0;  // 255: or more
  std::int16_t peer = -1;       // broadcast: root; send: to; receive: from; by rank of the group
  std::uint32_t tag = 0;        // equal on ranks that make the same call
  std::uint32_t group_id = 0;   // equal on the ranks of one group, another in every group of a world
  std::int64_t number = 0;      // of the collectives of its group, from 1
  std::int64_t count = 0;       // elements, see Call
  std::int64_t since = 0;       // Clock::now(), nanoseconds
  char group[24] = {};
  char tensor[48] = {};  // the name of Label
};

/// Whether bytes that another process sent are a valid entry: names are terminated, and values of enums are known.
bool is_sound(const LedgerEntry& e);

/// What one rank is doing: its own phase, and the current or last collective. Written by that rank's
/// threads (each line by one at a time), read by any thread without stopping them.
class Ledger {
 public:
  void enter(Phase phase);  // of the rank's own work
  /// Its `since` in ticks().
  void collective(const LedgerEntry& entry) { collective_.write(entry); }
  void idle(std::int64_t since) { collective_.phase(Phase::idle, since); }  // the collective is done

  LedgerEntry work() const { return in_time(work_.read()); }
  LedgerEntry collective() const { return in_time(collective_.read()); }

 private:
  static_assert(sizeof(LedgerEntry) % 8 == 0);
  /// A sequence lock over atomic words: no torn reads, and no waiting.
  class Line {
   public:
    void write(const LedgerEntry& e);
    void phase(Phase p, std::int64_t since);
    LedgerEntry read() const;

   private:
    static constexpr std::size_t kWords = sizeof(LedgerEntry) / 8;
    std::atomic<std::uint64_t> version_ = 0;
    std::array<std::atomic<std::uint64_t>, kWords> words_ = {};
  };
  LedgerEntry in_time(LedgerEntry e) const;

  TickClock clock_;
  alignas(64) Line work_;
  alignas(64) Line collective_;
};

/// For its lifetime, collectives of this thread have this name (a tensor, a bucket) in the ledger, and differ from
/// those with another name: all ranks must give the same. `name` must outlive it.
class Label {
 public:
  explicit Label(std::string_view name);
  ~Label();
  Label(const Label&) = delete;
  Label& operator=(const Label&) = delete;
  static std::string_view current();
  /// A hash of the name, the same in all processes; 0 without one.
  static std::uint64_t current_hash();

 private:
  std::string_view before_;
  std::uint64_t hash_before_;
};

/// For its lifetime, the rank's own work is in this phase.
class InPhase {
 public:
  InPhase(Ledger& ledger, Phase phase) : ledger_(ledger), before_(ledger.work().phase) { ledger.enter(phase); }
  ~InPhase() { ledger_.enter(before_); }
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  Ledger& ledger_;
  Phase before_;
};

/// "all_reduce number 41 of group dp, sum of 1024 F32, grad.0"
std::string describe(const LedgerEntry& e);

}  // namespace hpcdl::comm
