#include "hpcdl/instance.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "hpcdl/program/axis.h"

namespace hpcdl {
namespace {

constexpr std::array<int, kLanes> kNone{-1, -1, -1, -1};

/// The last accesses of memory, by intervals of addresses that do not overlap.
class LastAccesses {
 public:
  /// Adds to `waits`, per lane, the last record that has to be done before `record` of `lane` may touch [begin, end),
  /// and notes that it does.
  void touch(std::uintptr_t begin, std::uintptr_t end, bool written, int record, std::array<int, kLanes>& waits,
             Lane lane, std::span<const Lane> lanes) {
    split(begin), split(end);
    auto at = begin;
    for (auto it = intervals_.lower_bound(begin); at < end; ++it) {
      if (it == intervals_.end() || it->first > at) {  // not touched so far
        const auto next = it == intervals_.end() ? end : std::min(end, it->first);
        it = intervals_.emplace_hint(it, at, Accesses{next, -1, kNone});
      }
      auto& [until, writer, readers] = it->second;
      at = until;
      if (writer >= 0 && writer != record) {
        auto& wait = waits[static_cast<std::size_t>(lanes[static_cast<std::size_t>(writer)])];
        wait = std::max(wait, writer);
      }
      if (written) {
        for (std::size_t l = 0; l < kLanes; ++l) waits[l] = std::max(waits[l], readers[l]);
        writer = record, readers = kNone;
      } else {
        readers[static_cast<std::size_t>(lane)] = record;
      }
    }
  }

 private:
  struct Accesses {
    std::uintptr_t end;
    int writer;                       // -1: none
    std::array<int, kLanes> readers;  // after it, the last of each lane
  };
  /// An interval that holds `at` becomes two.
  void split(std::uintptr_t at) {
    auto it = intervals_.upper_bound(at);
    if (it == intervals_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    auto upper = it->second;
    it->second.end = at;
    intervals_.emplace(at, upper);
  }
  std::map<std::uintptr_t, Accesses> intervals_;  // by begin
};

}  // namespace

LaneDependencies lane_dependencies(const Program& program, std::span<const Lane> lanes, std::span<const Grad> operands,
                                   bool streams) {
  const auto& records = program.records;
  LaneDependencies d;
  d.waits.resize(records.size());
  d.signals.assign(records.size(), 0);
  d.one_lane = std::all_of(lanes.begin(), lanes.end(), [](Lane l) { return l == Lane::compute; });
  if (d.one_lane) return d;
  LastAccesses accesses;
  std::array<std::array<int, kLanes>, kLanes> known;  // [a][b]: what lane a has waited for on lane b
  known.fill(kNone);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto& r = records[i];
    const auto mine = static_cast<std::size_t>(lanes[i]);
    auto waits = kNone;
    if (streams && !exchanges(program, r).empty())  // all of them write to a place where no memory lies
      accesses.touch(0, 1, true, static_cast<int>(i), waits, lanes[i], lanes);
    // What it writes comes first, so that its own reads hide none of earlier records.
    for (std::uint32_t n = 0; n < 2 * r.operand_count; ++n) {
      const bool written = n < r.operand_count;
      const auto k = r.operands + n % r.operand_count;
      const auto& t = operands[k];
      if (program.operands[k].slot < 0 || t.size() == 0 || written != (program.operands[k].access != Access::read))
        continue;
      std::int64_t last = 0;  // rows may lie apart: what is between them counts, too
      for (int dim = 0; dim < t.rank(); ++dim) last += (t[dim] - 1) * t.strides()[dim];
      const auto begin = reinterpret_cast<std::uintptr_t>(t.data());
      const auto end = begin + static_cast<std::uintptr_t>((last + 1) * dtype_bytes(t.dtype()));
      accesses.touch(begin, end, written, static_cast<int>(i), waits, lanes[i], lanes);
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if ((lane == mine && (streams || lane == static_cast<std::size_t>(Lane::compute))) ||
          waits[lane] <= known[mine][lane])
        continue;
      known[mine][lane] = waits[lane];
      d.waits[i].push_back(waits[lane]);
      d.signals[static_cast<std::size_t>(waits[lane])] = 1;
    }
    if (lanes[i] != Lane::compute) d.last[mine] = static_cast<int>(i);
  }
  for (int record : d.last)
    if (record >= 0) d.signals[static_cast<std::size_t>(record)] = 1;
  return d;
}

}  // namespace hpcdl
