#pragma once
// Which tokens of a vocabulary a configuration allows. Most depend only on the innermost rules: their mask is found
// once, on an open bottom, and kept. The others, which end those rules, are tested against the stacks below.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "hpcdl/infer/grammar/automaton.h"
#include "hpcdl/infer/grammar/vocabulary.h"

namespace hpcdl::infer::grammar {

/// Shared by the texts of one grammar and one vocabulary; safe from many threads. Both must outlive it.
class TokenMasks {
 public:
  TokenMasks(const Rules& rules, std::shared_ptr<const Vocabulary> vocabulary);

  NodeId start();
  /// After the bytes of a token; kDead if they are not allowed.
  NodeId step(NodeId config, std::int32_t id);
  bool may_end(NodeId config);
  /// Sets the bits of the allowed tokens; the others must be clear.
  void set(NodeId config, std::span<std::uint32_t> allowed);
  NodeId copy(TokenMasks& other, NodeId config);

  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }
  /// Whether so much memory is in use that new texts should begin with empty masks.
  bool is_full();

 private:
  /// Of a configuration over an open bottom.
  struct Local {
    std::vector<std::uint32_t> words;  // the allowed tokens, if they are many
    std::vector<std::int32_t> ids;     // or if they are few
    std::vector<std::uint32_t> exits;  // nodes of the trie where the bottom is reached and more bytes can follow
    int reach = 0;                     // the deepest call
    std::size_t bytes() const { return words.size() * 4 + ids.size() * 4 + exits.size() * 4 + sizeof(Local); }
  };
  using Words = std::vector<std::uint32_t>;

  const Words& whole(NodeId config);
  void add(std::span<const Frame> same_below, NodeId below, Words& words);
  const Local& local(std::span<const Frame> same_below, NodeId below);
  const Local& local(NodeId config);
  Frame canonical(Frame frame, NodeId bottom) const;
  /// Calls `allowed(trie node)` for each node below `root` that the configuration allows, with the configuration there.
  template <class F> void walk(std::uint32_t root, NodeId config, F&& allowed);
  void set_tokens(std::uint32_t node, Words& words) const;

  std::mutex lock_;
  const Rules& rules_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  Automaton automaton_;
  std::unordered_map<NodeId, Local> locals_;
  std::size_t local_bytes_ = 0;
  // Whole masks of the configurations that were asked for last.
  std::list<std::pair<NodeId, Words>> recent_;
  std::unordered_map<NodeId, std::list<std::pair<NodeId, Words>>::iterator> recent_at_;
  std::vector<NodeId> path_;  // of a walk, by depth
};

}  // namespace hpcdl::infer::grammar
