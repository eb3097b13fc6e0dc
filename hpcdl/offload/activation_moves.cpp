#include "hpcdl/offload/activation_moves.h"

#include <algorithm>
#include <string>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/offload/parts.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::offload {
namespace {

/// The first record that is not of forward; the number of records if there is none.
std::size_t end_of_forward(const Program& p) {
  const auto later = [](const Record& r) { return r.phase == Phase::recompute || r.phase == Phase::backward; };
  return static_cast<std::size_t>(std::ranges::find_if(p.records, later) - p.records.begin());
}

/// Every slot of the recorder that waits between forward and backward: its last record there, and its first one here.
std::vector<Moving> waiting(const Program& p, std::size_t backward, std::int64_t smallest) {
  std::vector<Moving> all(p.slots.size());
  std::vector<char> before(p.slots.size(), 0), after(p.slots.size(), 0);
  for (std::size_t i = 0; i < p.records.size(); ++i) {
    const auto& r = p.records[i];
    for (auto k = r.operands; k < r.operands + r.operand_count; ++k) {
      if (p.operands[k].slot < 0) continue;
      const auto s = static_cast<std::size_t>(p.operands[k].slot);
      if (i < backward) before[s] = 1, all[s].last = i;
      else if (!std::exchange(after[s], 1)) all[s].first = i;
    }
  }
  std::vector<Moving> list;
  const auto recorded = p.edits.empty() ? p.slots.size() : p.edits.front().before.slots;
  for (std::size_t s = 0; s < recorded; ++s) {
    const auto& slot = p.slots[s];
    if (!before[s] || !after[s] || slot.kind != SlotKind::temp || slot.role != SlotRole::data ||
        slot.spec.bytes() < smallest)
      continue;
    list.push_back(all[s]);
    list.back().slot = static_cast<int>(s);
  }
  return list;
}

std::int64_t bytes_of(const Program& p, const Moving& m) {
  return p.slots[static_cast<std::size_t>(m.slot)].spec.bytes();
}

}  // namespace

ActivationPlan plan_activations(const Program& p, const ActivationOptions& options) {
  ActivationPlan plan;
  const auto backward = end_of_forward(p);
  const Parts before(p, 0, backward), after(p, backward, p.records.size());
  auto list = waiting(p, backward, options.smallest);
  std::ranges::stable_sort(list, {}, &Moving::last);
  std::int64_t all = 0;
  for (auto m : list) {
    const auto bytes = bytes_of(p, m);
    all += bytes;
    const auto part = after.of(m.first);
    if (part < 1 + options.ahead) continue;  // backward begins with it: it would come back at once
    if (static_cast<double>(plan.moved.bytes + bytes) > options.share * static_cast<double>(all)) continue;
    m.read = after.begin(part - options.ahead);
    m.free = options.behind == 0 ? m.last + 1 : before.begin(before.of(m.last) + 1 + options.behind);
    m.byte = plan.stash_bytes;
    plan.stash_bytes += Stash::padded(bytes);
    plan.moved.bytes += bytes, ++plan.moved.count;
    plan.moves.push_back(m);
  }
  plan.moved.kept = all - plan.moved.bytes;
  return plan;
}

Recording ActivationMoves::moved(Recording pass) {
  auto plan = plan_activations(pass.program, options_);
  if (plan.moved.bytes >= most_.bytes) most_ = plan.moved;
  if (plan.moves.empty()) return pass;
  Edit edit(std::move(pass.program), "move activations away and back");
  stash_->begin(edit, plan.stash_bytes);
  const auto whole = [&](int s) {
    const auto& spec = edit.program().slots[static_cast<std::size_t>(s)].spec;
    return Operand{s, 0, spec, contiguous_strides(spec.shape)};
  };
  for (const auto& m : plan.moves) stash_->write(edit, m.free, whole(m.slot), m.byte);
  std::ranges::stable_sort(plan.moves, {}, &Moving::first);  // what is needed first comes first
  std::vector<int> back(edit.program().slots.size(), -1);    // by slot
  for (const auto& m : plan.moves) {
    const auto slot = edit.program().slots[static_cast<std::size_t>(m.slot)];
    const int there = edit.add_slot({slot.spec, SlotKind::temp, slot.name + ".back"});
    stash_->read(edit, m.read, whole(there), m.byte);
    back[static_cast<std::size_t>(m.slot)] = there;
  }
  const auto& p = edit.program();
  const auto backward = end_of_forward(p);
  for (auto i = backward; i < p.records.size(); ++i)
    for (auto k = p.records[i].operands; k < p.records[i].operands + p.records[i].operand_count; ++k)
      if (const int slot = p.operands[k].slot; slot >= 0 && slot < std::ssize(back))
        if (const int there = back[static_cast<std::size_t>(slot)]; there >= 0) edit.redirect(k, there, 0);
  pass.program = edit.finish();
  stash_->bind(pass.bindings);
  return pass;
}

}  // namespace hpcdl::offload
