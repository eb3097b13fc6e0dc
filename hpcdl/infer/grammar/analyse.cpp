#include <algorithm>
#include <bitset>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/grammar/rules.h"

namespace hpcdl::infer::grammar {
namespace {

bool is_state_only_returning(const Rules& r, StateId s) {
  // Chains of jumps are short; a longer one is treated as if something else could follow, which costs only depth.
  for (int step = 0; step < 8; ++step) {
    if (r.is_end[s]) return r.jumps[s].empty() && r.bytes[s].empty() && r.calls[s].empty();
    if (!r.bytes[s].empty() || !r.calls[s].empty() || r.jumps[s].size() != 1) return false;
    if (r.jumps[s][0].kind != JumpKind::plain) return false;
    s = r.jumps[s][0].to;
  }
  return false;
}

/// What state `s` needs, from what its successors need now.
std::uint16_t need_of(const Rules& r, StateId s) {
  if (r.is_end[s]) return 0;
  std::uint16_t best = kNever;
  const auto offer = [&](std::uint16_t need) { best = std::min(best, need); };
  for (const auto& e : r.bytes[s]) offer(r.need[e.to]);
  for (const auto& e : r.calls[s]) {
    const auto inner = r.need[r.rules[e.rule].start];
    const bool never = inner == kNever || r.need[e.to] == kNever;
    if (!never) offer(r.only_returns[e.to] ? inner : std::max<std::uint16_t>(r.need[e.to], inner + 1));
  }
  std::uint16_t round = kNever;
  for (const auto& e : r.jumps[s]) switch (e.kind) {
      case JumpKind::plain:
      case JumpKind::enter: offer(r.need[e.to]); break;
      case JumpKind::iterate: round = r.need[e.to]; break;
      // The state was reached from the region's begin, so that can be completed at this depth: only the way out counts.
      case JumpKind::again: offer(r.need[r.regions[e.region].after]); break;
      case JumpKind::leave: break;
    }
  for (const auto& e : r.jumps[s])
    if (e.kind == JumpKind::leave) {
      const auto out = r.need[e.to];
      offer(r.regions[e.region].min > 0 ? std::max(out, round) : out);
    }
  return best;
}

void find_needs(Rules& r) {
  const auto n = static_cast<StateId>(r.states());
  std::vector<std::vector<StateId>> users(n);  // states to look at again when one improves
  std::vector<std::vector<StateId>> callers(r.rules.size());
  for (StateId s = 0; s < n; ++s) {
    for (const auto& e : r.bytes[s]) users[e.to].push_back(s);
    for (const auto& e : r.jumps[s]) {
      users[e.to].push_back(s);
      if (e.kind == JumpKind::again) users[r.regions[e.region].after].push_back(s);
    }
    for (const auto& e : r.calls[s]) {
      users[e.to].push_back(s);
      users[r.rules[e.rule].start].push_back(s);
    }
  }
  std::fill(r.need.begin(), r.need.end(), kNever);
  // Ordered by what they need, as in Dijkstra's algorithm, a state seldom improves twice.
  std::vector<std::vector<StateId>> by_need(kMaxDepth + 2);
  const auto update = [&](StateId s) {
    const auto now = need_of(r, s);
    if (now >= r.need[s] || now > kMaxDepth) return;
    r.need[s] = now;
    by_need[now].push_back(s);
  };
  for (StateId s = 0; s < n; ++s)
    if (r.is_end[s]) update(s);
  for (std::size_t level = 0; level < by_need.size(); ++level)
    while (!by_need[level].empty()) {
      const StateId s = by_need[level].back();
      by_need[level].pop_back();
      for (const StateId user : users[s]) update(user);
    }
}

/// Whether going from `s` along this jump can need no bytes; `leave` of a region that must have rounds needs some.
bool is_free(const Rules& r, const JumpEdge& e) { return e.kind != JumpKind::leave || r.regions[e.region].min == 0; }

class LeftCalls {
 public:
  explicit LeftCalls(const Rules& rules) : r_(rules), nullable_(rules.rules.size()), visited_(rules.states()) {
    const auto n = static_cast<RuleId>(nullable_.size());
    std::vector<std::vector<RuleId>> waiting(n);  // rules to look at again when this one can be empty
    std::vector<RuleId> todo(n);
    for (RuleId rule = 0; rule < n; ++rule) todo[rule] = n - 1 - rule;
    while (!todo.empty()) {
      const RuleId rule = todo.back();
      todo.pop_back();
      std::vector<RuleId> called;
      if (nullable_[rule]) continue;
      nullable_[rule] = reach(rule, called);
      if (nullable_[rule]) todo.insert(todo.end(), waiting[rule].begin(), waiting[rule].end());
      for (const RuleId other : called)
        if (!nullable_[rule] && !nullable_[other]) waiting[other].push_back(rule);
    }
  }
  /// A rule that can begin with itself; -1 if there is none.
  std::int64_t find_loop() {
    const auto n = static_cast<RuleId>(nullable_.size());
    std::vector<std::vector<RuleId>> first(n);
    for (RuleId rule = 0; rule < n; ++rule) reach(rule, first[rule]);
    enum Color : std::uint8_t { fresh, open, done };
    std::vector<Color> color(n, fresh);
    for (RuleId root = 0; root < n; ++root) {
      std::vector<std::pair<RuleId, std::size_t>> path;
      const auto enter = [&](RuleId rule) {
        color[rule] = open;
        path.emplace_back(rule, 0);
      };
      if (color[root] == fresh) enter(root);
      while (!path.empty()) {
        auto& [rule, next] = path.back();
        if (next == first[rule].size()) {
          color[rule] = done;
          path.pop_back();
          continue;
        }
        const RuleId called = first[rule][next++];
        if (color[called] == open) return called;
        if (color[called] == fresh) enter(called);
      }
    }
    return -1;
  }

 private:
  /// Walks without bytes from the start of a rule; returns whether its end is reached, and lists the rules called.
  bool reach(RuleId rule, std::vector<RuleId>& called) {
    ++walk_;
    std::vector<StateId> todo;
    const auto visit = [&](StateId s) {
      if (visited_[s] == walk_) return;
      visited_[s] = walk_;
      todo.push_back(s);
    };
    visit(r_.rules[rule].start);
    bool ends = false;
    while (!todo.empty()) {
      const StateId s = todo.back();
      todo.pop_back();
      ends |= r_.is_end[s];
      for (const auto& e : r_.jumps[s])
        if (is_free(r_, e)) visit(e.to);
      for (const auto& e : r_.calls[s]) {
        called.push_back(e.rule);
        if (nullable_[e.rule]) visit(e.to);
      }
    }
    return ends;
  }

  const Rules& r_;
  std::vector<bool> nullable_;
  std::vector<std::uint32_t> visited_;  // by state: the last walk that came there
  std::uint32_t walk_ = 0;
};

void find_classes(Rules& r) {
  std::bitset<257> begins;
  for (const auto& e : r.bytes.edges) {
    begins.set(e.first);
    begins.set(e.last + std::size_t{1});
  }
  r.byte_of_class.assign(1, 0);
  for (std::size_t b = 0; b < 256; ++b) {
    if (b > 0 && begins[b]) r.byte_of_class.push_back(static_cast<std::uint8_t>(b));
    r.class_of[b] = static_cast<std::uint8_t>(r.byte_of_class.size() - 1);
  }
}

}  // namespace

void analyse(Rules& r) {
  for (StateId s = 0; s < r.states(); ++s) r.only_returns[s] = is_state_only_returning(r, s);
  const auto loop = LeftCalls(r).find_loop();
  if (loop >= 0)
    fail("grammar", "{} can begin with itself: write the repetition to its right, as in a ::= \"x\" a | \"x\"",
         r.rules[static_cast<std::size_t>(loop)].name);
  find_needs(r);
  const Rule& root = r.rules[r.root];
  require(r.need[root.start] < kMaxDepth, "grammar",
          "no text matches {}: every way through it goes on for ever or nests more than {} deep", root.name, kMaxDepth);
  find_classes(r);
}

}  // namespace hpcdl::infer::grammar
