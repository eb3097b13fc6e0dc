#pragma once
// Which records of a program use tensors that are known by name.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "hpcdl/program.h"

namespace hpcdl::parallel {

/// An operand of a record that is, or is a window of, tensor number `tensor`.
struct Use {
  std::size_t tensor, record;
  std::uint32_t operand;  // index into Program::operands
};

/// f(Use) for every use of the named tensors, in the order of records and operands. An empty name: no tensor.
template <class F> void for_each_use(const Program& p, std::span<const std::string> names, F&& f) {
  std::map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!names[i].empty()) index.emplace(names[i], i);
  for (std::size_t r = 0; r < p.records.size(); ++r)
    for (auto k = p.records[r].operands; k < p.records[r].operands + p.records[r].operand_count; ++k) {
      const int slot = p.operands[k].slot;
      if (slot < 0 || p.slots[static_cast<std::size_t>(slot)].kind != SlotKind::state) continue;
      const auto it = index.find(p.slots[static_cast<std::size_t>(slot)].name);
      if (it != index.end()) f(Use{it->second, r, k});
    }
}

/// Names of the state that records of the program touch.
inline std::set<std::string, std::less<>> touched_state(const Program& p) {
  std::set<std::string, std::less<>> names;
  for (const auto& r : p.records)
    for (auto k = r.operands; k < r.operands + r.operand_count; ++k)
      if (const int slot = p.operands[k].slot; slot >= 0)
        if (const auto& s = p.slots[static_cast<std::size_t>(slot)]; s.kind == SlotKind::state) names.insert(s.name);
  return names;
}

}  // namespace hpcdl::parallel
