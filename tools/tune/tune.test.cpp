// Choosing without a GPU: budgets with candidates whose times are known, the file and damage to it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/rng.h"
#include "tools/tune/session.h"

namespace hpcdl::lab::tune {
namespace {

/// Candidates with given times, faults and tuning times.
struct Fake : Tunable {
  struct Way {
    double seconds;
    std::string problem = {};
    bool throws = false;
  };
  std::vector<Way> ways;
  int usual = 0;
  double* clock = nullptr;
  double each = 0;  // duration of a check or a run
  std::vector<int> verified = {}, timed = {};

  Fake() { what = {{"fake", {1}}, "f32", "1", {.operations = 1, .unit = Unit::f32, .reads = 1}}; }
  std::vector<Candidate> candidates() override {
    std::vector<Candidate> list;
    for (std::size_t i = 0; i < ways.size(); ++i) list.push_back({static_cast<int>(i), "way " + std::to_string(i)});
    return list;
  }
  int built_in() override { return usual; }
  std::string verify(int id) override {
    spend();
    verified.push_back(id);
    if (ways[static_cast<std::size_t>(id)].throws) fail("fake", "no memory");
    return ways[static_cast<std::size_t>(id)].problem;
  }
  double seconds(int id) override {
    spend();
    EXPECT_NE(std::find(verified.begin(), verified.end(), id), verified.end()) << "timed before it was verified";
    timed.push_back(id);
    return ways[static_cast<std::size_t>(id)].seconds;
  }
  void spend() {
    if (clock) *clock += each;
  }
};

Budget endless() {
  return {.now = [] { return 0.0; }, .end = 1};
}

TEST(tuner, takes_the_fastest_of_those_that_are_right) {
  Fake f;
  f.ways = {{5e-6}, {3e-6}, {1e-6, "3 of 9 elements are wrong"}, {2e-6, "", true}, {9e-6}};
  const auto o = tune(f, endless());
  EXPECT_EQ(o.chosen, 1);
  EXPECT_EQ(o.built_in, 0);
  EXPECT_TRUE(o.complete);
  ASSERT_EQ(o.table.size(), 5u);
  EXPECT_EQ(o.table[0].candidate.id, 1);
  EXPECT_EQ(o.find(2)->seconds, 0);
  EXPECT_NE(o.find(3)->problem.find("no memory"), std::string::npos);
  for (int id : {2, 3})
    EXPECT_EQ(std::count(f.timed.begin(), f.timed.end(), id), 0) << "a wrong candidate must not be timed";
  EXPECT_GT(o.find(1)->runs, o.find(4)->runs) << "more time for candidates that may still win";
  const auto text = to_text(o, [](const Cost&) { return 1.5e-6; });
  EXPECT_NE(text.find("chosen, verified"), std::string::npos) << text;
  EXPECT_NE(text.find("50 %"), std::string::npos) << text;
  EXPECT_NE(text.find("3 of 9 elements are wrong"), std::string::npos) << text;
  const auto j = to_json(o, nullptr);
  EXPECT_EQ(j.at("candidates").at(0).at("chosen"), true);
  EXPECT_EQ(j.at("candidates").at(0).at("verified"), true);
}

TEST(tuner, stays_with_the_built_in_way_where_little_is_won) {
  Fake f;
  f.ways = {{1.01e-6}, {1e-6}};
  EXPECT_EQ(tune(f, endless()).chosen, 0);
  f.ways = {{1.05e-6}, {1e-6}};
  EXPECT_EQ(tune(f, endless()).chosen, 1);
  f.ways = {{1e-6, "wrong"}, {5e-6}};
  EXPECT_EQ(tune(f, endless()).chosen, 1) << "the built-in way gives wrong results here";
  f.ways = {{1e-6, "wrong"}, {5e-6, "wrong"}};
  EXPECT_EQ(tune(f, endless()).chosen, 0) << "if every candidate is wrong, nothing changes";
  f.ways = {};
  EXPECT_EQ(tune(f, endless()).chosen, 0);
}

TEST(tuner, keeps_to_its_time_and_remembers_no_half_table) {
  for (double end : {0.0, 1.0, 4.0, 7.0, 10.0, 100.0, 1000.0}) {
    double clock = 0;
    Fake f;
    f.ways = {{5e-6}, {4e-6}, {3e-6}, {2e-6}};
    f.usual = 2;
    f.clock = &clock, f.each = 1;
    const auto o = tune(f, {.now = [&] { return clock; }, .end = end});
    EXPECT_LE(clock, end + 4 + 3) << "at most one candidate or one round over the limit";
    EXPECT_EQ(o.complete, end >= 10) << end;
    EXPECT_EQ(o.chosen, end < 10 ? 2 : 3) << "the built-in way is measured first";
    EXPECT_EQ(o.table.size(), 4u);
  }
}

const Identity kGpu{"NVIDIA H200", "580.95.05", "1.0.0"};

Cache example() {
  Cache c{.identity = kGpu, .entries = {}};
  c.put({{"gemm", {4096, 4096, 4096, 1, 0}}, "bf16", "4096x4096x4096", "128x256x64", 1.75e-4, 2e-4});
  c.put({{"int4_linear", {1, 4096, 4096, 32, 0}}, "int4", "1x4096x4096 group 32", "row 32x1 w16 s1", 4.5e-6, 4.5e-6});
  return c;
}

TEST(tune_cache, is_this_text) {
  EXPECT_EQ(to_text(example()), R"({
 "format": 1,
 "device": "NVIDIA H200",
 "driver": "580.95.05",
 "version": "1.0.0",
 "choices": [
  {
   "op": "gemm",
   "dtype": "bf16",
   "shape": "4096x4096x4096",
   "key": [
    4096,
    4096,
    4096,
    1,
    0
   ],
   "candidate": "128x256x64",
   "seconds": 0.000175,
   "built_in_seconds": 0.0002
  },
  {
   "op": "int4_linear",
   "dtype": "int4",
   "shape": "1x4096x4096 group 32",
   "key": [
    1,
    4096,
    4096,
    32,
    0
   ],
   "candidate": "row 32x1 w16 s1",
   "seconds": 4.5e-06,
   "built_in_seconds": 4.5e-06
  }
 ]
}
)");
  EXPECT_EQ(parse_cache(to_text(example()), "text").entries, example().entries);
}

TEST(tune_cache, files_that_number_their_candidates_still_load) {
  std::string text = to_text(example());
  for (const char* name : {"128x256x64", "row 32x1 w16 s1"}) {
    const auto at = text.find(fmt::format("\"candidate\": \"{}\"", name));
    ASSERT_NE(at, std::string::npos);
    text.insert(at, "\"id\": 3, ");
  }
  EXPECT_EQ(parse_cache(text, "text").entries, example().entries);
}

TEST(tune_cache, comes_back_from_disk_for_the_same_gpu_only) {
  const io::TempFolder tmp;
  const auto file = tmp / "deep" / "tune.json";
  EXPECT_TRUE(read_cache(file, kGpu).entries.empty());
  EXPECT_EQ(read_cache(file, kGpu).warning, "") << "a missing file is not an error";
  write_cache(file, example());
  const auto back = read_cache(file, kGpu);
  EXPECT_EQ(back.entries, example().entries);
  EXPECT_EQ(back.choices().at({"gemm", {4096, 4096, 4096, 1, 0}}), "128x256x64");
  for (auto change : {&Identity::device, &Identity::driver, &Identity::version}) {
    Identity other = kGpu;
    other.*change += "x";
    const auto none = read_cache(file, other);
    EXPECT_TRUE(none.entries.empty());
    EXPECT_NE(none.warning.find("NVIDIA H200"), std::string::npos) << none.warning;
    EXPECT_NE(cache_file(kGpu), cache_file(other));
  }
  auto c = back;
  c.put({{"gemm", {4096, 4096, 4096, 1, 0}}, "bf16", "4096x4096x4096", "other", 1e-4, 2e-4});
  EXPECT_EQ(c.entries.size(), 2u);
  EXPECT_EQ(c.find({"gemm", {4096, 4096, 4096, 1, 0}})->candidate, "other");
}

TEST(tune_cache, stands_in_a_folder_of_its_own) {
  ::setenv("XDG_CACHE_HOME", "/some/where", 1);
  EXPECT_EQ(cache_file(kGpu), "/some/where/hpcdl/tune/NVIDIA_H200-driver-580.95.05-1.0.0.json");
}

TEST(tune_cache, damage_is_said_and_costs_the_choices_alone) {
  const io::TempFolder tmp;
  const auto file = tmp / "tune.json";
  const std::string whole = to_text(example());
  const auto read = [&](const std::string& text) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
    return read_cache(file, kGpu);
  };
  for (std::size_t end = 0; end + 2 < whole.size(); end += 7) {
    const auto c = read(whole.substr(0, end));
    EXPECT_TRUE(c.entries.empty()) << end;
    EXPECT_NE(c.warning.find("damaged"), std::string::npos) << end;
    EXPECT_NE(c.warning.find("tune.json"), std::string::npos);
  }
  // After a change of any byte, either the damage is reported, or the result is a valid file (a digit, a letter of a
  // name).
  const Rng rng{5, 0};
  for (std::uint64_t i = 0; i < 4000; i += 2) {
    std::string text = whole;
    text[rng.below(i, text.size())] = static_cast<char>(rng.below(i + 1, 256));
    const auto c = read(text);
    if (c.warning.empty()) EXPECT_EQ(c.entries.size(), 2u);
    else EXPECT_TRUE(c.entries.empty());
  }
  const auto swap = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    return read(text).warning;
  };
  EXPECT_NE(swap("\"format\": 1", "\"format\": 2").find("format 2"), std::string::npos);
  EXPECT_NE(swap("\"candidate\": \"128x256x64\"", "\"candidate\": \"\""), "");
  EXPECT_NE(swap("\"candidate\": \"128x256x64\"", "\"candidate\": 3"), "");
  EXPECT_NE(swap("0.000175", "-1"), "");
  EXPECT_NE(swap("\"seconds\": 0.000175", "\"seconds\": \"fast\""), "");
  EXPECT_NE(swap("\"op\": \"gemm\",", ""), "");
  EXPECT_NE(swap("\"op\": \"gemm\",", "\"op\": \"gemm\", \"op\": \"gemm\","), "");
}

TEST(tune_cache, an_entry_says_what_was_won) {
  Fake f;
  f.ways = {{4e-6}, {2e-6}};
  const auto e = entry_of(tune(f, endless()));
  EXPECT_EQ(e.candidate, "way 1");
  EXPECT_EQ(e.seconds, 2e-6);
  EXPECT_EQ(e.built_in_seconds, 4e-6);
}

TEST(tune_mode, has_three_names) {
  EXPECT_EQ(mode_from_name("off"), Mode::off);
  EXPECT_EQ(mode_from_name("cached"), Mode::cached);
  EXPECT_EQ(mode_from_name("full"), Mode::full);
  EXPECT_THROW(mode_from_name("Full"), UsageError);
}

}  // namespace
}  // namespace hpcdl::lab::tune
