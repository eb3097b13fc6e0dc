#include "hpcdl/io/bpe_train.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

using Pair = std::pair<TokenId, TokenId>;

std::uint64_t key_of(Pair p) {
  return std::uint64_t{static_cast<std::uint32_t>(p.first)} << 32 | static_cast<std::uint32_t>(p.second);
}

/// Maps a pair to a dense number; per pair, its count and the words to visit when it is merged.
class PairTable {
 public:
  struct Entry {
    Pair pair;
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // ascending: where the pair appeared since it was last queued
  };

  Entry& operator[](Pair pair) {
    if (2 * entries_.size() >= slots_.size()) grow();
    std::uint32_t& slot = slots_[slot_of(pair)];
    if (slot == 0) {
      entries_.push_back({pair, 0, {}});
      slot = static_cast<std::uint32_t>(entries_.size());
    }
    return entries_[slot - 1];
  }

 private:
  std::size_t slot_of(Pair pair) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = ((key_of(pair) * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (slots_[i] != 0 && entries_[slots_[i] - 1].pair != pair) i = (i + 1) & mask;
    return i;
  }
  void grow() {
    slots_.assign(2 * slots_.size(), 0);
    for (std::uint32_t n = 0; n < entries_.size(); ++n) slots_[slot_of(entries_[n].pair)] = n + 1;
  }

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_ = std::vector<std::uint32_t>(1024);
};

struct Candidate {
  std::int64_t count;
  Pair pair;
  std::vector<std::uint32_t> words;
  bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : pair > o.pair; }
};

/// Symbol: the type of an id; two bytes if that is enough for the vocabulary.
template <class Symbol> class Trainer {
 public:
  Trainer(WordCounts words, const BpeTraining& training) : training_(training) {
    add_alphabet();
    std::size_t bytes = 0;
    for (const auto& [word, count] : words) bytes += word.size() < 2 ? 0 : word.size();
    symbols_.reserve(bytes);
    for (auto& [given, count] : words) {
      const std::string word = std::move(given);
      if (word.size() < 2) continue;
      begin_.push_back(symbols_.size());
      length_.push_back(static_cast<std::uint32_t>(word.size()));
      count_.push_back(count);
      for (const char c : word) symbols_.push_back(static_cast<Symbol>(byte_id_[static_cast<unsigned char>(c)]));
    }
  }

  BpeVocab run() {
    count_pairs();
    while (static_cast<int>(spelling_.size()) < training_.vocab_size && !queue_.empty()) {
      Candidate top = pop();
      const std::int64_t now = pairs_[top.pair].count;
      if (now != top.count) {
        top.count = now;
        if (now > 0) push(std::move(top));
        continue;
      }
      if (top.count < std::max<std::int64_t>(training_.min_count, 1)) break;
      merge(top);
      if (training_.progress) training_.progress(static_cast<int>(spelling_.size()), training_.vocab_size);
    }
    return finish();
  }

 private:
  TokenId add_token(std::string spelling) {
    if (const auto known = id_.find(spelling); known != id_.end()) return known->second;
    const auto id = static_cast<TokenId>(spelling_.size());
    id_.emplace(spelling_.emplace_back(std::move(spelling)), id);
    return id;
  }

  void add_alphabet() {
    require(training_.vocab_size >= 256 + static_cast<int>(training_.special.size()), "io",
            "a vocabulary of {} has no room for the 256 bytes and {} special tokens", training_.vocab_size,
            training_.special.size());
    for (const std::string& s : training_.special) add_token(s);
    // By code point; for characters of at most two bytes the byte order of UTF-8 is the same.
    std::vector<std::string> alphabet(byte_level_alphabet().begin(), byte_level_alphabet().end());
    std::sort(alphabet.begin(), alphabet.end());
    for (const std::string& s : alphabet) add_token(s);
    for (std::size_t b = 0; b < 256; ++b) byte_id_[b] = id_.at(byte_level_alphabet()[b]);
  }

  void note(Pair pair, std::uint32_t word, std::int64_t change) {
    PairTable::Entry& entry = pairs_[pair];
    entry.count += change;
    if (change <= 0) return;
    if (entry.words.empty()) touched_.push_back(pair);
    if (entry.words.empty() || entry.words.back() != word) entry.words.push_back(word);
  }

  void queue_touched() {
    for (const Pair& pair : touched_) {
      PairTable::Entry& entry = pairs_[pair];
      if (entry.count > 0) push({entry.count, pair, std::move(entry.words)});
      entry.words = {};
    }
    touched_.clear();
  }

  void push(Candidate c) {
    queue_.push_back(std::move(c));
    std::push_heap(queue_.begin(), queue_.end());
  }

  Candidate pop() {
    std::pop_heap(queue_.begin(), queue_.end());
    Candidate top = std::move(queue_.back());
    queue_.pop_back();
    return top;
  }

  void count_pairs() {
    for (std::uint32_t w = 0; w < begin_.size(); ++w)
      for (std::size_t i = begin_[w]; i + 1 < begin_[w] + length_[w]; ++i)
        note({id_of(symbols_[i]), id_of(symbols_[i + 1])}, w, count_[w]);
    queue_touched();
  }

  void merge(const Candidate& top) {
    const auto text = [&](TokenId id) -> const std::string& { return spelling_[static_cast<std::size_t>(id)]; };
    // Two pairs may spell the same token; the second one takes its id.
    const TokenId merged = add_token(text(top.pair.first) + text(top.pair.second));
    merges_.push_back(top.pair);
    for (const std::uint32_t w : top.words) merge_in_word(w, top.pair, merged);
    queue_touched();
  }

  /// Updates the counts of the pairs next to each merged pair. The merged pair keeps its own count, and
  /// overlapping occurrences are counted as they come, because the library does so, and its order of merges depends on
  /// it.
  void merge_in_word(std::uint32_t w, Pair pair, TokenId merged) {
    Symbol* s = symbols_.data() + begin_[w];
    const std::uint32_t n = length_[w];
    const std::int64_t c = count_[w];
    std::uint32_t out = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      if (i + 1 >= n || id_of(s[i]) != pair.first || id_of(s[i + 1]) != pair.second) {
        s[out++] = s[i];
        continue;
      }
      if (out > 0) {
        note({id_of(s[out - 1]), pair.first}, w, -c);
        note({id_of(s[out - 1]), merged}, w, c);
      }
      s[out++] = static_cast<Symbol>(merged);
      if (++i + 1 < n) {
        note({pair.second, id_of(s[i + 1])}, w, -c);
        note({merged, id_of(s[i + 1])}, w, c);
      }
    }
    length_[w] = out;
  }

  /// Moves the spellings out: for a text that is one long word, they are as large as the text.
  BpeVocab finish() {
    BpeVocab vocab;
    for (std::size_t i = 0; i < spelling_.size(); ++i)
      vocab.tokens.emplace_back(std::move(spelling_[i]), static_cast<TokenId>(i));
    // A pair that was merged twice counts at its later rank.
    std::unordered_set<std::uint64_t> seen;
    for (auto m = merges_.rbegin(); m != merges_.rend(); ++m)
      if (seen.insert(key_of(*m)).second) vocab.merges.push_back(*m);
    std::reverse(vocab.merges.begin(), vocab.merges.end());
    return vocab;
  }

  static TokenId id_of(Symbol s) { return static_cast<TokenId>(s); }

  const BpeTraining& training_;
  std::deque<std::string> spelling_;  // a deque, so that the strings to which id_ refers stay in place
  std::unordered_map<std::string_view, TokenId> id_;
  std::array<TokenId, 256> byte_id_{};
  // Words as rows of symbols in one buffer; a row only shrinks.
  std::vector<Symbol> symbols_;
  std::vector<std::size_t> begin_;
  std::vector<std::uint32_t> length_;
  std::vector<std::int64_t> count_;
  PairTable pairs_;
  std::vector<Pair> touched_, merges_;
  std::vector<Candidate> queue_;
};

}  // namespace

BpeVocab train_bpe(WordCounts words, const BpeTraining& training) {
  if (training.vocab_size <= 1 << 16) return Trainer<std::uint16_t>(std::move(words), training).run();
  return Trainer<TokenId>(std::move(words), training).run();
}

}  // namespace hpcdl::io
