#include "hpcdl/pipe/layer_costs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>

#include "hpcdl/pipe/layers.h"
#include "hpcdl/pipe/weight_pass.h"

namespace hpcdl::pipe {
namespace {

/// Which layers touch a slot, and how.
struct Uses {
  std::set<int> written, read;    // in forward
  std::set<int> gradients, used;  // in backward: written; read, or added to
};

class LayerCosts {
 public:
  LayerCosts(const Program& pass, const Program& update) : pass_(pass), update_(update), uses_(pass.slots.size()) {}

  std::vector<PartCost> run(const std::function<double(const Record&)>& seconds) {
    const auto layers = layers_of(pass_);
    for (const auto& name : layers.names)
      layers_.push_back({.name = name, .forward = 0, .input_gradient = 0, .weight_gradient = 0});
    for (std::size_t i = 0; i < pass_.records.size(); ++i)
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
    std::map<std::string, std::int64_t> parts;  // what is kept for this parameter, each once
    for (const auto* program : {&pass_, &update_})
      for (const auto& other : program->slots)
        if (other.kind == SlotKind::state && (other.name == slot.name || other.name.starts_with(slot.name + ".")))
          parts[other.name] = other.spec.bytes();
    for (const int i : u.read) {
      layer(i).value_bytes += slot.spec.bytes();
      for (const auto& [name, bytes] : parts) layer(i).state_bytes += bytes;
    }
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

}  // namespace hpcdl::pipe
