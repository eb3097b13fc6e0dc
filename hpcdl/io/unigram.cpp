#include "hpcdl/io/unigram.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

constexpr double kUnkPenalty = 10;  // of an unknown character, below the lowest score

}  // namespace

UnigramModel::UnigramModel(UnigramVocab vocab) : TokenModel(std::move(vocab.tokens)), rest_(std::move(vocab)) {
  require(!tokens().empty(), "io", "tokenizer.json: the vocabulary is empty");
  require(!rest_.unk || (*rest_.unk >= 0 && *rest_.unk < size()), "io",
          "tokenizer.json: unk_id {} is outside the vocabulary of {}", rest_.unk.value_or(0), size());
  unk_score_ = *std::min_element(rest_.scores.begin(), rest_.scores.end()) - kUnkPenalty;
  if (rest_.byte_fallback) byte_tokens_ = find_byte_tokens();
  build_trie();
}

void UnigramModel::build_trie() {
  std::vector<std::pair<std::string_view, TokenId>> sorted(tokens().begin(), tokens().end());
  std::sort(sorted.begin(), sorted.end());
  // Each node owns the range of tokens that begin with its bytes; children are appended breadth first.
  struct Range {
    std::size_t begin, end, depth;
  };
  std::vector<Range> ranges{{0, sorted.size(), 0}};
  nodes_.emplace_back();
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    auto [begin, end, depth] = ranges[n];
    if (begin < end && sorted[begin].first.size() == depth)
      nodes_[n].id = static_cast<std::uint32_t>(sorted[begin++].second);
    nodes_[n].children = static_cast<std::uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = sorted[begin].first[depth];
      std::size_t last = begin;
      while (last < end && sorted[last].first[depth] == byte) ++last;
      Node node;
      node.byte = static_cast<unsigned char>(byte);
      nodes_.push_back(node);
      ranges.push_back({begin, last, depth + 1});
      ++nodes_[n].count;
      begin = last;
    }
  }
}

const UnigramModel::Node* UnigramModel::child(const Node& node, char byte) const {
  const auto begin = nodes_.begin() + node.children, end = begin + node.count;
  const auto wanted = static_cast<unsigned char>(byte);
  const auto found = std::lower_bound(begin, end, wanted, [](const Node& n, unsigned char b) { return n.byte < b; });
  return found != end && found->byte == wanted ? &*found : nullptr;
}

void UnigramModel::append_part(std::string_view part, std::vector<TokenId>& out) const {
  if (const TokenId id = find(part); id >= 0) return out.push_back(id);
  if (append_bytes(byte_tokens_, part, out)) return;
  require(rest_.unk.has_value(), "io",
          "the text has a character that the vocabulary lacks, and tokenizer.json gives no unk_id for it");
  out.push_back(*rest_.unk);
}

void UnigramModel::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  constexpr std::size_t kNowhere = ~std::size_t{0};
  struct Best {  // of the ways to split the text up to here
    double score = 0;
    std::size_t begin = kNowhere;  // of the last token
    bool unknown = false;
  };
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&](std::size_t begin, std::size_t end, double score, bool unknown) {
    if (best[end].begin == kNowhere || score > best[end].score) best[end] = {score, begin, unknown};
  };
  for (std::size_t at = 0, next = 0; at < word.size(); at = next) {
    next_code_point(word, next);
    const double here = best[at].score;
    bool one_character = false;
    const Node* node = &nodes_[0];
    for (std::size_t end = at; end < word.size() && (node = child(*node, word[end])) != nullptr;) {
      ++end;
      if (node->id == kNone) continue;
      offer(at, end, rest_.scores[node->id] + here, rest_.unk && *rest_.unk == static_cast<TokenId>(node->id));
      one_character |= end == next;
    }
    if (!one_character) offer(at, next, unk_score_ + here, true);
  }
  // From the end; neighbouring unknown characters make one part.
  std::vector<std::string_view> parts;
  for (std::size_t end = word.size(); end > 0;) {
    std::size_t begin = best[end].begin;
    while (best[end].unknown && begin > 0 && best[begin].unknown) begin = best[begin].begin;
    parts.push_back(word.substr(begin, end - begin));
    end = begin;
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) append_part(*part, out);
}

void UnigramModel::write_json(const std::function<void(std::string_view)>& to) const {
  to(fmt::format(R"({{"type": "Unigram", "unk_id": {}, "byte_fallback": {}, "vocab": [)",
                 rest_.unk ? std::to_string(*rest_.unk) : "null", rest_.byte_fallback));
  for (TokenId id = 0; id < size(); ++id) {
    to(id == 0 ? "\n[" : ",\n["), to(json_text(*spelling(id)));
    to(fmt::format(", {}]", nlohmann::json(rest_.scores[static_cast<std::size_t>(id)]).dump()));
  }
  to("]}");
}

}  // namespace hpcdl::io
