#include "hpcdl/pipe/weight_pass.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::pipe {
namespace {

Operand whole(int slot, const Spec& spec, Access access) {
  return {.slot = slot, .spec = spec, .strides = contiguous_strides(spec.shape), .access = access};
}

/// By slot: the records that write it, in order.
std::vector<std::vector<std::size_t>> writers_of(const Program& pass) {
  std::vector<std::vector<std::size_t>> writers(pass.slots.size());
  for (std::size_t i = 0; i < pass.records.size(); ++i)
    for (const auto& o : std::span(pass.operands).subspan(pass.records[i].operands, pass.records[i].operand_count))
      if (o.slot >= 0 && o.access != Access::read) writers[static_cast<std::size_t>(o.slot)].push_back(i);
  return writers;
}

}  // namespace

bool only_of_weights(const Program& pass, const Record& record) {
  const auto list = std::span(pass.operands).subspan(record.operands, record.operand_count);
  return record.phase == Phase::backward && std::all_of(list.begin(), list.end(), [&](const Operand& o) {
           if (o.slot < 0 || o.access == Access::read) return true;
           const auto& slot = pass.slots[static_cast<std::size_t>(o.slot)];
           return slot.kind == SlotKind::state || slot.role == SlotRole::scratch;
         });
}

std::vector<bool> of_weights_apart(const Program& pass) {
  const auto written = [&](const Record& r, auto&& f) {
    for (const auto& o : std::span(pass.operands).subspan(r.operands, r.operand_count))
      if (o.slot >= 0 && o.access != Access::read &&
          pass.slots[static_cast<std::size_t>(o.slot)].kind == SlotKind::state)
        f(o.slot);
  };
  std::set<int> with_others;
  for (const auto& r : pass.records)
    if (!only_of_weights(pass, r)) written(r, [&](int slot) { with_others.insert(slot); });
  std::vector<bool> apart;
  for (const auto& r : pass.records) {
    bool alone = only_of_weights(pass, r);
    if (alone) written(r, [&](int slot) { alone &= !with_others.contains(slot); });
    apart.push_back(alone);
  }
  return apart;
}

Program weight_pass(Program pass) {
  const auto apart = of_weights_apart(pass);
  const auto writers = writers_of(pass);
  Edit edit(std::move(pass), "weight gradients apart");
  const auto& p = edit.program();
  std::map<std::pair<int, std::ptrdiff_t>, int> copies;  // of a slot, after so many writes
  const std::size_t records = p.records.size();
  for (std::size_t i = 0; i < records; ++i) {
    const Record r = p.records[i];
    if (!apart[i]) continue;
    Record copying;
    copying.phase = r.phase;
    copying.scope = r.scope;
    for (std::uint32_t k = r.operands; k < r.operands + r.operand_count; ++k) {
      const int slot = p.operands[k].slot;
      if (slot < 0 || p.operands[k].access != Access::read) continue;
      const auto source = p.slots[static_cast<std::size_t>(slot)];
      const auto& writes = writers[static_cast<std::size_t>(slot)];
      const auto next = std::upper_bound(writes.begin(), writes.end(), i);
      if (source.kind == SlotKind::state || next == writes.end()) continue;
      const auto [copy, fresh] = copies.try_emplace({slot, next - writes.begin()}, -1);
      if (fresh) {
        copy->second = edit.add_slot({.spec = source.spec, .name = source.name + ".kept"});
        const Operand pair[] = {whole(copy->second, source.spec, Access::write),
                                whole(slot, source.spec, Access::read)};
        edit.insert_op<Cast>(i, copying, pair, {.to = source.spec.dtype});
      }
      edit.redirect(k, copy->second, 0);
    }
  }
  return edit.finish();
}

}  // namespace hpcdl::pipe
