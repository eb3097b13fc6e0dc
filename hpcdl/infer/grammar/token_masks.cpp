#include "hpcdl/infer/grammar/token_masks.h"

#include <algorithm>
#include <bit>

#include "hpcdl/core/error.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr std::size_t kRecent = 256;                        // whole masks
constexpr std::size_t kMaxMemory = std::size_t{128} << 20;  // of one TokenMasks, before new texts get another
constexpr std::size_t kManyExits = 20'000;                  // from which on a walk of the whole trie is faster

}  // namespace

TokenMasks::TokenMasks(const Rules& rules, std::shared_ptr<const Vocabulary> vocabulary)
    : rules_(rules), vocabulary_(std::move(vocabulary)), automaton_(rules) {
  path_.resize(static_cast<std::size_t>(vocabulary_->longest()) + 1);
}

NodeId TokenMasks::start() {
  const std::lock_guard guard(lock_);
  automaton_.renew_budget();
  return automaton_.start();
}

NodeId TokenMasks::step(NodeId config, std::int32_t id) {
  const std::lock_guard guard(lock_);
  automaton_.renew_budget();
  return automaton_.step(config, vocabulary_->bytes_of(id));
}

bool TokenMasks::may_end(NodeId config) {
  const std::lock_guard guard(lock_);
  return automaton_.may_end(config);
}

bool TokenMasks::is_full() {
  const std::lock_guard guard(lock_);
  return automaton_.bytes_used() + local_bytes_ > kMaxMemory;
}

NodeId TokenMasks::copy(TokenMasks& other, NodeId config) {
  const std::scoped_lock guard(lock_, other.lock_);
  automaton_.renew_budget();
  return automaton_.copy(other.automaton_, config);
}

void TokenMasks::set(NodeId config, std::span<std::uint32_t> allowed) {
  const std::lock_guard guard(lock_);
  automaton_.renew_budget();
  const Words& words = whole(config);
  require(allowed.size() >= words.size(), "grammar", "expected a mask of {} words for {} tokens, found {}",
          words.size(), vocabulary_->size(), allowed.size());
  for (std::size_t i = 0; i < words.size(); ++i) allowed[i] |= words[i];
}

const TokenMasks::Words& TokenMasks::whole(NodeId config) {
  if (const auto it = recent_at_.find(config); it != recent_at_.end()) {
    recent_.splice(recent_.begin(), recent_, it->second);
    return recent_.front().second;
  }
  Words words(static_cast<std::size_t>(vocabulary_->size() + 31) / 32);
  const auto all = automaton_.frames(config);
  std::vector<Frame> frames(all.begin(), all.end());
  std::stable_sort(frames.begin(), frames.end(), [](const Frame& a, const Frame& b) { return a.below < b.below; });
  for (auto begin = frames.begin(); begin != frames.end();) {
    const auto end = std::find_if(begin, frames.end(), [&](const Frame& f) { return f.below != begin->below; });
    add({begin, end}, begin->below, words);
    begin = end;
  }
  if (recent_.size() == kRecent) {
    recent_at_.erase(recent_.back().first);
    recent_.pop_back();
  }
  recent_.emplace_front(config, std::move(words));
  recent_at_[config] = recent_.begin();
  return recent_.front().second;
}

void TokenMasks::add(std::span<const Frame> frames, NodeId below, Words& words) {
  const Local& found = local(frames, below);
  const auto tokens_at = [&](std::uint32_t node, NodeId) { set_tokens(node, words); };
  const NodeId after = automaton_.returned_to(below);
  const bool goes_on = !automaton_.frames(after).empty();
  if (goes_on && found.exits.size() > kManyExits) return walk(0, automaton_.node(frames, false, 0), tokens_at);
  for (std::size_t i = 0; i < found.words.size(); ++i) words[i] |= found.words[i];
  for (const auto id : found.ids) words[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
  if (goes_on)
    for (const auto exit : found.exits) walk(exit, after, tokens_at);
}

/// Counts of rounds that no token can tell apart become one.
Frame TokenMasks::canonical(Frame f, NodeId bottom) const {
  f.below = bottom;
  const RegionId id = rules_.region_of[f.state];
  if (id == kNoRegion) return f;
  const auto [min, max, begin, after] = rules_.regions[id];
  const int longest = vocabulary_->longest();
  const bool before_min = f.count < min - longest, before_max = max == kUnbounded || f.count < max - longest;
  if (before_min && before_max) f.count = 0;
  else if (f.count >= min && before_max) f.count = min;
  return f;
}

const TokenMasks::Local& TokenMasks::local(std::span<const Frame> frames, NodeId below) {
  const auto on = [&](int depth) {
    const NodeId bottom = automaton_.open_bottom(depth);
    std::vector<Frame> out;
    for (const Frame& f : frames) out.push_back(canonical(f, bottom));
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return automaton_.node(out, false, 0);
  };
  const Local& shallow = local(on(0));
  const int depth = automaton_.depth(below);
  return shallow.reach + depth <= kMaxDepth ? shallow : local(on(depth));
}

const TokenMasks::Local& TokenMasks::local(NodeId config) {
  const auto [it, fresh] = locals_.try_emplace(config);
  Local& found = it->second;
  if (!fresh) return found;
  try {
    Words words(static_cast<std::size_t>(vocabulary_->size() + 31) / 32);
    const auto nodes = vocabulary_->nodes();
    walk(0, config, [&](std::uint32_t node, NodeId there) {
      set_tokens(node, words);
      found.reach = std::max(found.reach, automaton_.reach(there));
      if (automaton_.may_end(there) && nodes[node].end > node + 1) found.exits.push_back(node);
    });
    std::size_t count = 0;
    for (const auto word : words) count += static_cast<std::size_t>(std::popcount(word));
    if (count > words.size() / 2) {
      found.words = std::move(words);
    } else {
      for (std::size_t i = 0; i < words.size(); ++i)
        for (auto rest = words[i]; rest != 0; rest &= rest - 1)
          found.ids.push_back(static_cast<std::int32_t>(i * 32) + std::countr_zero(rest));
    }
  } catch (...) {
    locals_.erase(config);
    throw;
  }
  local_bytes_ += found.bytes();
  return found;
}

template <class F> void TokenMasks::walk(std::uint32_t root, NodeId config, F&& allowed) {
  const auto nodes = vocabulary_->nodes();
  const std::uint32_t end = nodes[root].end;
  path_[nodes[root].depth] = config;
  for (std::uint32_t i = root + 1; i < end;) {
    const auto& n = nodes[i];
    const NodeId next = automaton_.step(path_[n.depth - std::size_t{1}], n.byte);
    if (next == kDead) {
      i = n.end;
      continue;
    }
    path_[n.depth] = next;
    allowed(i, next);
    ++i;
  }
}

void TokenMasks::set_tokens(std::uint32_t node, Words& words) const {
  const auto nodes = vocabulary_->nodes();
  const auto ids = vocabulary_->ids();
  // Tokens of this node come before those of its children.
  for (std::uint32_t i = nodes[node].first; i < nodes[node + 1].first; ++i)
    words[static_cast<std::size_t>(ids[i]) / 32] |= 1u << (ids[i] % 32);
}

}  // namespace hpcdl::infer::grammar
