#include "hpcdl/pipe/cut.h"

#include <fmt/format.h>

#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/pipe/layers.h"
#include "hpcdl/pipe/weight_pass.h"

namespace hpcdl::pipe {
namespace {

std::vector<int> stage_of_layer(const Partition& partition) {
  std::vector<int> stages;
  for (std::size_t stage = 0; stage < partition.size(); ++stage)
    stages.insert(stages.end(), static_cast<std::size_t>(partition[stage]), static_cast<int>(stage));
  return stages;
}

/// By record: forwards are 0, 1, ..., backwards follow from the last stage to the first, and then separate gradients of
/// weights.
std::vector<int> segments_of(const Program& pass, const Partition& partition, Backward backward) {
  const auto layers = layers_of(pass);
  const int count = std::accumulate(partition.begin(), partition.end(), 0);
  require(count == static_cast<int>(layers.names.size()), "pipe",
          "expected a partition of the {} layers of the pass, found one of {}", layers.names.size(), count);
  const auto stage_of = stage_of_layer(partition);
  const int stages = static_cast<int>(partition.size());
  const auto apart = backward == Backward::halves ? of_weights_apart(pass) : std::vector<bool>(pass.records.size());
  std::vector<int> segments;
  int last = 0;
  for (std::size_t i = 0; i < pass.records.size(); ++i) {
    const auto& r = pass.records[i];
    const int stage = stage_of[static_cast<std::size_t>(layers.of_record[i])];
    const int segment = r.phase == Phase::forward ? stage : 2 * stages - 1 - stage;
    require(last <= segment, "pipe",
            "record {} ({}, {}) belongs to an earlier segment than the one before: cut elsewhere", i, r.op.view(),
            pass.scopes[r.scope]);
    last = segment;
    segments.push_back(apart[i] ? 2 * stages + stage : segment);
  }
  return segments;
}

/// The slots that more than one segment touches, or a caller.
std::vector<int> carried_slots(const Program& pass, const std::vector<int>& segments) {
  constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> home(pass.slots.size(), kNone);  // the only segment that touches a slot
  for (std::size_t i = 0; i < pass.records.size(); ++i) {
    const auto& r = pass.records[i];
    for (const auto& o : std::span(pass.operands).subspan(r.operands, r.operand_count)) {
      if (o.slot < 0) continue;
      int& segment = home[static_cast<std::size_t>(o.slot)];
      segment = segment == kNone || segment == segments[i] ? segments[i] : kSeveral;
    }
  }
  std::vector<int> slots;
  for (std::size_t slot = 0; slot < home.size(); ++slot) {
    const auto kind = pass.slots[slot].kind;
    if (kind != SlotKind::state && (kind != SlotKind::temp || home[slot] == kSeveral))
      slots.push_back(static_cast<int>(slot));
  }
  return slots;
}

}  // namespace

Cut cut(const Program& pass, const Partition& partition, Backward backward) {
  Program tables = backward == Backward::halves ? weight_pass(pass) : pass;
  const auto segments = segments_of(tables, partition, backward);
  Cut result;
  for (const int slot : carried_slots(tables, segments)) {
    auto& s = tables.slots[static_cast<std::size_t>(slot)];
    s.kind = SlotKind::state;
    s.name = fmt::format("carried.{}.{}", slot, s.name);
    result.carried.push_back({slot, s.name});
  }
  const auto records = std::move(tables.records);
  tables.records.clear();
  const std::size_t stages = partition.size();
  result.forward.assign(stages, tables);
  result.backward.assign(stages, tables);
  if (backward == Backward::halves) result.weights.assign(stages, tables);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto segment = static_cast<std::size_t>(segments[i]);
    auto& program = segment < stages       ? result.forward[segment]
                    : segment < 2 * stages ? result.backward[2 * stages - 1 - segment]
                                           : result.weights[segment - 2 * stages];
    program.records.push_back(records[i]);
  }
  return result;
}

}  // namespace hpcdl::pipe
