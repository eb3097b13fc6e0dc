#include "hpcdl/infer/grammar/builder.h"

#include <algorithm>
#include <array>
#include <map>

#include "hpcdl/core/error.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr int kFewRounds = 16;  // that get states of their own

template <class Edge, class From> EdgesOf<Edge> in_order(const std::vector<From>& all, std::size_t states) {
  EdgesOf<Edge> out{.begin = std::vector<std::uint32_t>(states + 1), .edges = std::vector<Edge>(all.size())};
  for (const auto& e : all) ++out.begin[e.from + 1];
  for (std::size_t s = 0; s < states; ++s) out.begin[s + 1] += out.begin[s];
  auto next = out.begin;
  for (const auto& e : all) out.edges[next[e.from]++] = e.edge;
  return out;
}

}  // namespace

RuleId Builder::rule(std::string name) {
  const StateId start = state(), end = state();
  rules_.rules.push_back({.start = start, .end = end, .name = std::move(name)});
  return static_cast<RuleId>(rules_.rules.size() - 1);
}

StateId Builder::state() {
  require(states() < kMaxStates, "grammar",
          "{}expected a grammar of at most {} states, found more: use fewer or smaller repeats", place_, kMaxStates);
  region_of_.push_back(open_);
  return static_cast<StateId>(states() - 1);
}

void Builder::bytes(StateId from, std::uint8_t first, std::uint8_t last, StateId to) {
  require(bytes_.size() < kMaxEdges, "grammar",
          "{}expected a grammar of at most {} edges, found more: use fewer or smaller repeats", place_, kMaxEdges);
  bytes_.push_back({from, {.first = first, .last = last, .to = to}});
}

void Builder::byte(StateId from, char byte, StateId to) {
  bytes(from, static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(byte), to);
}

void Builder::call(StateId from, RuleId rule, StateId to) { calls_.push_back({from, {.rule = rule, .to = to}}); }
void Builder::jump(StateId from, StateId to) { add_jump(from, to, JumpKind::plain, kNoRegion); }

void Builder::add_jump(StateId from, StateId to, JumpKind kind, RegionId region) {
  jumps_.push_back({from, {.to = to, .kind = kind, .region = region}});
}

void Builder::literal(StateId from, std::string_view text, StateId to) {
  if (text.empty()) return jump(from, to);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const StateId next = i + 1 == text.size() ? to : state();
    byte(from, text[i], next);
    from = next;
  }
}

void Builder::chars(StateId from, const CharSet& set, StateId to, Encoding encoding) {
  static const CharSet escaped = CharSet::of(0, 0x1F).add(CharSet::of('"', '"')).add(CharSet::of('\\', '\\'));
  std::map<std::vector<std::uint8_t>, StateId> shared;  // the state before the same last bytes
  const auto before = [&](const Utf8Range& r, int at) {
    std::vector<std::uint8_t> rest;
    for (int i = at; i < r.size; ++i) {
      rest.push_back(r.bytes[static_cast<std::size_t>(i)].first);
      rest.push_back(r.bytes[static_cast<std::size_t>(i)].last);
    }
    return rest;
  };
  for (const Utf8Range& r : utf8_ranges(encoding == Encoding::json ? set & ~escaped : set)) {
    StateId at = from;
    for (int i = 0; i < r.size; ++i) {
      const auto [first, last] = r.bytes[static_cast<std::size_t>(i)];
      if (i + 1 == r.size) {
        bytes(at, first, last, to);
        break;
      }
      // A shared state already has the rest of its way.
      const auto [it, fresh] = shared.try_emplace(before(r, i + 1), 0);
      if (fresh) it->second = state();
      bytes(at, first, last, it->second);
      if (!fresh) break;
      at = it->second;
    }
  }
  if (encoding == Encoding::utf8) return;
  const CharSet special = set & escaped;
  if (special.empty()) return;
  const StateId escape = state();
  byte(from, '\\', escape);
  static const std::map<char32_t, char> kShort = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                                  {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
  std::array<StateId, 2> last_digit = {};  // after \u000 and \u001
  for (const auto& range : special.ranges())
    for (char32_t c = range.first; c <= range.last; ++c) {
      if (const auto it = kShort.find(c); it != kShort.end()) {
        byte(escape, it->second, to);
        continue;
      }
      StateId& digit = last_digit[c >> 4];
      if (digit == 0) {
        digit = state();
        literal(escape, c < 0x10 ? "u000" : "u001", digit);
      }
      byte(digit, "0123456789abcdef"[c & 15], to);
    }
}

void Builder::repeat(StateId from, int min, int max, bool countable, const Body& body, StateId to) {
  if (countable && open_ == kNoRegion && std::max(min, max) > kFewRounds) return count_rounds(from, min, max, body, to);
  const auto round = [&] {
    const StateId next = state();
    body(from, next);
    from = next;
  };
  for (int i = 0; i < min; ++i) round();
  if (max == kUnbounded) {
    const StateId loop = state(), next = state();
    jump(from, loop);
    body(loop, next);
    jump(next, loop);
    return jump(loop, to);
  }
  for (int i = min; i < max; ++i) {
    jump(from, to);
    round();
  }
  jump(from, to);
}

void Builder::count_rounds(StateId from, int min, int max, const Body& body, StateId to) {
  const auto id = static_cast<RegionId>(rules_.regions.size());
  open_ = id;
  const StateId begin = state(), first = state(), last = state();
  rules_.regions.push_back({.min = min, .max = max, .begin = begin, .after = to});
  body(first, last);
  open_ = kNoRegion;
  add_jump(from, begin, JumpKind::enter, id);
  add_jump(begin, first, JumpKind::iterate, id);
  add_jump(last, begin, JumpKind::again, id);
  add_jump(begin, to, JumpKind::leave, id);
}

std::unique_ptr<const Rules> Builder::finish(RuleId root) {
  rules_.root = root;
  rules_.bytes = in_order<ByteEdge>(bytes_, states());
  rules_.calls = in_order<CallEdge>(calls_, states());
  rules_.jumps = in_order<JumpEdge>(jumps_, states());
  rules_.region_of = region_of_;
  rules_.need.resize(states());
  rules_.only_returns.resize(states());
  rules_.is_end.resize(states());
  for (const Rule& r : rules_.rules) rules_.is_end[r.end] = true;
  analyse(rules_);
  return std::make_unique<const Rules>(std::move(rules_));
}

}  // namespace hpcdl::infer::grammar
