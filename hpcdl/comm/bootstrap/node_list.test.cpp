#include "hpcdl/comm/bootstrap/node_list.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "hpcdl/core/error.h"

namespace hpcdl::comm {
namespace {

using Names = std::vector<std::string>;

TEST(node_list, names_and_ranges) {
  EXPECT_EQ(expand_nodes("gpu[01-03,7],login2"), (Names{"gpu01", "gpu02", "gpu03", "gpu7", "login2"}));
  EXPECT_EQ(expand_nodes("a"), Names{"a"});
  EXPECT_EQ(expand_nodes("a,b.example.org"), (Names{"a", "b.example.org"}));
  EXPECT_EQ(expand_nodes("n[8-11]"), (Names{"n8", "n9", "n10", "n11"}));
  EXPECT_EQ(expand_nodes("n[08-11]"), (Names{"n08", "n09", "n10", "n11"}));
  EXPECT_EQ(expand_nodes("n[098-101]-ib"), (Names{"n098-ib", "n099-ib", "n100-ib", "n101-ib"}));
  EXPECT_EQ(expand_nodes("n[5]"), Names{"n5"});
  EXPECT_EQ(expand_nodes("[1-2]"), (Names{"1", "2"}));
  EXPECT_EQ(expand_nodes("fe80::1"), Names{"fe80::1"});
}

TEST(node_list, several_brackets_multiply) {
  EXPECT_EQ(expand_nodes("rack[1-2]node[01-02]"), (Names{"rack1node01", "rack1node02", "rack2node01", "rack2node02"}));
}

TEST(node_list, counts) {
  EXPECT_EQ(expand_counts("8(x2),4"), (std::vector{8, 8, 4}));
  EXPECT_EQ(expand_counts("2"), std::vector{2});
  for (const char* bad : {"", "a", "8(x", "8(x2", "8(2)", "8(x)", ",8", "8,", "-1", "8(x99999999)", "99999999999"})
    EXPECT_THROW(expand_counts(bad), UsageError) << bad;
}

TEST(node_list, hostile_text_is_an_error) {
  for (const char* bad : {"",
                          ",",
                          "a,",
                          ",a",
                          "a[",
                          "a]",
                          "a[]",
                          "a[1",
                          "a[1-]",
                          "a[-1]",
                          "a[2-1]",
                          "a[1-2-3]",
                          "a[x]",
                          "a[[1]]",
                          "a[1]]",
                          "a b",
                          "a;rm -rf",
                          "a\nb",
                          "a[1-99999999]",
                          "a[1-999]b[1-999]",
                          "a[99999999999999999999]",
                          "a[1,,2]",
                          "$(x)",
                          "a[1-70000]",
                          "a[0-65535],b"})
    EXPECT_THROW(expand_nodes(bad), UsageError) << bad;
  EXPECT_EQ(expand_nodes("a[0-65535]").size(), 65536u);
  EXPECT_THROW(expand_nodes(std::string(1 << 20, '[')), UsageError);
  EXPECT_THROW(expand_nodes(std::string("a\0b", 3)), UsageError);
}

TEST(node_list, random_text_ends_in_names_or_an_error) {
  const std::string letters = "a1[]-,0(x)9";
  int good = 0;
  for (std::uint32_t seed = 0; seed < 20000; ++seed) {
    std::uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
    const auto next = [&] {
      return state = state * 6364136223846793005ull + 1442695040888963407ull, static_cast<std::uint32_t>(state >> 33);
    };
    std::string text(next() % 12, ' ');
    for (char& c : text) c = letters[next() % letters.size()];
    try {
      good += !expand_nodes(text).empty();
    } catch (const UsageError&) {}
    try {
      good += !expand_counts(text).empty();
    } catch (const UsageError&) {}
  }
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace hpcdl::comm
