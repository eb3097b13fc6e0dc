#include "hpcdl/parallel/gather_pass.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "hpcdl/parallel/uses.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::parallel {
namespace {

constexpr std::size_t kUnused = std::numeric_limits<std::size_t>::max();

/// The first record that touches each tensor of the block.
std::vector<std::size_t> first_uses(const Program& p, std::span<const std::string> names) {
  std::vector<std::size_t> first(names.size(), kUnused);
  for_each_use(p, names, [&](const Use& use) { first[use.tensor] = std::min(first[use.tensor], use.record); });
  return first;
}

struct Gathered {
  std::size_t first = kUnused;
  const GatheredBlock* block = nullptr;
  std::size_t unit = 0;
};

}  // namespace

Recording gather_pass(Recording pass, const UnitExchange& units, std::span<const GatheredBlock> blocks) {
  const auto& plan = units.plan();
  std::vector<Gathered> list;
  for (const auto& block : blocks) {
    const auto first = first_uses(pass.program, block.names);
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      Gathered g{kUnused, &block, u};
      bool named = false;
      for (auto i = static_cast<std::size_t>(plan.units[u].begin); i < static_cast<std::size_t>(plan.units[u].end); ++i)
        named |= !block.names[i].empty(), g.first = std::min(g.first, first[i]);
      if (named) list.push_back(g);
    }
  }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Edit edit(std::move(pass.program), "gather values of other ranks");
  for (const auto& [first, block, u] : list) {
    const auto& unit = plan.units[u];
    const Spec spec{{unit.elements}, block->memory.dtype()};
    const auto name = block->name + "." + unit.name;
    if (block->memory.data()) {
      auto* begin = block->memory.ptr<std::byte>() + (unit.offset - block->begin) * dtype_bytes(spec.dtype);
      pass.bindings.bind(name, Tensor(begin, spec, block->memory.device()));
    }
    const Operand whole{edit.add_slot({spec, SlotKind::state, name}), 0, spec, contiguous_strides(spec.shape)};
    units.insert_gather(edit, 0, u, whole, {});
  }
  units.bind(pass.bindings);
  pass.program = edit.finish();
  return pass;
}

}  // namespace hpcdl::parallel
