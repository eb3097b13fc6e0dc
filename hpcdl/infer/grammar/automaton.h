#pragma once
// Runs a machine of rules over bytes. A configuration is the set of all call stacks that the bytes so far allow; those
// that have occurred are numbered, and so are their transitions, so that a known way costs one look-up a byte.

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hpcdl/infer/grammar/rules.h"

namespace hpcdl::infer::grammar {

using NodeId = std::uint32_t;
inline constexpr NodeId kDead = 0;  // the empty set

/// The state of one call of a rule, how many rounds of its region are done, and the set of stacks below it.
struct Frame {
  StateId state;
  std::int32_t count;
  NodeId below;
  auto operator<=>(const Frame&) const = default;
};
inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 29;
}
struct FrameHash {
  std::size_t operator()(const Frame& f) const {
    return mixed(mixed(f.state, static_cast<std::uint32_t>(f.count)), f.below);
  }
};

/// A set of stacks, as a tree from the top: equal sets have one number, and equal parts of sets are one node. A node
/// that is `below` others has stacks of one height.
class Automaton {
 public:
  explicit Automaton(const Rules& rules);
  Automaton(const Automaton&) = delete;

  /// The configuration before the first byte.
  NodeId start();
  /// After one more byte; kDead if it is not allowed. No other node is dead: each can still reach an end. Throws Error
  /// after too much work since the last renew_budget().
  NodeId step(NodeId config, std::uint8_t byte) {
    const std::size_t row = rows_[config];
    if (row == kNoRow) return slow_step(config, rules_.class_of[byte]);
    const std::int32_t next = transitions_[row + rules_.class_of[byte]];
    return next >= 0 ? static_cast<NodeId>(next) : slow_step(config, rules_.class_of[byte]);
  }
  NodeId step(NodeId config, std::string_view bytes);
  void renew_budget() { budget_ = kBudget; }

  /// Whether the bytes may end here; of a configuration over an open bottom: whether they may leave it.
  bool may_end(NodeId config) const { return nodes_[config].ends; }
  std::span<const Frame> frames(NodeId node) const { return {frames_.data() + nodes_[node].first, nodes_[node].count}; }
  int depth(NodeId node) const { return nodes_[node].depth; }
  /// The deepest call that was considered on any known way to this configuration.
  int reach(NodeId config) const { return reach_[config]; }
  /// An unknown set of stacks of a depth. A configuration on it stands for the same one on any set of that depth.
  NodeId open_bottom(int depth);
  NodeId node(std::span<const Frame> sorted_frames, bool ends, int depth);
  /// The configuration after the innermost rule has ended on `below`.
  NodeId returned_to(NodeId below);
  /// The same set in this automaton, of one of `other`, which has the same rules.
  NodeId copy(const Automaton& other, NodeId node);

  std::size_t bytes_used() const;

 private:
  struct Node {
    std::uint32_t first, count;  // of frames_
    std::uint16_t depth;
    bool ends;
  };
  static constexpr std::size_t kNoRow = ~std::size_t{0};
  static constexpr std::int64_t kBudget = 2'000'000;  // visits of states: a fraction of a second

  NodeId slow_step(NodeId config, std::uint8_t byte_class);
  NodeId merge(NodeId a, NodeId b);
  /// Follows jumps, calls and returns until states that read bytes.
  void visit(StateId state, std::int32_t count, NodeId below);
  void follow(const Frame& frame);
  void open_closure();
  NodeId closed();
  std::vector<Frame> joined(std::vector<Frame> frames);
  void spend(std::int64_t work);

  const Rules& rules_;
  std::vector<Node> nodes_;
  std::vector<Frame> frames_;
  std::unordered_multimap<std::uint64_t, NodeId> by_hash_;
  std::vector<std::size_t> rows_;          // by node: its row of transitions_
  std::vector<std::int32_t> transitions_;  // by row and class of bytes; -1: unknown
  std::vector<std::uint16_t> reach_;       // by node
  std::unordered_map<NodeId, NodeId> returned_;
  std::unordered_map<std::uint64_t, NodeId> merged_;
  std::int64_t budget_ = kBudget;

  // of the closure that is under way
  std::vector<Frame> todo_, reading_;
  std::unordered_set<Frame, FrameHash> visited_;
  bool ends_ = false;
  int deepest_ = 0;
};

}  // namespace hpcdl::infer::grammar
