// Tables and notes of ways, and how a call chooses with them: without a GPU.

#include "hpcdl/core/ways.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "hpcdl/core/choose_way.h"
#include "hpcdl/core/error.h"

namespace hpcdl {
namespace {

TEST(ways, buckets_hold_what_is_at_most_an_eighth_apart) {
  for (std::int64_t v = 0; v <= 16; ++v) EXPECT_EQ(bucket(v), v);
  for (std::int64_t v : {768, 1024, 2304, 3072, 4096, 11264, 28672, 8192})
    EXPECT_EQ(bucket(v), v) << "sizes of models are their own buckets";
  EXPECT_EQ(bucket(17), 18);
  EXPECT_EQ(bucket(4097), 4608);
  EXPECT_EQ(bucket(50304), 53248);
  for (std::int64_t v = 1; v < 70000; ++v) {
    ASSERT_GE(bucket(v), v);
    ASSERT_LE(bucket(v), v + (v + 7) / 8);
    ASSERT_LE(bucket(v), bucket(v + 1));
    ASSERT_EQ(bucket(bucket(v)), bucket(v));
  }
  EXPECT_GE(bucket(std::int64_t{1} << 60), std::int64_t{1} << 60);
}

TEST(ways, a_key_finds_its_way_and_no_other) {
  const WayKey a{"gemm", {1, 2, 3}}, b{"gemm", {3, 2, 1}}, c{"gemm", {1, 2, 3, 0}}, d{"attention", {1, 2, 3}};
  const Ways ways({.calls = {{a, "seven"}, {b, "zero"}}, .preferred = {}});
  ASSERT_NE(ways.of_call("gemm", a.fields), nullptr);
  EXPECT_EQ(ways.of_call("gemm", a.fields)->name(), "seven");
  EXPECT_EQ(ways.of_call("gemm", b.fields)->name(), "zero");
  EXPECT_EQ(ways.of_call("gemm", c.fields), nullptr);
  EXPECT_EQ(ways.of_call("attention", d.fields), nullptr);
  std::set<std::uint64_t> hashes;
  for (std::int64_t i = 0; i < 20; ++i)
    for (std::int64_t k = 0; k < 20; ++k)
      for (std::int64_t l = 0; l < 20; ++l) hashes.insert(hash_of("gemm", std::array{i, k, l}));
  EXPECT_EQ(hashes.size(), 8000u);
}

TEST(ways, an_op_looks_up_the_number_of_a_name_once) {
  const Ways ways({.calls = {}, .preferred = {{"gemm", "fast"}}});
  int asked = 0;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(ways.preferred("gemm")->number([&](std::string_view name) { return ++asked, name == "fast" ? 5 : -1; }),
              5);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(ways.preferred("conv2d"), nullptr);
}

using Preferred = std::map<std::string, std::string>;

std::string mistake(std::string_view text) {
  try {
    parse_preferred_ways(text, "train.ways");
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

TEST(ways, preferred_ones_are_words) {
  EXPECT_EQ(parse_preferred_ways("", "here"), Preferred());
  EXPECT_EQ(parse_preferred_ways("  attention=cudnn  conv2d=own ", "here"),
            (Preferred{{"attention", "cudnn"}, {"conv2d", "own"}}));
  EXPECT_EQ(parse_preferred_ways("conv2d=cudnn 2 attention=wgmma, three groups of queries", "here"),
            (Preferred{{"attention", "wgmma, three groups of queries"}, {"conv2d", "cudnn 2"}}));
  for (const char* text : {"own", "=own", "conv2d=", "conv2d= own", "own conv2d=own"})
    EXPECT_NE(mistake(text).find("train.ways: expected op=way"), std::string::npos) << text << ": " << mistake(text);
  EXPECT_NE(mistake("conv2d=own conv2d=gemm").find("conv2d is named twice"), std::string::npos);
}

/// A call of size n. Way 0 computes all, 1 those below 10, 2 those above 10; built in is 0.
struct Call {
  const Stream& s;
  std::int64_t n;
  static std::string_view op() { return "toy_backward"; }
  static std::string_view family() { return "toy"; }
  std::array<std::int64_t, 1> fields() const { return {bucket(n)}; }
  static std::string_view name(int id) {
    return std::array<std::string_view, 3>{"all", "small", "large"}.at(static_cast<std::size_t>(id));
  }
  static int number(std::string_view name) {
    for (int id = 0; id < 3; ++id)
      if (Call::name(id) == name) return id;
    return -1;
  }
  bool fits(int id) const { return id == 0 || (id == 1) == (n < 10); }
  int preferred(int id) const { return fits(id) ? id : -1; }
  static int built_in() { return 0; }
  std::string words() const { return fmt::format("toy of {}", n); }
  std::any operands() const { return n; }
};

class Choosing : public testing::Test {
 protected:
  std::map<WayKey, WayNote> choose(WayNames names, std::initializer_list<std::pair<std::int64_t, int>> expected) {
    s.set_ways(std::make_shared<const Ways>(std::move(names)));
    WayNotes notes;
    int record = 0;
    for (const auto& [n, id] : expected) {
      EXPECT_EQ(choose_way(Call{s, n}), id) << n;
      const WithWayNotes with(s, notes);
      notes.begin_record(record++);
      EXPECT_EQ(choose_way(Call{s, n}), id) << n << ", with notes";
    }
    EXPECT_EQ(s.way_notes(), nullptr);
    return notes.all();
  }
  Pool pool{1};
  Stream s{pool};
};

TEST_F(Choosing, without_a_table_is_built_in) {
  EXPECT_EQ(choose_way(Call{s, 3}), 0);
  EXPECT_EQ(told_way(Call{s, 3}), -1);
  const auto notes = choose({}, {{3, 0}, {30, 0}, {3, 0}});
  ASSERT_EQ(notes.size(), 2u);
  const auto& note = notes.at({"toy_backward", {3}});
  EXPECT_EQ(note.used, "all");
  EXPECT_FALSE(note.told);
  EXPECT_EQ(note.refused, "");
  EXPECT_EQ(note.call, "toy of 3");
  EXPECT_EQ(std::any_cast<std::int64_t>(note.operands), 3);
  EXPECT_EQ(note.records, (std::set<int>{0, 2}));
}

TEST_F(Choosing, follows_the_table_where_the_way_is_possible) {
  const WayKey three{"toy_backward", {3}}, thirty{"toy_backward", {30}}, forty{"toy_backward", {40}};
  const auto notes = choose({.calls = {{three, "small"}, {thirty, "small"}, {forty, "gone"}}, .preferred = {}},
                            {{3, 1}, {30, 0}, {40, 0}, {50, 0}});
  EXPECT_TRUE(notes.at(three).told);
  EXPECT_EQ(notes.at(three).used, "small");
  EXPECT_EQ(notes.at(thirty).refused, "small") << "it cannot compute this call";
  EXPECT_EQ(notes.at(forty).refused, "gone") << "there is no such way";
  for (const auto& key : {thirty, forty}) EXPECT_FALSE(notes.at(key).told);
}

TEST_F(Choosing, prefers_one_way_to_those_of_calls) {
  const WayKey three{"toy_backward", {3}}, thirty{"toy_backward", {30}};
  const auto notes =
      choose({.calls = {{three, "all"}, {thirty, "all"}}, .preferred = {{"toy", "large"}}}, {{3, 0}, {30, 2}, {50, 2}});
  EXPECT_EQ(notes.at(three).refused, "large");
  EXPECT_TRUE(notes.at(three).told);
  EXPECT_EQ(notes.at(thirty).used, "large");
}

TEST_F(Choosing, goes_along_with_a_copy_of_the_stream) {
  s.set_ways(std::make_shared<const Ways>(WayNames{.calls = {}, .preferred = {{"toy", "large"}}}));
  const Stream copy = s;
  Stream other(pool);
  EXPECT_EQ(choose_way(Call{copy, 30}), 2);
  EXPECT_EQ(choose_way(Call{other, 30}), 0);
  other.compute_like(s);
  EXPECT_EQ(choose_way(Call{other, 30}), 2);
}

TEST_F(Choosing, is_noted_from_several_threads) {
  WayNotes notes;
  const WithWayNotes with(s, notes);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::int64_t n = 0; n < 200; ++n) choose_way(Call{s, n});
    });
  for (auto& t : threads) t.join();
  std::set<std::int64_t> buckets;
  for (std::int64_t n = 0; n < 200; ++n) buckets.insert(bucket(n));
  EXPECT_EQ(notes.all().size(), buckets.size());
}

}  // namespace
}  // namespace hpcdl
