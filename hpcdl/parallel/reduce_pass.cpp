#include "hpcdl/parallel/reduce_pass.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/parallel/messages.h"
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
    if (place_.exchange) {
      std::vector<Steps> list;
      for (std::size_t u = 0; u < units_.plan().units.size(); ++u) list.push_back(reduction(u));
      insert(list);
      units_.insert_end(edit_), units_.bind(bindings_);
      if (place_.across) place_.across->bind(bindings_);
    }
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
    if (place_.exchange) set_zero(i, u, {0, order_[i].spec.size()});
  }
  /// Elements of tensor i, or after it.
  void set_zero(std::size_t i, std::size_t u, Interval range) {
    if (range.count() == 0) return;
    const Spec spec{{range.count()}, DType::f32};
    const Operand zero{temps_[u], units_.plan().offset[i] - unit(u).offset + range.begin, spec,
                       contiguous_strides(spec.shape), Access::write};
    Record record;
    record.phase = Phase::backward;
    edit_.insert_op<Fill>(end_of(u), record, std::span(&zero, 1), {});
  }
  /// The last block of a tensor in a message has nothing else: it would take part in the scale of the block.
  void clear_after_tensors(std::size_t u) {
    constexpr auto kBlock = WireLayout::kBlock;
    for (auto i = static_cast<std::size_t>(unit(u).begin); i < static_cast<std::size_t>(unit(u).end); ++i) {
      const auto n = order_[i].spec.size();
      set_zero(i, u, {n, (n + kBlock - 1) / kBlock * kBlock});
    }
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

  /// The exchange of a unit, in steps that each wait for the one before. The first comes after the last use of its
  /// gradients.
  struct Steps {
    std::size_t at;
    std::vector<std::function<void(std::size_t)>> insert;  // each before the record of that number
  };

  Steps reduction(std::size_t u) {
    Steps steps{end_of(u), {}};
    const Spec spec{{unit(u).elements}, DType::f32};
    const auto n = unit(u).elements / units_.plan().ranks;
    if (place_.sums == Sums::apart) {
      const auto begin = unit(u).offset / units_.plan().ranks;
      const auto share =
          whole_of(state_slot(unit(u).name + ".grad.share", place_.shares, {begin, begin + n}), {{n}, DType::f32});
      if (place_.wire != WireCode::none) clear_after_tensors(u);
      share_of_sum(steps, u, whole_of(temps_[u], spec), share, share);
      return steps;
    }
    const bool divided = place_.sums == Sums::in_place;
    const auto begin = unit(u).offset;
    const auto name = unit(u).name + (divided ? ".gradients" : "");
    const auto whole = whole_of(state_slot(name, place_.block, {begin, begin + unit(u).elements}), spec);
    if (divided) {
      auto mine = whole;
      mine.spec.shape = {n}, mine.offset = n * units_.group().rank();
      share_of_sum(steps, u, whole, {}, mine);
    } else {
      sum(steps, units_, u, whole);
    }
    return steps;
  }

  /// share: absent if it lies in its place in `whole`, where `mine` is.
  void share_of_sum(Steps& steps, std::size_t u, const Operand& whole, const Operand& share, const Operand& mine) {
    if (place_.wire == WireCode::none)
      steps.insert.push_back([=, this](std::size_t at) { units_.insert_share_of_sum(edit_, at, u, whole, share); });
    else swap(steps, units_, u, whole, mine);
    if (place_.across) sum(steps, *place_.across, u, mine);
  }

  /// x becomes its sum over all ranks of the units.
  void sum(Steps& steps, const UnitExchange& units, std::size_t u, const Operand& x) {
    if (place_.wire == WireCode::none) {
      steps.insert.push_back([=, this, &units](std::size_t at) { units.insert_sum(edit_, at, u, x); });
      return;
    }
    // Sums have more different values than what is added.
    const auto code = place_.wire == WireCode::int4 ? WireCode::int8 : place_.wire;
    const int ranks = units.group().size();
    const auto n = WireLayout{x.spec.size(), ranks, code}.part();
    const auto& name = units.plan().units[u].name;
    const Spec spec{{n}, DType::f32};
    const auto mine = whole_of(edit_.add_slot({spec, SlotKind::temp, name + ".sum"}), spec);
    swap(steps, units, u, x, mine);
    const auto message = add_messages(edit_, name + ".sum.message", n, {1, code}),
               all = add_gathered(edit_, name + ".sum.messages", n, ranks, code);
    steps.insert.back() = [=, this, &units, decode = steps.insert.back()](std::size_t at) {
      decode(at);
      insert_encode(edit_, at, Phase::backward, message, mine, code);
      units.insert_gather(edit_, at, u, flat(all), flat(message));
    };
    steps.insert.push_back(
        [=, this](std::size_t at) { insert_decode(edit_, at, Phase::backward, x, all, code, false); });
  }

  /// Ranks send each other parts of x as messages; mine becomes the sum of what this one receives.
  void swap(Steps& steps, const UnitExchange& units, std::size_t u, const Operand& x, const Operand& mine) {
    const auto code = place_.wire;
    const auto& name = units.plan().units[u].name;
    const WireArgs args{units.group().size(), code};
    const auto out = add_messages(edit_, name + ".messages", x.spec.size(), args),
               in = add_messages(edit_, name + ".received", x.spec.size(), args);
    steps.insert.push_back([=, this, &units](std::size_t at) {
      insert_encode(edit_, at, Phase::backward, out, x, code);
      units.insert_swap(edit_, at, u, in, out);
    });
    steps.insert.push_back(
        [=, this](std::size_t at) { insert_decode(edit_, at, Phase::backward, mine, in, code, true); });
  }

  /// A step that waits for the one before would stop the pass: it comes after the first step of the next unit, which
  /// runs meanwhile, or at the end of the pass.
  void insert(const std::vector<Steps>& list) {
    std::vector<std::size_t> places;
    std::size_t most = 0;
    for (const auto& s : list) places.push_back(s.at), most = std::max(most, s.insert.size());
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    for (std::size_t step = 0; step < most; ++step)
      for (const auto& s : list) {
        if (step >= s.insert.size()) continue;
        const auto first =
            static_cast<std::size_t>(std::lower_bound(places.begin(), places.end(), s.at) - places.begin());
        s.insert[step](first + step < places.size() ? places[first + step] : edit_.program().records.size());
      }
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
