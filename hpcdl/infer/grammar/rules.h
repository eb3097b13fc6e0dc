#pragma once
// A compiled grammar: a machine over bytes in which a rule can call rules, as a program calls functions.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hpcdl::infer::grammar {

using StateId = std::uint32_t;
using RuleId = std::uint32_t;
using RegionId = std::uint32_t;

/// How deep calls of rules may nest in one text; JSON has one call per level, and few more at the innermost.
inline constexpr int kMaxDepth = 110;
inline constexpr std::size_t kMaxStates = 200'000, kMaxEdges = 2'000'000;
inline constexpr std::uint16_t kNever = 0xFFFF;
inline constexpr RegionId kNoRegion = ~RegionId{0};
inline constexpr int kUnbounded = -1;

struct ByteEdge {
  std::uint8_t first, last;
  StateId to;
};
struct CallEdge {
  RuleId rule;
  StateId to;  // where the caller goes on
};
/// An edge without bytes. Those of a region, a part that is repeated, count its rounds: `enter` starts at 0, `iterate`
/// begins one more if the maximum allows it, `again` counts it, and `leave` needs the minimum.
enum class JumpKind : std::uint8_t { plain, enter, iterate, again, leave };
struct JumpEdge {
  StateId to;
  JumpKind kind;
  RegionId region;
};
/// Regions of one rule do not nest: its frame has one count.
struct Region {
  int min, max;          // rounds; kUnbounded
  StateId begin, after;  // where rounds begin, where leave() goes
};
struct Rule {
  StateId start, end;
  std::string name;  // for messages
};

/// Edges of every state, in the order of states.
template <class Edge> struct EdgesOf {
  std::vector<std::uint32_t> begin;  // by state, and one more
  std::vector<Edge> edges;
  std::span<const Edge> operator[](StateId s) const { return {edges.data() + begin[s], edges.data() + begin[s + 1]}; }
};

struct Rules {
  EdgesOf<ByteEdge> bytes;
  EdgesOf<CallEdge> calls;
  EdgesOf<JumpEdge> jumps;
  std::vector<Region> regions;
  std::vector<Rule> rules;
  RuleId root = 0;
  std::vector<RegionId> region_of;  // by state; kNoRegion
  std::vector<bool> is_end;         // the end of a rule
  std::vector<bool> only_returns;   // nothing but the end of the rule can follow
  /// By state: how many calls must at least be nested to reach the end of its rule; kNever if it cannot be reached.
  std::vector<std::uint16_t> need;
  /// Bytes that no edge tells apart have one class; a byte of each class.
  std::array<std::uint8_t, 256> class_of = {};
  std::vector<std::uint8_t> byte_of_class;

  std::size_t states() const { return need.size(); }
};

/// Fills need, only_returns and the classes. Throws Error if no text matches, or if a rule begins with itself.
void analyse(Rules& rules);

}  // namespace hpcdl::infer::grammar
