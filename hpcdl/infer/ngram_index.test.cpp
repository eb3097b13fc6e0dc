#include "hpcdl/infer/ngram_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hpcdl/infer/ngram_drafter.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

/// By comparing with every earlier place; the latest of the longest.
NgramIndex::Match naive(const std::vector<std::int32_t>& text) {
  NgramIndex::Match best;
  const auto end = std::ssize(text);
  for (auto place = end - 1; place >= 2; --place) {
    std::int64_t n = 0;
    while (n < std::min<std::int64_t>(place, 64) &&
           text[static_cast<std::size_t>(place - n - 1)] == text[static_cast<std::size_t>(end - n - 1)])
      ++n;
    if (n >= NgramIndex::kShortest && n > best.length) best = {place, n};
  }
  return best;
}

TEST(ngram_index, finds_the_longest_match) {
  const Rng rng{1, 2};
  std::uint64_t draws = 0;
  for (const std::uint64_t ids : {5, 9, 30}) {  // so few places are equal that all of them are compared
    NgramIndex index;
    std::vector<std::int32_t> text;
    for (int i = 0; i < 60; ++i) {
      text.push_back(static_cast<std::int32_t>(rng.below(draws++, ids)));
      const auto found = index.find(text), want = naive(text);
      EXPECT_EQ(found.length, want.length) << i;
      EXPECT_EQ(found.next, want.next) << i;
    }
  }
}

TEST(ngram_index, may_be_asked_now_and_then) {
  NgramIndex index;
  std::vector<std::int32_t> text{1, 2, 3, 4};
  EXPECT_EQ(index.find(text).length, 0);
  for (const auto id : {7, 8, 1, 2, 3}) text.push_back(id);
  EXPECT_EQ(index.find(text).next, 3);
  EXPECT_EQ(index.find(text).length, 3);
}

struct Passes {
  std::int64_t passes = 0, proposed = 0, tokens = 0;
};

/// What a drafter makes of a text that is known.
Passes follow(const std::vector<std::int32_t>& text, std::size_t prompt) {
  NgramDrafter drafter;
  Passes p;
  for (auto at = prompt; at < text.size(); ++p.passes) {
    Drafter::Text t{.id = 1, .tokens = std::span(text).first(at), .most = 15};
    drafter.propose({&t, 1});
    EXPECT_LE(t.proposed.size(), 15u);
    std::size_t accepted = 0;
    while (accepted < t.proposed.size() && at + accepted < text.size() && t.proposed[accepted] == text[at + accepted])
      ++accepted;
    if (!t.proposed.empty()) drafter.learn(1, static_cast<std::int64_t>(accepted));
    p.proposed += std::ssize(t.proposed), at += accepted + 1, p.tokens = static_cast<std::int64_t>(at - prompt);
  }
  return p;
}

TEST(ngram_drafter, follows_a_copy_and_leaves_random_texts_alone) {
  const Rng rng{9, 4};
  std::uint64_t draws = 0;
  for (const std::uint64_t vocab : {50, 1000, 50000}) {
    std::vector<std::int32_t> text;
    for (int i = 0; i < 4000; ++i) text.push_back(static_cast<std::int32_t>(rng.below(draws++, vocab)));
    const auto random = follow(text, 100);
    EXPECT_LE(random.proposed, random.tokens / 20) << vocab;
    text.insert(text.end(), text.begin() + 1000, text.begin() + 3000);  // copies itself
    const auto copies = follow(text, 4000);
    EXPECT_LE(2 * copies.passes, copies.tokens) << vocab;
  }
}

TEST(ngram_drafter, goes_on_with_a_period) {
  NgramDrafter drafter;
  const std::vector<std::int32_t> text{5, 1, 2, 1, 2, 1, 2};
  Drafter::Text t{.id = 1, .tokens = text, .most = 3};
  drafter.propose({&t, 1});
  EXPECT_EQ(t.proposed, (std::vector<std::int32_t>{1, 2, 1}));
}

}  // namespace
}  // namespace hpcdl::infer
