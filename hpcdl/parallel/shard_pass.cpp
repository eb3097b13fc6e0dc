#include "hpcdl/parallel/shard_pass.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/parallel/messages.h"
#include "hpcdl/parallel/uses.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::parallel {
namespace {

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
    // After gathers that begin at the same record, so that these run meanwhile.
    for (const auto& [at, y, messages, code] : received_)
      insert_decode(edit_, at, phase_at(at), y, messages, code, false);
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
      if (!slots.contains(u)) slots.emplace(u, gather(held, block, u));
      // Units of frozen tensors are bytes, whatever the type of these.
      const auto bytes = (plan.offset[use.tensor] - unit.offset) * dtype_bytes(block.shares.dtype());
      const auto type = edit_.program().operands[use.operand].spec.dtype;
      edit_.redirect(use.operand, slots.at(u), bytes / dtype_bytes(type));
    }
  }

  /// Returns the slot of the gathered unit.
  int gather(const Held& held, const ShardedBlock& block, std::size_t u) {
    const auto at = held.gather;
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
    const Operand all{slot, 0, whole, contiguous_strides(whole.shape)},
        own{mine, 0, share, contiguous_strides(share.shape)};
    if (block.wire == WireCode::none) {
      block.units->insert_gather(edit_, at, u, all, own);
      return slot;
    }
    const auto message = add_messages(edit_, name + ".message", share.size(), {1, block.wire}),
               messages = add_gathered(edit_, name + ".messages", share.size(), plan.ranks, block.wire);
    insert_encode(edit_, at, phase_at(at), message, own, block.wire);
    block.units->insert_gather(edit_, at, u, flat(messages), flat(message));
    received_.push_back({held.first, all, messages, block.wire});
    return slot;
  }

  Phase phase_at(std::size_t record) const { return edit_.program().records[record].phase; }

  Bindings& bindings_;
  std::span<const ShardedBlock> blocks_;
  std::vector<Held> held_;
  Edit edit_;
  struct Received {
    std::size_t at;  // the record that reads it first
    Operand values, messages;
    WireCode code;
  };
  std::vector<Received> received_;
};

}  // namespace

std::vector<Held> held_units(const Program& pass, std::span<const ShardedBlock> blocks, int ahead) {
  std::vector<OwnedState> states;
  for (const auto& block : blocks)
    for (const auto& unit : block.units->plan().units)
      for (int i = unit.begin; i < unit.end; ++i)
        if (const auto& name = block.names[static_cast<std::size_t>(i)]; !name.empty())
          states.push_back({name, unit.owner, i == unit.begin ? unit.elements * dtype_bytes(block.shares.dtype()) : 0});
  return held_states(pass, states, ahead);
}

Recording shard_pass(Recording pass, std::span<const ShardedBlock> blocks, int ahead) {
  pass.program = Sharding(pass, blocks, ahead).run();
  return pass;
}

}  // namespace hpcdl::parallel
