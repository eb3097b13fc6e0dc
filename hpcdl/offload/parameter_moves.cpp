#include "hpcdl/offload/parameter_moves.h"

#include <map>
#include <utility>

#include "hpcdl/graph/move.h"
#include "hpcdl/parallel/unit.h"
#include "hpcdl/parallel/uses.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::offload {

ParameterMoves::ParameterMoves(const StateTable& table, int ahead)
    : values_("weights on disk", table.value_file()),
      frozen_("frozen weights on disk", table.frozen_file()),
      ahead_(ahead) {
  for (const bool frozen : {false, true})
    for (const auto& e : frozen ? table.frozen() : table.parameters()) {
      if (e.on_disk >= 0 || e.all_on_host) add(e, frozen);
      if (e.copy && e.copy->on_host) add(*e.copy, frozen);
    }
}

void ParameterMoves::add(const StateEntry& e, bool frozen) {
  states_.push_back({e.name, std::string(parallel::unit_name(e.param->name)), e.memory.bytes()});
  places_.push_back({e.on_disk, frozen});
}

void ParameterMoves::bring(Edit& edit, std::size_t before, const Operand& to, const Operand& from,
                           const Place& place) const {
  if (place.byte >= 0) return (place.frozen ? frozen_ : values_).read(edit, before, to, place.byte);
  Moves move;
  move.add(to, from);
  move.insert(edit, before, Lane::gather);
}

Recording ParameterMoves::moved(Recording pass) const {
  const auto held = parallel::held_states(pass.program, states_, ahead_);
  std::vector<std::string> names;
  for (const auto& s : states_) names.push_back(s.name);
  std::map<std::string, std::vector<parallel::Use>, std::less<>> uses;  // by owner
  parallel::for_each_use(pass.program, names,
                         [&](const parallel::Use& u) { uses[states_[u.tensor].owner].push_back(u); });
  Edit edit(std::move(pass.program), "bring weights");
  for (const auto& h : held) {
    std::map<std::size_t, int> slots;  // by tensor
    for (const auto& use : uses.at(h.owner)) {
      if (use.record < h.first || use.record > h.last) continue;
      if (!slots.contains(use.tensor)) {
        const auto& p = edit.program();
        const int there = p.operands[use.operand].slot;
        const auto spec = p.slots[static_cast<std::size_t>(there)].spec;
        const int slot = edit.add_slot({spec, SlotKind::temp, states_[use.tensor].name + ".here"});
        const auto whole = [&](int s) { return Operand{s, 0, spec, contiguous_strides(spec.shape)}; };
        bring(edit, h.gather, whole(slot), whole(there), places_[use.tensor]);
        slots.emplace(use.tensor, slot);
      }
      edit.redirect(use.operand, slots.at(use.tensor), 0);
    }
  }
  pass.program = edit.finish();
  for (const auto* place : {&values_, &frozen_}) place->bind(pass.bindings);
  return pass;
}

}  // namespace hpcdl::offload
