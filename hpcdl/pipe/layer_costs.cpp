#include "hpcdl/pipe/layer_costs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>

#include "hpcdl/pipe/cut.h"
#include "hpcdl/pipe/layers.h"
#include "hpcdl/pipe/weight_pass.h"

namespace hpcdl::pipe {
namespace {

/// Which layers touch a slot, and how.
struct Uses {
  std::set<int> written, read;    // in forward
  std::set<int> gradients, used;  // in backward: written; read, or added to
};

/// All that programs keep for a parameter.
std::int64_t bytes_kept(const Slot& value, const Program& pass, const Program& update) {
  std::map<std::string, std::int64_t> parts;  // each once
  for (const auto* program : {&pass, &update})
    for (const auto& other : program->slots)
      if (other.kind == SlotKind::state && (other.name == value.name || other.name.starts_with(value.name + ".")))
        parts[other.name] = other.spec.bytes();
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : parts) sum += bytes;
  return sum;
}

class LayerCosts {
 public:
  LayerCosts(const Program& pass, const Program& update) : pass_(pass), update_(update), uses_(pass.slots.size()) {}

  std::vector<PartCost> run(const std::function<double(const Record&)>& seconds) {
    const auto layers = layers_of(pass_);
    for (const auto& name : layers.names)
      layers_.push_back({.name = name, .forward = 0, .input_gradient = 0, .weight_gradient = 0});
    for (std::size_t i = 0; i < pass_.records.size(); ++i)
      if (!is_of_vocabulary(pass_.scopes[pass_.records[i].scope]))
        add(layers.of_record[i], pass_.records[i], seconds(pass_.records[i]));
    for (std::size_t slot = 0; slot < uses_.size(); ++slot) add_bytes(pass_.slots[slot], uses_[slot]);
    return std::move(layers_);
  }

 private:
  PartCost& layer(int i) { return layers_[static_cast<std::size_t>(i)]; }

  std::span<const Operand> operands(const Record& r) const {
    return std::span(pass_.operands).subspan(r.operands, r.operand_count);
  }

  void add(int i, const Record& r, double seconds) {
    auto& l = layer(i);
    if (r.phase == Phase::forward) l.forward += seconds, ++l.forward_records;
    else if (only_of_weights(pass_, r)) l.weight_gradient += seconds, ++l.weight_records;
    else l.input_gradient += seconds, ++l.input_records;
    for (const auto& o : operands(r)) {
      if (o.slot < 0) continue;
      auto& u = uses_[static_cast<std::size_t>(o.slot)];
      const bool forward = r.phase == Phase::forward;
      if (o.access != Access::read) (forward ? u.written : u.gradients).insert(i);
      if (o.access != Access::write) (forward ? u.read : u.used).insert(i);
    }
  }

  void add_bytes(const Slot& slot, const Uses& u) {
    if (slot.kind == SlotKind::state) return add_state(slot, u);
    if (slot.kind != SlotKind::temp || slot.role == SlotRole::scratch) return;
    const auto bytes = slot.spec.bytes();
    if (!u.written.empty()) {
      for (const int i : u.used) layer(i).frame_bytes += bytes;
      if (!u.read.empty())
        for (int i = *u.written.begin(); i < *u.read.rbegin(); ++i) layer(i).activation_bytes += bytes;
    }
    if (!u.gradients.empty() && !u.used.empty())
      for (int i = *u.gradients.rbegin(); i > *u.used.begin(); --i) layer(i).gradient_bytes += bytes;
  }

  void add_state(const Slot& slot, const Uses& u) {
    if (u.read.empty() || u.read.size() > 2) return;
    const auto kept = bytes_kept(slot, pass_, update_);
    for (const int i : u.read) layer(i).value_bytes += slot.spec.bytes(), layer(i).state_bytes += kept;
  }

  const Program& pass_;
  const Program& update_;
  std::vector<Uses> uses_;  // by slot of the pass
  std::vector<PartCost> layers_;
};

}  // namespace

std::vector<PartCost> layer_costs(const Program& pass, const Program& update,
                                  const std::function<double(const Record&)>& seconds) {
  return LayerCosts(pass, update).run(seconds);
}

std::optional<VocabularyCost> vocabulary_cost(const Program& pass, const Program& update,
                                              const std::function<double(const Record&)>& seconds) {
  const auto parts = cut(pass, {static_cast<int>(layers_of(pass).names.size())});
  if (!parts.vocabulary) return std::nullopt;
  const auto& v = *parts.vocabulary;
  VocabularyCost cost{.logits = 0, .loss = 0};
  std::set<int> read;  // values of parameters
  const auto add = [&](const Program& program, double& sum, std::int64_t& bytes, std::set<int>& known) {
    for (const auto& r : program.records) {
      sum += seconds(r);
      for (const auto& o : std::span(program.operands).subspan(r.operands, r.operand_count)) {
        if (o.slot < 0) continue;
        const auto& before = pass.slots[static_cast<std::size_t>(o.slot)];
        if (before.kind == SlotKind::state) {
          if (r.phase == Phase::forward && o.access == Access::read) read.insert(o.slot);
        } else if (program.slots[static_cast<std::size_t>(o.slot)].kind == SlotKind::state &&
                   known.insert(o.slot).second) {
          bytes += before.spec.bytes();
        }
      }
    }
  };
  std::set<int> rows, head, gradients;  // carried slots, each once
  add(v.lookup, cost.lookup, cost.rows_bytes, rows);
  add(v.logits, cost.logits, cost.head_bytes, head);
  add(v.loss, cost.loss, cost.head_bytes, head);
  add(v.lookup_gradient, cost.lookup_gradient, cost.gradient_bytes, gradients);
  for (const int slot : read) cost.state_bytes += bytes_kept(pass.slots[static_cast<std::size_t>(slot)], pass, update);
  const auto records = [](const Program& p) { return static_cast<std::int32_t>(p.records.size()); };
  cost.lookup_records = records(v.lookup), cost.logits_records = records(v.logits);
  cost.loss_records = records(v.loss), cost.gradient_records = records(v.lookup_gradient);
  cost.hidden_bytes = pass.slots[static_cast<std::size_t>(v.hidden)].spec.bytes();
  cost.statistics_bytes = pass.slots[static_cast<std::size_t>(v.mine)].spec.bytes();
  return cost;
}

}  // namespace hpcdl::pipe
