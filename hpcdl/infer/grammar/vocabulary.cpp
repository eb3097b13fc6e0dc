#include "hpcdl/infer/grammar/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl::infer {

Vocabulary::Vocabulary(const io::Tokenizer& tokenizer) {
  tokens_.resize(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (std::size_t id = 0; id < tokens_.size(); ++id)
    if (const auto token = static_cast<io::TokenId>(id); !tokenizer.is_special(token))
      tokens_[id] = tokenizer.bytes_of(token);
  build();
}

Vocabulary::Vocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) { build(); }

std::string_view Vocabulary::bytes_of(std::int32_t id) const {
  require(id >= 0 && id < size(), "grammar", "expected a token id below {}, found {}", size(), id);
  return tokens_[static_cast<std::size_t>(id)];
}

void Vocabulary::build() {
  constexpr std::size_t kLongest = 60000;  // depths have 16 bits
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    require(tokens_[id].size() <= kLongest, "grammar", "token {} has {} bytes; at most {} are supported", id,
            tokens_[id].size(), kLongest);
    longest_ = std::max(longest_, static_cast<int>(tokens_[id].size()));
    if (!tokens_[id].empty()) ids_.push_back(static_cast<std::int32_t>(id));
  }
  const auto text = [&](std::int32_t id) -> const std::string& { return tokens_[static_cast<std::size_t>(id)]; };
  std::sort(ids_.begin(), ids_.end(), [&](std::int32_t a, std::int32_t b) {
    const int order = text(a).compare(text(b));  // compares unsigned bytes
    return order < 0 || (order == 0 && a < b);
  });
  std::vector<std::uint32_t> open;  // nodes from the root to the last one
  const auto close = [&](std::size_t depth) {
    for (; open.size() > depth; open.pop_back()) nodes_[open.back()].end = static_cast<std::uint32_t>(nodes_.size());
  };
  const auto add = [&](std::uint32_t first, std::uint16_t depth, std::uint8_t byte) {
    open.push_back(static_cast<std::uint32_t>(nodes_.size()));
    nodes_.push_back({.end = 0, .first = first, .depth = depth, .byte = byte});
  };
  add(0, 0, 0);
  std::string_view before;
  for (std::uint32_t i = 0; i < ids_.size(); ++i) {
    const std::string_view now = text(ids_[i]);
    const auto common = static_cast<std::size_t>(
        std::mismatch(now.begin(), now.end(), before.begin(), before.end()).first - now.begin());
    close(common + 1);
    for (std::size_t k = common; k < now.size(); ++k)
      add(i, static_cast<std::uint16_t>(k + 1), static_cast<std::uint8_t>(now[k]));
    before = now;
  }
  close(0);
  const auto count = static_cast<std::uint32_t>(nodes_.size());
  nodes_.push_back({.end = count, .first = static_cast<std::uint32_t>(ids_.size()), .depth = 0, .byte = 0});
}

}  // namespace hpcdl::infer
