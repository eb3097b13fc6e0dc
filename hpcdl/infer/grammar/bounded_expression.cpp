#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/grammar/expression.h"

namespace hpcdl::infer::grammar {
namespace {

/// An expression as a machine over characters.
class CharMachine {
 public:
  struct State {
    std::vector<std::pair<const CharSet*, std::size_t>> chars;
    std::vector<std::size_t> jumps;
  };
  explicit CharMachine(const std::string& what) : what_(what) {}

  std::size_t state() {
    constexpr std::size_t kMost = 20'000;
    require(states_.size() < kMost, "grammar",
            "{}: a pattern with so many repeats cannot be enforced together with minLength and maxLength", what_);
    states_.emplace_back();
    return states_.size() - 1;
  }
  const State& operator[](std::size_t s) const { return states_[s]; }

  void add(const Expression& e, std::size_t from, std::size_t to) {
    using Kind = Expression::Kind;
    if (e.kind == Kind::chars) {
      states_[from].chars.emplace_back(&e.set, to);
    } else if (e.kind == Kind::sequence) {
      for (const auto& part : e.parts) from = added(part, from);
      states_[from].jumps.push_back(to);
    } else if (e.kind == Kind::choice) {
      for (const auto& part : e.parts) {
        const std::size_t first = state();
        states_[from].jumps.push_back(first);
        add(part, first, to);
      }
    } else if (e.kind == Kind::repeat) {
      for (int i = 0; i < e.min; ++i) from = added(e.parts[0], from);
      if (e.max == kUnbounded) {
        const std::size_t loop = state();
        states_[from].jumps.push_back(loop);
        states_[added(e.parts[0], loop)].jumps.push_back(loop);
        from = loop;
      }
      for (int i = e.min; i < e.max; ++i) {
        states_[from].jumps.push_back(to);
        from = added(e.parts[0], from);
      }
      states_[from].jumps.push_back(to);
    } else {
      fail("grammar", "{}: expected an expression of characters only", what_);
    }
  }

 private:
  std::size_t added(const Expression& e, std::size_t from) {
    const std::size_t next = state();
    add(e, from, next);
    return next;
  }
  std::vector<State> states_;
  const std::string& what_;
};

}  // namespace

void build_within(Builder& builder, const Expression& e, StateId from, int min, int max, StateId to,
                  const std::string& what) {
  CharMachine machine(what);
  const std::size_t begin = machine.state(), end = machine.state();
  machine.add(e, begin, end);
  // A state for every state of the machine and number of characters so far; from the minimum on they count as one, if
  // there is no maximum.
  std::map<std::pair<std::size_t, int>, StateId> states;
  std::vector<std::pair<std::size_t, int>> todo;
  const auto state_of = [&](std::size_t s, int count) {
    const auto [it, fresh] = states.try_emplace({s, count}, 0);
    if (fresh) {
      it->second = builder.state();
      todo.emplace_back(s, count);
    }
    return it->second;
  };
  builder.jump(from, state_of(begin, 0));
  while (!todo.empty()) {
    const auto [s, count] = todo.back();
    todo.pop_back();
    const StateId here = states.at({s, count});
    if (s == end && count >= min) builder.jump(here, to);
    for (const std::size_t next : machine[s].jumps) builder.jump(here, state_of(next, count));
    if (max != kUnbounded && count == max) continue;
    const int more = max == kUnbounded ? std::min(count + 1, min) : count + 1;
    for (const auto& [set, next] : machine[s].chars) builder.chars(here, *set, state_of(next, more), Encoding::json);
  }
}

}  // namespace hpcdl::infer::grammar
