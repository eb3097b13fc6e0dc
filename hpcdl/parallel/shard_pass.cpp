#include "hpcdl/parallel/shard_pass.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/parallel/uses.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::parallel {
namespace {

/// Consecutive uses of one owner.
struct Visit {
  std::string_view owner;
  std::size_t first, last;  // records
};

std::vector<Visit> visits(const Program& p, std::span<const ShardedBlock> blocks) {
  std::vector<std::pair<std::size_t, std::string_view>> uses;
  for (const auto& block : blocks)
    for_each_use(p, block.names,
                 [&](const Use& u) { uses.emplace_back(u.record, block.units->plan().unit_of(u.tensor).owner); });
  std::sort(uses.begin(), uses.end());
  std::vector<Visit> list;
  for (const auto& [record, owner] : uses) {
    if (list.empty() || list.back().owner != owner) list.push_back({owner, record, record});
    list.back().last = record;
  }
  return list;
}

/// Whether each visit takes long enough to hide a gather: not where the owner is much smaller than most.
std::vector<char> hiding(const std::vector<Visit>& list, std::span<const ShardedBlock> blocks) {
  std::map<std::string_view, std::int64_t> bytes;
  for (const auto& block : blocks)
    for (const auto& unit : block.units->plan().units)
      if (!block.names[static_cast<std::size_t>(unit.begin)].empty())
        bytes[unit.owner] += unit.elements * dtype_bytes(block.shares.dtype());
  std::vector<std::int64_t> sizes;
  for (const auto& visit : list) sizes.push_back(bytes.at(visit.owner));
  auto sorted = sizes;
  std::sort(sorted.begin(), sorted.end());
  std::vector<char> hides;
  for (const auto n : sizes) hides.push_back(n >= sorted[sorted.size() / 2] / 8);
  return hides;
}

/// One pass under edit.
class Sharding {
 public:
  Sharding(Recording& pass, std::span<const ShardedBlock> blocks, int ahead)
      : bindings_(pass.bindings),
        blocks_(blocks),
        held_(held_units(pass.program, blocks, ahead)),
        edit_(std::move(pass.program), "gather shares of values") {}

  Program run() {
    std::vector<std::vector<Use>> uses(blocks_.size());
    for (std::size_t b = 0; b < blocks_.size(); ++b)
      for_each_use(edit_.program(), blocks_[b].names, [&](const Use& use) { uses[b].push_back(use); });
    for (const auto& held : held_)
      for (std::size_t b = 0; b < blocks_.size(); ++b) hold(held, blocks_[b], uses[b]);
    for (const auto& block : blocks_) block.units->bind(bindings_);
    return edit_.finish();
  }

 private:
  /// Gathers the units of the block that are used in this time, and lets their uses read them.
  void hold(const Held& held, const ShardedBlock& block, std::span<const Use> uses) {
    const auto& plan = block.units->plan();
    std::map<std::size_t, int> slots;  // by unit
    for (const auto& use : uses) {
      if (use.record < held.first || use.record > held.last) continue;
      const Unit& unit = plan.unit_of(use.tensor);
      if (unit.owner != held.owner) continue;
      const auto u = static_cast<std::size_t>(&unit - plan.units.data());
      if (!slots.contains(u)) slots.emplace(u, gather(held.gather, block, u));
      // Units of frozen tensors are bytes, whatever the type of these.
      const auto bytes = (plan.offset[use.tensor] - unit.offset) * dtype_bytes(block.shares.dtype());
      const auto type = edit_.program().operands[use.operand].spec.dtype;
      edit_.redirect(use.operand, slots.at(u), bytes / dtype_bytes(type));
    }
  }

  /// Returns the slot of the gathered unit.
  int gather(std::size_t at, const ShardedBlock& block, std::size_t u) {
    const auto& plan = block.units->plan();
    const Unit& unit = plan.units[u];
    const auto type = block.shares.dtype();
    const Spec whole{{unit.elements}, type}, share{{unit.elements / plan.ranks}, type};
    const auto name = block.name + "." + unit.name;
    if (block.shares) {
      auto* begin = block.shares.ptr<std::byte>() + unit.offset / plan.ranks * dtype_bytes(type);
      bindings_.bind(name + ".share", Tensor(begin, share, block.shares.device()));
    }
    const int slot = edit_.add_slot({whole, SlotKind::temp, name}),
              mine = edit_.add_slot({share, SlotKind::state, name + ".share"});
    block.units->insert_gather(edit_, at, u, {slot, 0, whole, contiguous_strides(whole.shape)},
                               {mine, 0, share, contiguous_strides(share.shape)});
    return slot;
  }

  Bindings& bindings_;
  std::span<const ShardedBlock> blocks_;
  std::vector<Held> held_;
  Edit edit_;
};

}  // namespace

std::vector<Held> held_units(const Program& pass, std::span<const ShardedBlock> blocks, int ahead) {
  const auto list = visits(pass, blocks);
  const auto hides = hiding(list, blocks);
  struct Last {
    std::size_t visit, held;
  };
  std::map<std::string_view, Last> last;  // by owner
  std::vector<Held> held;
  for (std::size_t v = 0; v < list.size(); ++v) {
    const auto& [owner, first, end] = list[v];
    std::size_t begin = v;  // the visit with which the gather begins
    for (int left = ahead; left > 0 && begin > 0;) left -= hides[--begin];
    const auto it = last.find(owner);
    if (it != last.end() && begin <= it->second.visit + 1) {
      held[it->second.held].last = end;
      it->second.visit = v;
      continue;
    }
    held.push_back({std::string(owner), list[begin].first, first, end});
    last[owner] = {v, held.size() - 1};
  }
  return held;
}

Recording shard_pass(Recording pass, std::span<const ShardedBlock> blocks, int ahead) {
  pass.program = Sharding(pass, blocks, ahead).run();
  return pass;
}

}  // namespace hpcdl::parallel
