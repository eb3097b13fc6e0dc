#include "hpcdl/io/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

#include "hpcdl/core/error.h"
#include "hpcdl/io/unicode.h"

namespace hpcdl::io {
namespace {

constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15u;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

bool printable_latin(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

/// Merges in place by scanning for the lowest rank: quadratic, and fastest for the short words that text is made of.
void merge_by_scan(const MergeTable& merges, std::vector<TokenId>& ids, std::size_t begin) {
  constexpr std::size_t kMax = 64;
  MergeTable::Merge found[kMax];
  std::size_t n = ids.size() - begin;
  TokenId* id = ids.data() + begin;
  for (std::size_t i = 0; i + 1 < n; ++i) found[i] = merges.find(id[i], id[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (found[i].rank < found[best].rank) best = i;
    if (found[best].rank == MergeTable::kNone) break;
    id[best] = found[best].id;
    std::move(id + best + 2, id + n, id + best + 1);
    std::move(found + best + 1, found + n - 1, found + best);
    --n;
    if (best > 0) found[best - 1] = merges.find(id[best - 1], id[best]);
    if (best + 1 < n) found[best] = merges.find(id[best], id[best + 1]);
  }
  ids.resize(begin + n);
}

/// The same for long words, with a linked list and a heap: n log n.
class HeapMerge {
 public:
  HeapMerge(const MergeTable& merges, std::span<const TokenId> ids) : merges_(merges), id_(ids.begin(), ids.end()) {
    const int n = static_cast<int>(id_.size());
    for (int i = 0; i < n; ++i) {
      next_.push_back(i + 1 < n ? i + 1 : -1);
      prev_.push_back(i - 1);
    }
    for (int i = 0; i + 1 < n; ++i) push(i);
  }

  void run(std::vector<TokenId>& ids, std::size_t begin) {
    while (!heap_.empty()) {
      const Entry top = heap_.top();
      heap_.pop();
      // An entry is stale when one of its symbols has been merged since.
      const int right = next_[static_cast<std::size_t>(top.at)];
      if (right < 0 || at(top.at) != top.left || at(right) != top.right) continue;
      merge(top.at, right, top.id);
    }
    ids.resize(begin);
    for (int i = 0; i >= 0; i = next_[static_cast<std::size_t>(i)]) ids.push_back(at(i));
  }

 private:
  struct Entry {
    std::uint32_t rank;
    int at;
    TokenId left, right, id;
    bool operator<(const Entry& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  static constexpr TokenId kGone = -2;

  TokenId at(int i) const { return id_[static_cast<std::size_t>(i)]; }

  void push(int i) {
    const int right = next_[static_cast<std::size_t>(i)];
    if (right < 0) return;
    const auto m = merges_.find(at(i), at(right));
    if (m.rank != MergeTable::kNone) heap_.push({m.rank, i, at(i), at(right), m.id});
  }

  void merge(int left, int right, TokenId id) {
    const int after = next_[static_cast<std::size_t>(right)];
    id_[static_cast<std::size_t>(left)] = id;
    id_[static_cast<std::size_t>(right)] = kGone;
    next_[static_cast<std::size_t>(left)] = after;
    if (after >= 0) prev_[static_cast<std::size_t>(after)] = left;
    if (const int before = prev_[static_cast<std::size_t>(left)]; before >= 0) push(before);
    push(left);
  }

  const MergeTable& merges_;
  std::vector<TokenId> id_;
  std::vector<int> next_, prev_;
  std::priority_queue<Entry> heap_;
};

}  // namespace

const std::array<std::string, 256>& byte_level_alphabet() {
  static const std::array<std::string, 256> table = [] {
    std::array<std::string, 256> t;
    char32_t spare = 256;
    for (int b = 0; b < 256; ++b)
      append_utf8(t[static_cast<std::size_t>(b)], printable_latin(b) ? static_cast<char32_t>(b) : spare++);
    return t;
  }();
  return table;
}

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += byte_level_alphabet()[static_cast<unsigned char>(c)];
  return out;
}

bool from_byte_level(std::string_view text, std::string& bytes) {
  // The characters of the alphabet lie below 256 + 68.
  static const std::array<int, 324> back = [] {
    std::array<int, 324> t{};
    t.fill(-1);
    for (int b = 0; b < 256; ++b) {
      std::size_t at = 0;
      t[next_code_point(byte_level_alphabet()[static_cast<std::size_t>(b)], at)] = b;
    }
    return t;
  }();
  bytes.clear();
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c >= back.size() || back[c] < 0) return false;
    bytes += static_cast<char>(back[c]);
  }
  return true;
}

MergeTable::MergeTable(std::size_t pairs) : slots_(std::bit_ceil(2 * pairs + 2)) {}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = ((pair * kMix) >> 29) & mask;
  while (slots_[i].pair != pair && slots_[i].pair != ~std::uint64_t{0}) i = (i + 1) & mask;
  return i;
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t pair = pair_key(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

MergeTable::Merge MergeTable::find(TokenId left, TokenId right) const {
  return slots_[slot_of(pair_key(left, right))].merge;
}

BpeModel::BpeModel(BpeVocab vocab)
    : TokenModel(std::move(vocab.tokens)), rest_(std::move(vocab)), merges_(rest_.merges.size()) {
  byte_id_.fill(-1);
  std::string bytes;
  for (const auto& [token, id] : tokens()) {
    if (!rest_.byte_level || !from_byte_level(token, bytes)) continue;
    if (bytes.size() == 1) byte_id_[static_cast<unsigned char>(bytes[0])] = id;
    if (rest_.ignore_merges) by_bytes_.emplace(bytes, id);
  }
  if (rest_.byte_fallback) byte_tokens_ = find_byte_tokens();
  if (!rest_.unk.empty()) {
    unk_id_ = find(rest_.unk);
    require(unk_id_ >= 0, "io", "tokenizer.json: unk_token '{}' is not in the vocabulary", rest_.unk);
  }
  std::uint32_t rank = 0;
  for (const auto& [left, right] : rest_.merges) {
    const auto known = [&](TokenId t) { return t >= 0 && t < size() && spelling(t) != nullptr; };
    require(known(left) && known(right), "io", "tokenizer.json: merge {} names a token that is not in the vocabulary",
            rank);
    const std::string merged = *spelling(left) + *spelling(right);
    const TokenId id = find(merged);
    require(id >= 0, "io", "tokenizer.json: merge {} gives '{}', which is not in the vocabulary", rank, merged);
    merges_.insert(left, right, {rank++, id});
  }
}

void BpeModel::append_bytes_of(std::string_view word, std::vector<TokenId>& out) const {
  bool after_unk = false;
  for (const char c : word) {
    const TokenId id = byte_id_[static_cast<unsigned char>(c)];
    if (id >= 0) out.push_back(id);
    if (id < 0 && unk_id_ >= 0 && !(after_unk && rest_.fuse_unk)) out.push_back(unk_id_);
    // A run of unknown bytes ends at a known byte.
    after_unk = id < 0;
  }
}

void BpeModel::append_characters_of(std::string_view word, std::vector<TokenId>& out) const {
  bool pending = false;  // the unknown token, which the library appends only at the next token that is not of a byte
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t begin = at;
    next_code_point(word, at);
    const std::string_view character = word.substr(begin, at - begin);
    const TokenId id = find(character);
    if (id >= 0) {
      if (pending) out.push_back(unk_id_);
      pending = false;
      out.push_back(id);
    } else if (!append_bytes(byte_tokens_, character, out) && unk_id_ >= 0) {
      if (pending && !rest_.fuse_unk) out.push_back(unk_id_);
      pending = true;
    }
  }
  if (pending) out.push_back(unk_id_);
}

void BpeModel::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  if (rest_.ignore_merges) {
    if (!rest_.byte_level) {
      if (const TokenId id = find(word); id >= 0) return out.push_back(id);
    } else if (const auto found = by_bytes_.find(std::string(word)); found != by_bytes_.end()) {
      return out.push_back(found->second);
    }
  }
  const std::size_t begin = out.size();
  rest_.byte_level ? append_bytes_of(word, out) : append_characters_of(word, out);
  if (out.size() - begin <= 64) merge_by_scan(merges_, out, begin);
  else HeapMerge(merges_, std::span<const TokenId>(out).subspan(begin)).run(out, begin);
}

void BpeModel::write_json(const std::function<void(std::string_view)>& to) const {
  to(R"({"type": "BPE", "dropout": null, "unk_token": )");
  to(rest_.unk.empty() ? "null" : json_text(rest_.unk));
  to(fmt::format(
      R"(, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": {}, "byte_fallback": {}, "ignore_merges": {}, "vocab": )",
      rest_.fuse_unk, rest_.byte_fallback, rest_.ignore_merges));
  write_vocabulary(to);
  to(", \"merges\": [");
  std::string_view between = "\n[";
  for (const auto& [left, right] : rest_.merges) {
    to(between), to(json_text(*spelling(left))), to(", "), to(json_text(*spelling(right))), to("]");
    between = ",\n[";
  }
  to("]}");
}

namespace {
constexpr std::size_t kCacheSlots = 1 << 16, kCachedBytes = 64;

std::uint64_t hash_word(std::string_view word) {
  std::uint64_t h = word.size() * kMix;
  for (std::size_t at = 0; at < word.size(); at += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, word.data() + at, std::min<std::size_t>(8, word.size() - at));
    h = (h ^ eight) * kMix;
    h ^= h >> 32;
  }
  return h;
}
}  // namespace

WordCache::WordCache(const TokenModel& model) : model_(model), slots_(kCacheSlots) {}

void WordCache::encode_word(std::string_view word, std::vector<TokenId>& out) {
  if (word.size() > kCachedBytes || word.empty()) return model_.encode_word(word, out);
  const std::uint64_t hash = hash_word(word);
  std::size_t i = hash & (kCacheSlots - 1);
  for (; slots_[i].word_size != 0; i = (i + 1) & (kCacheSlots - 1)) {
    const Slot& s = slots_[i];
    if (s.hash != hash || std::string_view(words_).substr(s.word, s.word_size) != word) continue;
    out.insert(out.end(), ids_.begin() + s.ids, ids_.begin() + s.ids + s.id_count);
    return;
  }
  const std::size_t begin = out.size();
  model_.encode_word(word, out);
  if (used_ > kCacheSlots / 2) {
    forget();
    i = hash & (kCacheSlots - 1);
  }
  remember(slots_[i], hash, word, std::span<const TokenId>(out).subspan(begin));
}

void WordCache::forget() {
  slots_.assign(kCacheSlots, {});
  words_.clear();
  ids_.clear();
  used_ = 0;
}

void WordCache::remember(Slot& slot, std::uint64_t hash, std::string_view word, std::span<const TokenId> ids) {
  slot = {.hash = hash,
          .word = static_cast<std::uint32_t>(words_.size()),
          .ids = static_cast<std::uint32_t>(ids_.size()),
          .word_size = static_cast<std::uint16_t>(word.size()),
          .id_count = static_cast<std::uint16_t>(ids.size())};
  words_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

}  // namespace hpcdl::io
