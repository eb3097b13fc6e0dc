#include "hpcdl/offload/activation_moves.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/parallel/unit.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::offload {
namespace {

/// The first record that is not of forward; the number of records if there is none.
std::size_t end_of_forward(const Program& p) {
  const auto later = [](const Record& r) { return r.phase == Phase::recompute || r.phase == Phase::backward; };
  return static_cast<std::size_t>(std::ranges::find_if(p.records, later) - p.records.begin());
}

/// The records with which backward comes to another part of the model, in order; the first is where it begins.
std::vector<std::size_t> parts_of_backward(const Program& p, std::size_t begin) {
  std::vector<std::size_t> parts{begin};
  std::string_view last;
  for (auto i = begin; i < p.records.size(); ++i) {
    const auto part = parallel::unit_name(p.scopes[p.records[i].scope]);
    if (part.empty() || part == last) continue;
    if (!last.empty()) parts.push_back(i);
    last = part;
  }
  return parts;
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
  const auto parts = parts_of_backward(p, backward);
  std::vector<Moving> list;
  std::int64_t all = 0;
  for (auto m : waiting(p, backward, options.smallest)) {
    all += bytes_of(p, m);
    const auto part = std::ranges::upper_bound(parts, m.first) - parts.begin() - 1;
    if (part - options.ahead < 1) continue;  // backward begins with it: it would come back at once
    m.read = parts[static_cast<std::size_t>(part - options.ahead)];
    list.push_back(m);
  }
  std::ranges::stable_sort(list, std::greater(), [](const Moving& m) { return m.first - m.last; });
  for (auto& m : list) {
    const auto bytes = bytes_of(p, m);
    if (static_cast<double>(plan.moved.bytes + bytes) > options.share * static_cast<double>(all)) continue;
    m.byte = plan.file_bytes;
    plan.file_bytes += io::ScratchFile::padded(bytes);
    plan.moved.bytes += bytes, ++plan.moved.count;
    plan.moves.push_back(m);
  }
  plan.moved.kept = all - plan.moved.bytes;
  std::ranges::sort(plan.moves, {}, &Moving::read);  // what is needed first comes first
  return plan;
}

Recording ActivationMoves::moved(Recording pass) {
  const auto plan = plan_activations(pass.program, options_);
  if (plan.moved.bytes >= most_.bytes) most_ = plan.moved;
  if (plan.moves.empty()) return pass;
  if (!described_ && (files_.empty() || files_.back()->bytes() < plan.file_bytes))
    files_.push_back(std::make_shared<io::ScratchFile>(folder_, plan.file_bytes));
  const io::DiskPlace disk("activations on disk", described_ ? nullptr : files_.back());
  Edit edit(std::move(pass.program), "move activations to a disk and back");
  std::vector<int> back(edit.program().slots.size(), -1);  // by slot
  for (const auto& m : plan.moves) {
    const auto slot = edit.program().slots[static_cast<std::size_t>(m.slot)];
    const auto whole = [&](int s) { return Operand{s, 0, slot.spec, contiguous_strides(slot.spec.shape)}; };
    const int there = edit.add_slot({slot.spec, SlotKind::temp, slot.name + ".back"});
    disk.write(edit, m.last + 1, whole(m.slot), m.byte);
    disk.read(edit, m.read, whole(there), m.byte);
    back[static_cast<std::size_t>(m.slot)] = there;
  }
  const auto& p = edit.program();
  const auto backward = end_of_forward(p);
  for (auto i = backward; i < p.records.size(); ++i)
    for (auto k = p.records[i].operands; k < p.records[i].operands + p.records[i].operand_count; ++k)
      if (const int slot = p.operands[k].slot; slot >= 0 && slot < std::ssize(back))
        if (const int there = back[static_cast<std::size_t>(slot)]; there >= 0) edit.redirect(k, there, 0);
  pass.program = edit.finish();
  disk.bind(pass.bindings);
  return pass;
}

}  // namespace hpcdl::offload
