#include "hpcdl/program/compact.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpcdl {

Program compact(const Program& program) {
  Program out;
  out.args = program.args, out.bounds = program.bounds, out.scopes = program.scopes;
  out.autocasts = program.autocasts, out.numerics = program.numerics;
  std::vector<int> place(program.slots.size(), -1);
  for (auto r : program.records) {
    const auto first = r.operands;
    r.operands = static_cast<std::uint32_t>(out.operands.size());
    r.added_by = 0;
    for (std::uint32_t k = 0; k < r.operand_count; ++k) {
      auto o = program.operands[first + k];
      if (o.slot >= 0) {
        int& slot = place[static_cast<std::size_t>(o.slot)];
        if (slot < 0) {
          slot = static_cast<int>(out.slots.size());
          out.slots.push_back(program.slots[static_cast<std::size_t>(o.slot)]);
        }
        o.slot = slot;
      }
      out.operands.push_back(o);
    }
    out.records.push_back(r);
  }
  return out;
}

}  // namespace hpcdl
