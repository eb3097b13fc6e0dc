#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/pipe/stage_parts.h"
#include "hpcdl/program/compact.h"

namespace hpcdl::pipe {
namespace {

VocabularyParts::Part planned_share(const Program& cut, const EditPart& edit) {
  auto part = compact(cut);
  return planned(edit ? edit(std::move(part)) : std::move(part));
}

bool uses(const Program& p, int slot) {
  return std::ranges::any_of(p.records, [&](const Record& r) {
    const auto list = std::span(p.operands).subspan(r.operands, r.operand_count);
    return std::ranges::any_of(list, [&](const Operand& o) { return o.slot == slot; });
  });
}

/// Where the tensors of the parts lie, and which ones the caller fills and reads.
VocabularyParts layout_of(const Cut& cut, const WholePass& pass) {
  const auto& v = *cut.vocabulary;
  const auto& slots = v.lookup.slots;
  VocabularyParts p;
  const auto number_of = [](const std::vector<Var>& list, int slot) {
    return static_cast<std::size_t>(std::ranges::find_if(list, [&](const Var& x) { return x.operand().slot == slot; }) -
                                    list.begin());
  };
  for (const auto& c : cut.carried) {
    const FrameTensor tensor{c.name, slots[static_cast<std::size_t>(c.slot)].spec};
    for (const auto& [slot, named] : {std::pair(v.rows, &p.sum_of_rows),
                                      {v.hidden, &p.hidden},
                                      {v.mine, &p.mine},
                                      {v.all, &p.all},
                                      {v.gradient, &p.gradient},
                                      {v.rows_gradient, &p.rows_gradient},
                                      {v.summands, &p.summands},
                                      {v.all_summands, &p.all_summands}})
      if (slot == c.slot) *named = tensor;
    const auto input = number_of(pass.inputs, c.slot), output = number_of(pass.outputs, c.slot);
    const auto add = [&](VocabularyParts::Share& share, std::initializer_list<const Program*> programs) {
      if (std::ranges::none_of(programs, [&](const Program* program) { return uses(*program, c.slot); })) return;
      share.tensors.push_back(tensor);
      if (input < pass.inputs.size()) share.inputs.push_back({input, c.name});
    };
    add(p.rows, {&v.lookup});
    add(p.head, {&v.logits, &v.loss});
    add(p.gradients, {&v.lookup_gradient});
    if (output < pass.outputs.size() && uses(v.loss, c.slot)) p.outputs.push_back({output, c.name});
  }
  return p;
}

void add_gradients(VocabularyParts& p, const VocabularyCut& v, Write write, const EditPart& edit) {
  const auto w = static_cast<std::size_t>(write);
  p.loss[w] = planned_share(v.loss, edit);
  p.lookup_gradient[w] = planned_share(v.lookup_gradient, edit);
  if (v.all_summands >= 0) p.merge = planned_share(v.merge, edit);
}

}  // namespace

std::int64_t VocabularyParts::Share::bytes() const {
  std::int64_t sum = 0;
  for (const auto& t : tensors) sum += arena_size({.spec = t.spec, .name = ""});
  return sum;
}

std::int64_t VocabularyParts::arena_bytes() const {
  std::int64_t most = 0;
  for (const auto& p : {merge, lookup, logits, loss[0], loss[1], lookup_gradient[0], lookup_gradient[1]})
    if (p) most = std::max(most, p->plan.arena_bytes);
  return most;
}

std::int64_t share_bytes(const Schedule& schedule, const VocabularyParts& v, int rank) {
  const auto& slots = schedule.shares[static_cast<std::size_t>(rank)];
  const auto one = [](const FrameTensor& t) { return arena_size({.spec = t.spec, .name = ""}); };
  const std::int64_t others = schedule.ranks() - 1;
  std::int64_t bytes = slots.rows * v.rows.bytes() + slots.logits * v.head.bytes();
  if (rank == schedule.first_rank()) bytes += slots.rows * others * one(v.sum_of_rows);
  if (v.gradient.name.empty()) return bytes;
  bytes += slots.gradients * v.gradients.bytes();
  if (rank == schedule.last_rank()) bytes += slots.logits * (v.merge ? one(v.all_summands) : others * one(v.gradient));
  return bytes;
}

std::optional<VocabularyParts> vocabulary_training_parts(const WholePass& overwriting, const WholePass& adding,
                                                         const Partition& partition, Backward backward,
                                                         const EditPart& edit) {
  const auto first = cut(overwriting.program, partition, backward), more = cut(adding.program, partition, backward);
  if (!more.vocabulary) return std::nullopt;
  auto p = layout_of(more, adding);
  p.lookup = planned_share(more.vocabulary->lookup, edit);
  p.logits = planned_share(more.vocabulary->logits, edit);
  add_gradients(p, *first.vocabulary, Write::overwrite, edit);
  add_gradients(p, *more.vocabulary, Write::accumulate, edit);
  return p;
}

std::optional<VocabularyParts> vocabulary_inference_parts(const WholePass& pass, const Partition& partition,
                                                          const EditPart& edit) {
  const auto whole = cut(pass.program, partition);
  if (!whole.vocabulary) return std::nullopt;
  auto p = layout_of(whole, pass);
  p.lookup = planned_share(whole.vocabulary->lookup, edit);
  p.logits = planned_share(whole.vocabulary->logits, edit);
  p.loss = {planned_share(whole.vocabulary->loss, edit), nullptr};
  return p;
}

}  // namespace hpcdl::pipe
