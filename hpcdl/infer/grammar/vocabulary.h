#pragma once
// The tokens of a model as a trie of bytes, so that tokens with a common beginning are tested together.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io {
class Tokenizer;
}

namespace hpcdl::infer {

/// Immutable. Special tokens and tokens without bytes are not part of any text and are left out.
class Vocabulary {
 public:
  explicit Vocabulary(const io::Tokenizer& tokenizer);
  /// From the bytes of every id; empty ones are left out.
  explicit Vocabulary(std::vector<std::string> tokens);

  /// 1 + the largest id.
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  /// The bytes of the longest token.
  int longest() const { return longest_; }
  /// Empty for an id that is left out.
  std::string_view bytes_of(std::int32_t id) const;

  /// A node of the trie stands for the bytes from the root to it. Nodes are in depth-first order; the root is node 0.
  struct Node {
    std::uint32_t end;    // the node after its subtree
    std::uint32_t first;  // its tokens are ids()[first] to ids()[first of the next node]
    std::uint16_t depth;  // bytes from the root
    std::uint8_t byte;
  };
  /// With one more at the end, whose `first` ends the last node's tokens.
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const std::int32_t> ids() const { return ids_; }

 private:
  void build();
  std::vector<std::string> tokens_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> ids_;
  int longest_ = 0;
};

}  // namespace hpcdl::infer
