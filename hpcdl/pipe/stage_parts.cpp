#include "hpcdl/pipe/stage_parts.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/program/compact.h"

namespace hpcdl::pipe {
namespace {

/// The stages that touch a carried slot; -1: none.
struct Touched {
  int first_write = -1, last_use = -1;              // in forward; by any program
  int last_gradient = -1, first_gradient_use = -1;  // in backward: written; touched
};

StageParts::Part part_of(const Program& cut, const EditPart& edit) {
  auto part = compact(cut);
  return planned(edit ? edit(std::move(part)) : std::move(part));
}

class Parts {
 public:
  Parts(const Cut& cut, const WholePass& pass, const EditPart& edit)
      : cut_(cut), edit_(edit), slots_(cut.forward.front().slots), touched_(slots_.size()) {
    for (const auto& v : pass.inputs) inputs_.push_back(v.operand().slot);
    for (const auto& v : pass.outputs) outputs_.push_back(v.operand().slot);
    for (int stage = 0; stage < stages(); ++stage) {
      look(cut.forward, stage, false);
      look(cut.backward, stage, true);
      if (!cut.weights.empty()) look(cut.weights, stage, true);
    }
    if (cut.vocabulary) look(*cut.vocabulary);
  }

  std::vector<StageParts> run() {
    std::vector<StageParts> list;
    for (int stage = 0; stage < stages(); ++stage) list.push_back(part(stage));
    return list;
  }

 private:
  int stages() const { return static_cast<int>(cut_.forward.size()); }
  bool given(int slot) const {  // every rank has the inputs
    return std::find(inputs_.begin(), inputs_.end(), slot) != inputs_.end();
  }

  template <class F> static void each_use(const Program& p, F&& f) {
    for (const auto& r : p.records)
      for (const auto& o : std::span(p.operands).subspan(r.operands, r.operand_count))
        if (o.slot >= 0) f(o);
  }

  void look(const std::vector<Program>& programs, int stage, bool backward) {
    each_use(programs[static_cast<std::size_t>(stage)], [&](const Operand& o) {
      auto& t = touched_[static_cast<std::size_t>(o.slot)];
      const bool writes = o.access != Access::read;
      t.last_use = std::max(t.last_use, stage);
      if (!backward && writes && t.first_write < 0) t.first_write = stage;
      if (!backward) return;
      if (writes) t.last_gradient = std::max(t.last_gradient, stage);
      if (t.first_gradient_use < 0) t.first_gradient_use = stage;
    });
  }

  /// What the ranks exchange comes to the first and the last stage as if these had written it.
  void look(const VocabularyCut& v) {
    const auto at = [&](int slot) -> Touched& { return touched_[static_cast<std::size_t>(slot)]; };
    at(v.rows).first_write = 0, at(v.rows).last_use = std::max(at(v.rows).last_use, 0);
    if (v.gradient < 0) return;
    at(v.gradient).last_gradient = std::max(at(v.gradient).last_gradient, stages() - 1);
    at(v.rows_gradient).first_gradient_use = 0;
  }

  /// What forward has written by the end of `stage`, and later stages use.
  bool crosses(int slot, int stage) const {
    const auto& t = touched_[static_cast<std::size_t>(slot)];
    return stage >= 0 && !given(slot) && t.first_write >= 0 && t.first_write <= stage && t.last_use > stage;
  }
  /// What backward has written before it comes to `stage` from the one after it, and uses there or later.
  bool returns(int slot, int stage) const {
    const auto& t = touched_[static_cast<std::size_t>(slot)];
    return t.last_gradient > stage && t.first_gradient_use >= 0 && t.first_gradient_use <= stage;
  }

  StageParts part(int stage) const {
    const auto s = static_cast<std::size_t>(stage);
    StageParts p{.stage = stage};
    std::vector<bool> used(slots_.size());
    const auto mark = [&](const Operand& o) { used[static_cast<std::size_t>(o.slot)] = true; };
    if (cut_.vocabulary && stage == 0) {
      used[static_cast<std::size_t>(cut_.vocabulary->rows)] = true;
      if (const int slot = cut_.vocabulary->rows_gradient; slot >= 0) used[static_cast<std::size_t>(slot)] = true;
    }
    each_use(cut_.forward[s], mark);
    each_use(cut_.backward[s], mark);
    if (!cut_.weights.empty()) each_use(cut_.weights[s], mark);
    for (const auto& c : cut_.carried) {
      const FrameTensor tensor{c.name, slots_[static_cast<std::size_t>(c.slot)].spec};
      const bool before = crosses(c.slot, stage - 1), next = crosses(c.slot, stage);
      const bool back = stage > 0 && returns(c.slot, stage - 1), here = returns(c.slot, stage);
      if (before) p.from_before.push_back(tensor);
      if (next) p.to_next.push_back(tensor);
      if (back) p.gradients_to_before.push_back(tensor);
      if (here) p.gradients_from_next.push_back(tensor);
      if (!before && !next && !back && !here && !used[static_cast<std::size_t>(c.slot)]) continue;
      p.frame.push_back(tensor);
      for (std::size_t i = 0; i < inputs_.size(); ++i)
        if (inputs_[i] == c.slot && used[static_cast<std::size_t>(c.slot)]) p.inputs.push_back({i, c.name});
      for (std::size_t i = 0; i < outputs_.size(); ++i)
        if (outputs_[i] == c.slot && touched_[static_cast<std::size_t>(c.slot)].first_write == stage)
          p.outputs.push_back({i, c.name});
    }
    p.forward = part_of(cut_.forward[s], edit_);
    return p;
  }

  const Cut& cut_;
  const EditPart& edit_;
  const std::vector<Slot>& slots_;
  std::vector<Touched> touched_;       // by slot
  std::vector<int> inputs_, outputs_;  // their slots
};

void add_backward(std::vector<StageParts>& parts, const Cut& cut, Write write, const EditPart& edit) {
  const auto w = static_cast<std::size_t>(write);
  for (std::size_t s = 0; s < parts.size(); ++s) {
    parts[s].backward[w] = part_of(cut.backward[s], edit);
    if (!cut.weights.empty()) parts[s].weights[w] = part_of(cut.weights[s], edit);
  }
}

std::vector<std::string> names_of(const Cut& cut) {
  std::vector<std::string> names;
  for (const auto& c : cut.carried) names.push_back(c.name);
  return names;
}

std::int64_t bytes_of_tensors(const std::vector<FrameTensor>& list) {
  std::int64_t sum = 0;
  for (const auto& t : list) sum += arena_size({.spec = t.spec, .name = ""});
  return sum;
}

}  // namespace

std::int64_t frame_bytes(const Schedule& schedule, std::span<const StageParts> parts, int rank,
                         const VocabularyParts* vocabulary) {
  std::int64_t sum = vocabulary ? share_bytes(schedule, *vocabulary, rank) : 0;
  for (std::size_t stage = 0; stage < parts.size(); ++stage)
    if (schedule.forward_rank[stage] == rank)
      sum += schedule.slots[stage].frames * bytes_of_tensors(parts[stage].frame) +
             schedule.slots[stage].activations * bytes_of_tensors(parts[stage].from_before);
  return sum;
}

std::int64_t StageParts::arena_bytes() const {
  std::int64_t most = forward->plan.arena_bytes;
  for (const auto* list : {&backward, &weights})
    for (const auto& p : *list)
      if (p) most = std::max(most, p->plan.arena_bytes);
  return most;
}

std::vector<StageParts> training_parts(const WholePass& overwriting, const WholePass& adding,
                                       const Partition& partition, Backward backward, const EditPart& edit) {
  const auto first = cut(overwriting.program, partition, backward), more = cut(adding.program, partition, backward);
  // Forward is cut from one of the two passes, and runs with the backward of both.
  require(names_of(first) == names_of(more), "pipe",
          "expected that stages leave each other the same tensors in the first micro-batch and in later ones");
  auto parts = Parts(more, adding, edit).run();
  add_backward(parts, first, Write::overwrite, edit);
  add_backward(parts, more, Write::accumulate, edit);
  return parts;
}

std::vector<StageParts> inference_parts(const WholePass& pass, const Partition& partition, const EditPart& edit) {
  return Parts(cut(pass.program, partition), pass, edit).run();
}

}  // namespace hpcdl::pipe
