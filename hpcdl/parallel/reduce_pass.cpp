#include "hpcdl/parallel/reduce_pass.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::parallel {

namespace {

using Sums = GradientPlace::Sums;

/// A use of a gradient by a record.
struct Use {
  int record = -1, operand = -1;  // operand: among those of the record; -1: none
  auto operator<=>(const Use&) const = default;
};

/// f(number of the gradient, its use, index of the operand in the program), in the order of the records.
template <class F> void for_each_use(const Program& p, std::span<const ReadyGradient> gradients, F&& f) {
  std::map<std::string, std::size_t, std::less<>> index;
  for (std::size_t i = 0; i < gradients.size(); ++i) index.emplace(gradients[i].name + ".grad", i);
  for (int r = 0; r < std::ssize(p.records); ++r) {
    const auto& record = p.records[static_cast<std::size_t>(r)];
    for (std::uint32_t k = 0; k < record.operand_count; ++k) {
      const int slot = p.operands[record.operands + k].slot;
      if (slot < 0 || p.slots[static_cast<std::size_t>(slot)].kind != SlotKind::state) continue;
      const auto it = index.find(p.slots[static_cast<std::size_t>(slot)].name);
      if (it != index.end()) f(it->second, Use{r, static_cast<int>(k)}, record.operands + k);
    }
  }
}

/// The last use of every gradient, at the first of the operands of that record that use it.
std::vector<Use> last_uses(const Program& p, std::span<const ReadyGradient> gradients) {
  std::vector<Use> uses(gradients.size());
  for_each_use(p, gradients, [&](std::size_t i, const Use& use, std::uint32_t) {
    if (uses[i].record < use.record) uses[i] = use;
  });
  return uses;
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
    struct Found {
      std::size_t gradient;
      std::uint32_t operand;
    };
    std::vector<Found> found;
    for_each_use(edit_.program(), order_,
                 [&](std::size_t i, const Use&, std::uint32_t operand) { found.push_back({i, operand}); });
    for (const auto& [i, operand] : found)
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
  std::vector<Use> uses_;
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
