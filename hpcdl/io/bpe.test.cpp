#include "hpcdl/io/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "hpcdl/core/error.h"
#include "hpcdl/io/bpe_train.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden";

WordCounts count_words(const std::string& text, const PreTokenizer& splitter) {
  std::unordered_map<std::string, std::int64_t> counts;
  splitter.for_each_word(text, [&](std::string_view word) { ++counts[std::string(word)]; });
  return {counts.begin(), counts.end()};
}

TEST(bpe, the_alphabet_spells_every_byte) {
  EXPECT_EQ(to_byte_level(" a\n\xff"), "\u0120a\u010a\u00ff");
  std::string all, back;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  ASSERT_TRUE(from_byte_level(to_byte_level(all), back));
  EXPECT_EQ(back, all);
  EXPECT_FALSE(from_byte_level("a b", back));
  EXPECT_FALSE(from_byte_level("\u4e00", back));
}

TEST(bpe, trains_the_merges_of_the_library) {
  const Tokenizer want = Tokenizer::load(kGolden / "gpt2.json");
  const WordCounts words = count_words(read_file(kGolden / "corpus.txt"), want.splitter());
  const BpeVocab got = train_bpe(words, {.vocab_size = 700, .special = {std::string(kEndOfText)}});
  ASSERT_EQ(got.merges.size(), dynamic_cast<const BpeModel&>(want.model()).merges().size());
  EXPECT_EQ(got.merges, dynamic_cast<const BpeModel&>(want.model()).merges());
  ASSERT_EQ(got.tokens.size(), 700u);
  for (const auto& [token, id] : got.tokens) EXPECT_EQ(want.model().find(token), id) << token;
}

TEST(bpe, the_order_of_the_words_does_not_matter) {
  const Tokenizer t = Tokenizer::load(kGolden / "gpt2.json");
  WordCounts words = count_words(read_file(kGolden / "corpus.txt"), t.splitter());
  const auto one = train_bpe(words, {.vocab_size = 500, .special = {}});
  std::reverse(words.begin(), words.end());
  EXPECT_EQ(one.merges, train_bpe(words, {.vocab_size = 500, .special = {}}).merges);
}

TEST(bpe, stops_when_no_pair_is_left_and_needs_room_for_bytes) {
  EXPECT_EQ(train_bpe({{"abc", 1}}, {.vocab_size = 1000, .special = {"<s>"}}).tokens.size(), 256u + 1 + 2);
  EXPECT_EQ(train_bpe({{"abc", 1}}, {.vocab_size = 1000, .special = {}, .min_count = 2}).tokens.size(), 256u);
  EXPECT_EQ(train_bpe({}, {.vocab_size = 300, .special = {}}).tokens.size(), 256u);
  EXPECT_THROW(train_bpe({}, {.vocab_size = 256, .special = {"<s>"}}), Error);
}

/// Peak memory of this process in kB; 0 if the system does not report it.
std::int64_t most_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  return 0;
}

TEST(bpe, a_text_of_one_word_takes_few_bytes_a_byte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes additional memory";
#endif
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const std::int64_t before = most_memory();
  if (before == 0) GTEST_SKIP() << "this system does not report the memory of a process";
  WordCounts words;
  words.emplace_back(std::string(kBytes, 'a'), 1);
  const auto vocab = train_bpe(std::move(words), {.vocab_size = 300, .special = {}});
  // The word, two bytes per symbol, and spellings that together are less than twice as long as the word.
  EXPECT_LT(most_memory() - before, static_cast<std::int64_t>(6 * kBytes / 1024));
  EXPECT_EQ(vocab.tokens.back().first, std::string(kBytes, 'a'));
}

/// Textbook BPE: always merges the lowest rank, the leftmost of equal ones.
std::vector<TokenId> naive(const BpeVocab& vocab, const BpeModel& model, std::string_view word) {
  std::vector<TokenId> ids;
  for (const char c : word) ids.push_back(model.find(to_byte_level(std::string(1, c))));
  for (std::size_t rank = 0; rank < vocab.merges.size(); ++rank) {
    const auto [a, b] = vocab.merges[rank];
    const auto text = [&](TokenId id) { return vocab.tokens[static_cast<std::size_t>(id)].first; };
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      if (ids[i] != a || ids[i + 1] != b) continue;
      ids[i] = model.find(text(a) + text(b));
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }
  return ids;
}

TEST(bpe, short_long_and_cached_words_agree_with_the_textbook) {
  const Rng rng{.seed = 11};
  WordCounts words;
  std::uint64_t draw = 0;
  const auto random_word = [&](std::size_t n) {
    std::string w;
    for (std::size_t i = 0; i < n; ++i) w += static_cast<char>('a' + rng.below(draw++, 3));
    return w;
  };
  for (int i = 0; i < 200; ++i) {
    const std::string word = random_word(1 + rng.below(draw++, 12));
    words.emplace_back(word, 1 + static_cast<std::int64_t>(rng.below(draw++, 9)));
  }
  const BpeVocab vocab = train_bpe(words, {.vocab_size = 400, .special = {}});
  const BpeModel model(vocab);
  WordCache cache(model);
  for (int i = 0; i < 400; ++i) {
    const std::string w = random_word(rng.below(draw++, i % 10 == 0 ? 400 : 90));
    std::vector<TokenId> got, cached, again;
    model.encode_word(w, got);
    cache.encode_word(w, cached);
    cache.encode_word(w, again);
    EXPECT_EQ(got, naive(vocab, model, w)) << w;
    EXPECT_EQ(cached, got);
    EXPECT_EQ(again, got);
  }
}

TEST(bpe, the_cache_stays_right_when_it_overflows) {
  const BpeModel model(train_bpe({{"ab", 3}, {"abc", 2}}, {.vocab_size = 258, .special = {}}));
  WordCache cache(model);
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 50000; ++i) {
      const std::string word = "abc" + std::to_string(i);
      std::vector<TokenId> a, b;
      cache.encode_word(word, a);
      model.encode_word(word, b);
      ASSERT_EQ(a, b) << word;
    }
}

TEST(bpe, a_byte_without_token_is_dropped_or_unknown) {
  BpeVocab vocab{.tokens = {{"a", 0}, {"b", 1}, {"ab", 2}, {"<unk>", 3}}, .merges = {{0, 1}}};
  const auto encode = [&](bool with_unk, bool fuse) {
    BpeVocab v = vocab;
    v.unk = with_unk ? "<unk>" : "";
    v.fuse_unk = fuse;
    std::vector<TokenId> ids;
    BpeModel(std::move(v)).encode_word("xyabxa", ids);
    return ids;
  };
  EXPECT_EQ(encode(false, false), (std::vector<TokenId>{2, 0}));
  EXPECT_EQ(encode(true, false), (std::vector<TokenId>{3, 3, 2, 3, 0}));
  EXPECT_EQ(encode(true, true), (std::vector<TokenId>{3, 2, 3, 0}));
}

}  // namespace
}  // namespace hpcdl::io
