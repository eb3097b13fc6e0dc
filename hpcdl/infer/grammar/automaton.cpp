#include "hpcdl/infer/grammar/automaton.h"

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr std::size_t kMaxFrames = 4096;  // of one configuration

}  // namespace

Automaton::Automaton(const Rules& rules) : rules_(rules) { node({}, false, 0); }

NodeId Automaton::open_bottom(int depth) { return node({}, true, depth); }

NodeId Automaton::node(std::span<const Frame> frames, bool ends, int depth) {
  std::uint64_t hash = mixed(static_cast<std::uint64_t>(depth) * 2 + ends, frames.size());
  for (const Frame& f : frames) hash = mixed(hash, FrameHash()(f));
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Node& n = nodes_[it->second];
    const auto old = this->frames(it->second);
    if (n.ends == ends && n.depth == depth && std::equal(old.begin(), old.end(), frames.begin(), frames.end()))
      return it->second;
  }
  const auto id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back({.first = static_cast<std::uint32_t>(frames_.size()),
                    .count = static_cast<std::uint32_t>(frames.size()),
                    .depth = static_cast<std::uint16_t>(depth),
                    .ends = ends});
  frames_.insert(frames_.end(), frames.begin(), frames.end());
  rows_.push_back(kNoRow);
  reach_.push_back(0);
  by_hash_.emplace(hash, id);
  return id;
}

NodeId Automaton::start() {
  open_closure();
  visit(rules_.rules[rules_.root].start, 0, open_bottom(0));
  return closed();
}

NodeId Automaton::step(NodeId config, std::string_view bytes) {
  for (const char b : bytes) config = step(config, static_cast<std::uint8_t>(b));
  return config;
}

NodeId Automaton::slow_step(NodeId config, std::uint8_t byte_class) {
  const std::size_t classes = rules_.byte_of_class.size();
  if (rows_[config] == kNoRow) {
    rows_[config] = transitions_.size();
    transitions_.resize(transitions_.size() + classes, -1);
  }
  const std::uint8_t byte = rules_.byte_of_class[byte_class];
  open_closure();
  spend(nodes_[config].count);
  for (std::uint32_t i = 0; i < nodes_[config].count; ++i) {
    const Frame f = frames_[nodes_[config].first + i];
    for (const ByteEdge& e : rules_.bytes[f.state])
      if (e.first <= byte && byte <= e.last) visit(e.to, f.count, f.below);
  }
  const NodeId next = closed();
  transitions_[rows_[config] + byte_class] = static_cast<std::int32_t>(next);
  return next;
}

NodeId Automaton::returned_to(NodeId below) {
  if (const auto it = returned_.find(below); it != returned_.end()) return it->second;
  open_closure();
  ends_ = nodes_[below].ends;
  for (std::uint32_t i = 0; i < nodes_[below].count; ++i) {
    const Frame f = frames_[nodes_[below].first + i];
    visit(f.state, f.count, f.below);
  }
  return returned_[below] = closed();
}

void Automaton::spend(std::int64_t work) {
  budget_ -= work;
  require(budget_ > 0, "grammar", "the grammar can be read in too many ways here; make it less ambiguous");
}

void Automaton::open_closure() {
  todo_.clear();
  reading_.clear();
  visited_.clear();
  ends_ = false;
  deepest_ = 0;
}

void Automaton::visit(StateId state, std::int32_t count, NodeId below) {
  if (rules_.need[state] == kNever) return;
  const int deepest = depth(below) + 1 + rules_.need[state];
  deepest_ = std::max(deepest_, deepest);
  if (deepest > kMaxDepth) return;
  spend(1);
  if (!rules_.bytes[state].empty()) reading_.push_back({state, count, below});
  const bool more = !rules_.jumps[state].empty() || !rules_.calls[state].empty() || rules_.is_end[state];
  if (more && visited_.insert({state, count, below}).second) todo_.push_back({state, count, below});
}

void Automaton::follow(const Frame& f) {
  for (const JumpEdge& e : rules_.jumps[f.state]) {
    const Region* region = e.region == kNoRegion ? nullptr : &rules_.regions[e.region];
    switch (e.kind) {
      case JumpKind::plain: visit(e.to, f.count, f.below); break;
      case JumpKind::enter: visit(e.to, 0, f.below); break;
      case JumpKind::iterate:
        if (region->max == kUnbounded || f.count < region->max) visit(e.to, f.count, f.below);
        break;
      case JumpKind::again:
        // Without a maximum, counts at and above the minimum are the same.
        visit(e.to, region->max == kUnbounded ? std::min(f.count + 1, region->min) : f.count + 1, f.below);
        break;
      case JumpKind::leave:
        if (f.count >= region->min) visit(e.to, 0, f.below);
        break;
    }
  }
  for (const CallEdge& e : rules_.calls[f.state]) {
    const StateId start = rules_.rules[e.rule].start;
    // A call at the end of a rule needs no frame to return to, so that repetition by recursion does not nest.
    if (rules_.only_returns[e.to]) {
      visit(start, 0, f.below);
      continue;
    }
    if (rules_.need[e.to] == kNever || rules_.need[start] == kNever) continue;
    const int height = depth(f.below) + 1;
    deepest_ = std::max(deepest_, height + rules_.need[e.to]);
    if (height + rules_.need[e.to] > kMaxDepth) continue;
    const Frame back = {e.to, f.count, f.below};
    visit(start, 0, node({&back, 1}, false, height));
  }
  if (rules_.is_end[f.state]) {
    ends_ |= nodes_[f.below].ends;
    for (std::uint32_t i = 0; i < nodes_[f.below].count; ++i) {
      const Frame up = frames_[nodes_[f.below].first + i];
      visit(up.state, up.count, up.below);
    }
  }
}

NodeId Automaton::closed() {
  while (!todo_.empty()) {
    const Frame f = todo_.back();
    todo_.pop_back();
    follow(f);
  }
  require(reading_.size() <= kMaxFrames, "grammar",
          "the grammar can be read in more than {} ways here; make it less ambiguous", kMaxFrames);
  const NodeId id = node(joined(std::move(reading_)), ends_, 0);
  reading_ = {};
  reach_[id] = static_cast<std::uint16_t>(std::max<int>(reach_[id], deepest_));
  return id;
}

/// Sorts frames, and joins those that differ only in what is below them, at the same depth.
std::vector<Frame> Automaton::joined(std::vector<Frame> frames) {
  const auto key = [&](const Frame& f) { return std::tuple(f.state, f.count, depth(f.below), f.below); };
  std::sort(frames.begin(), frames.end(), [&](const Frame& a, const Frame& b) { return key(a) < key(b); });
  std::vector<Frame> out;
  for (const Frame& f : frames) {
    const bool same = !out.empty() && out.back().state == f.state && out.back().count == f.count &&
                      depth(out.back().below) == depth(f.below);
    if (same) out.back().below = merge(out.back().below, f.below);
    else out.push_back(f);
  }
  return out;
}

NodeId Automaton::merge(NodeId a, NodeId b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);
  const auto key = std::uint64_t{a} << 32 | b;
  if (const auto it = merged_.find(key); it != merged_.end()) return it->second;
  std::vector<Frame> all(frames(a).begin(), frames(a).end());
  all.insert(all.end(), frames(b).begin(), frames(b).end());
  spend(static_cast<std::int64_t>(all.size()));
  const bool ends = nodes_[a].ends || nodes_[b].ends;
  const int height = depth(a);
  return merged_[key] = node(joined(std::move(all)), ends, height);
}

NodeId Automaton::copy(const Automaton& other, NodeId id) {
  std::unordered_map<NodeId, NodeId> copied;
  const auto go = [&](const auto& self, NodeId from) -> NodeId {
    if (const auto it = copied.find(from); it != copied.end()) return it->second;
    std::vector<Frame> frames(other.frames(from).begin(), other.frames(from).end());
    for (Frame& f : frames) f.below = self(self, f.below);
    return copied[from] = node(joined(std::move(frames)), other.may_end(from), other.depth(from));
  };
  return go(go, id);
}

std::size_t Automaton::bytes_used() const {
  constexpr std::size_t kOfHash = 48;
  return nodes_.size() * (sizeof(Node) + sizeof(std::size_t) + 2 + kOfHash) + frames_.size() * sizeof(Frame) +
         transitions_.size() * sizeof(std::int32_t) + (merged_.size() + returned_.size()) * kOfHash;
}

}  // namespace hpcdl::infer::grammar
