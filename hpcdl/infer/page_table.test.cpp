#include "hpcdl/infer/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/rng.h"

namespace hpcdl::infer {
namespace {

std::vector<std::int32_t> counted(std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> list(count);
  std::iota(list.begin(), list.end(), first);
  return list;
}

PageHashes hashes_of(const std::vector<std::int32_t>& tokens, const std::string& salt) {
  PageHashes hashes(salt);
  hashes.extend(tokens);
  return hashes;
}

PageTable::Found find(const PageTable& t, const std::vector<std::int32_t>& tokens, const std::string& salt = {}) {
  return t.find({tokens, hashes_of(tokens, salt), salt});
}

/// Takes and publishes the pages of a text; the last one may be partial.
std::vector<std::int32_t> filled(PageTable& t, const std::vector<std::int32_t>& tokens, const std::string& salt = {}) {
  std::vector<std::int32_t> pages;
  PageTable::Entry parent = 0;
  const auto hashes = hashes_of(tokens, salt);
  for (std::int64_t i = 0; 64 * i < std::ssize(tokens); ++i) {
    pages.push_back(t.take());
    parent = t.publish(pages.back(), parent, {tokens, hashes, salt}, i);
  }
  return pages;
}

void release(PageTable& t, std::vector<std::int32_t> pages) {
  for (; !pages.empty(); pages.pop_back()) t.release(pages.back());
}

TEST(page_table, finds_the_beginning_of_a_text) {
  PageTable t(8);
  const auto text = counted(0, 200);
  const auto pages = filled(t, text);  // three full pages and eight tokens
  EXPECT_EQ(find(t, text).pages, std::vector<std::int32_t>(pages.begin(), pages.end() - 1)) << "of a running text";
  release(t, pages);
  EXPECT_EQ(t.free_pages(), 4);
  EXPECT_EQ(t.cached_pages(), 4);
  auto found = find(t, text);
  EXPECT_EQ(found.pages.size(), 3u);
  EXPECT_EQ(found.partial, pages[3]);
  EXPECT_EQ(found.tokens, 8);
  auto other = text;
  other[150] = 7;  // in the third page
  found = find(t, other);
  EXPECT_EQ(found.pages.size(), 2u);
  EXPECT_EQ(found.partial, pages[2]);
  EXPECT_EQ(found.tokens, 150 - 128);
  other = text;
  other[0] = 7;
  EXPECT_TRUE(find(t, other).pages.empty()) << "the same tokens after others";
  EXPECT_EQ(find(t, other).partial, -1);
  EXPECT_TRUE(find(t, text, "secret").pages.empty());
  EXPECT_EQ(find(t, text, "secret").partial, -1);
}

TEST(page_table, evicts_what_was_used_least_recently) {
  PageTable t(4);
  const auto a = filled(t, counted(0, 128)), b = filled(t, counted(1000, 128));
  release(t, a), release(t, b);
  t.hold(a[0]), t.hold(a[1]), t.release(a[1]), t.release(a[0]);  // used again
  EXPECT_EQ(t.take(), b[1]) << "the last page of the older text first";
  EXPECT_EQ(find(t, counted(1000, 128)).pages, std::vector<std::int32_t>{b[0]});
  EXPECT_EQ(t.take(), b[0]);
  EXPECT_TRUE(find(t, counted(1000, 128)).pages.empty());
  EXPECT_EQ(find(t, counted(0, 128)).pages, a);
  t.hold(a[0]), t.hold(a[1]);
  EXPECT_EQ(t.available_pages(), 0);
  EXPECT_THROW(t.take(), Error);
}

TEST(page_table, stores_the_same_tokens_once) {
  PageTable t(4);
  const auto a = filled(t, counted(0, 70)), b = filled(t, counted(0, 70));
  release(t, a), release(t, b);
  EXPECT_EQ(t.cached_pages(), 2);
  EXPECT_EQ(t.free_pages(), 2);
}

TEST(page_table, hashes_of_a_text_that_grows_are_those_of_the_whole_text) {
  const auto text = counted(0, 300);
  PageHashes grows("salt");
  for (std::size_t n = 1; n <= text.size(); n += 7) grows.extend(std::span(text).first(n));
  const auto whole = hashes_of(text, "salt"), other = hashes_of(text, "");
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(grows[i], whole[i]);
    EXPECT_NE(grows[i], other[i]);
  }
}

TEST(page_table, counts_every_page_once) {
  PageTable t(20);
  const Rng rng{3, 1};
  std::uint64_t draws = 0;
  const auto draw = [&](std::uint64_t n) { return static_cast<std::int32_t>(rng.below(draws++, n)); };
  std::vector<std::vector<std::int32_t>> held;
  for (int step = 0; step < 20000; ++step) {
    if (draw(2) == 0 && !held.empty()) {
      const auto at = held.begin() + draw(held.size());
      release(t, *at);
      held.erase(at);
    } else if (const auto tokens = counted(64 * draw(4), static_cast<std::size_t>(1 + draw(300)));
               t.available_pages() >= 5) {
      auto found = find(t, tokens);
      for (const auto page : found.pages) t.hold(page);
      auto pages = found.pages;
      auto parent = found.last;
      const auto hashes = hashes_of(tokens, {});
      for (auto i = std::ssize(pages); 64 * i < std::ssize(tokens); ++i) {
        pages.push_back(t.take());
        parent = t.publish(pages.back(), parent, {tokens, hashes, {}}, i);
      }
      held.push_back(std::move(pages));
    }
    std::vector<bool> used(20);
    for (const auto& pages : held)
      for (const auto page : pages) used[static_cast<std::size_t>(page)] = true;
    ASSERT_EQ(std::count(used.begin(), used.end(), true) + t.available_pages(), 20);
  }
  for (const auto& pages : held) release(t, pages);
  EXPECT_EQ(t.available_pages(), 20);
}

}  // namespace
}  // namespace hpcdl::infer
