#include "hpcdl/parallel/reduce_pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/parallel/uses.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::parallel {

namespace {

using Sums = GradientPlace::Sums;

/// The last use of a gradient: the record, and the first of its operands that use it.
struct LastUse {
  int record = -1, operand = -1;  // operand: among those of the record; -1: none
  auto operator<=>(const LastUse&) const = default;
};

std::vector<std::string> names_of(std::span<const ReadyGradient> gradients) {
  std::vector<std::string> names;
  for (const auto& g : gradients) names.push_back(g.name + ".grad");
  return names;
}

std::vector<LastUse> last_uses(const Program& p, std::span<const ReadyGradient> gradients) {
  std::vector<LastUse> last(gradients.size());
  for_each_use(p, names_of(gradients), [&](const Use& use) {
    const int record = static_cast<int>(use.record);
    if (last[use.tensor].record < record)
      last[use.tensor] = {record, static_cast<int>(use.operand - p.records[use.record].operands)};
  });
  return last;
}

Operand whole_of(int slot, const Spec& spec) { return {slot, 0, spec, contiguous_strides(spec.shape), Access::update}; }

/// One pass under edit.
class Reducing {
 public:
  Reducing(Recording& pass, const UnitExchange& units, std::span<const ReadyGradient> order, const GradientPlace& place)
      : bindings_(pass.bindings),
        units_(units),
        order_(order),
        place_(place),
        uses_(last_uses(pass.program, order)),
        edit_(std::move(pass.program), "sum gradients over ranks") {}

  Program run() {
    if (place_.sums == Sums::apart) redirect();
    for (std::size_t u = 0; place_.exchange && u < units_.plan().units.size(); ++u) reduce(u);
    if (place_.exchange) units_.insert_end(edit_), units_.bind(bindings_);
    return edit_.finish();
  }

 private:
  const Unit& unit(std::size_t u) const { return units_.plan().units[u]; }

  /// Moves the gradients into one temporary slot for each unit.
  void redirect() {
    for (const auto& u : units_.plan().units)
      temps_.push_back(edit_.add_slot({{{u.elements}, DType::f32}, SlotKind::temp, u.name + ".grad"}));
    std::vector<std::size_t> unit_of(order_.size());
    for (std::size_t u = 0; u < temps_.size(); ++u)
      std::fill(unit_of.begin() + unit(u).begin, unit_of.begin() + unit(u).end, u);
    std::vector<Use> uses;
    for_each_use(edit_.program(), names_of(order_), [&](const Use& use) { uses.push_back(use); });
    for (const auto& [i, record, operand] : uses)
      edit_.redirect(operand, temps_[unit_of[i]], units_.plan().offset[i] - unit(unit_of[i]).offset);
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (uses_[i].record < 0) set_zero(i, unit_of[i]);
  }

  /// A gradient that no record writes.
  void set_zero(std::size_t i, std::size_t u) {
    if (order_[i].spec.size() == 0 || !place_.exchange) return;
    const Spec spec{{order_[i].spec.size()}, DType::f32};
    const Operand zero{temps_[u], units_.plan().offset[i] - unit(u).offset, spec, contiguous_strides(spec.shape),
                       Access::write};
    Record record;
    record.phase = Phase::backward;
    edit_.insert_op<Fill>(end_of(u), record, std::span(&zero, 1), {});
  }

  /// The position after the last use of a gradient of a unit.
  std::size_t end_of(std::size_t u) const {
    int last = -1;
    for (int i = unit(u).begin; i < unit(u).end; ++i) last = std::max(last, uses_[static_cast<std::size_t>(i)].record);
    return last < 0 ? edit_.program().records.size() : static_cast<std::size_t>(last) + 1;
  }

  int state_slot(const std::string& name, const Tensor& block, Interval range) {
    const Spec spec{{range.count()}, DType::f32};
    if (block && block.data()) bindings_.bind(name, Tensor(block.ptr<float>() + range.begin, spec, block.device()));
    return edit_.add_slot({spec, SlotKind::state, name});
  }

  void reduce(std::size_t u) {
    const auto at = end_of(u);
    const Spec spec{{unit(u).elements}, DType::f32};
    if (place_.sums == Sums::apart) {
      const auto n = unit(u).elements / units_.plan().ranks, begin = unit(u).offset / units_.plan().ranks;
      const int share = state_slot(unit(u).name + ".grad.share", place_.shares, {begin, begin + n});
      return units_.insert_share_of_sum(edit_, at, u, whole_of(temps_[u], spec), whole_of(share, {{n}, DType::f32}));
    }
    const bool divided = place_.sums == Sums::in_place;
    const auto begin = unit(u).offset;
    const auto name = unit(u).name + (divided ? ".gradients" : "");
    const auto whole = whole_of(state_slot(name, place_.block, {begin, begin + unit(u).elements}), spec);
    if (divided) units_.insert_share_of_sum(edit_, at, u, whole, {});
    else units_.insert_sum(edit_, at, u, whole);
  }

  Bindings& bindings_;
  const UnitExchange& units_;
  std::span<const ReadyGradient> order_;
  const GradientPlace& place_;
  std::vector<LastUse> uses_;
  Edit edit_;
  std::vector<int> temps_;  // slots, by unit
};

}  // namespace

std::vector<ReadyGradient> in_order_of_completion(const Program& program, std::vector<ReadyGradient> gradients) {
  const auto uses = last_uses(program, gradients);
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const bool used[] = {uses[a].record >= 0, uses[b].record >= 0};
    return used[0] && used[1] ? uses[a] < uses[b] : used[0] && !used[1];
  });
  std::vector<ReadyGradient> sorted;
  for (const auto i : order) sorted.push_back(std::move(gradients[i]));
  return sorted;
}

Recording reduce_pass(Recording pass, const UnitExchange& units, std::span<const ReadyGradient> order,
                      const GradientPlace& place) {
  pass.program = Reducing(pass, units, order, place).run();
  return pass;
}

}  // namespace hpcdl::parallel
