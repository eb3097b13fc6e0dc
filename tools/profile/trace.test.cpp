#include "tools/profile/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/io/json.h"
#include "hpcdl/io/temp_folder.h"
#include "tools/profile/profile_for_tests.h"
#include "tools/profile/trace_for_tests.h"

namespace hpcdl::lab {
namespace {

TEST(trace, has_the_form_that_viewers_read) {
  const auto text = trace_text(toy_profile(3), toy_roofs());
  EXPECT_EQ(text.steps, 3);
  const auto trace = io::parse_json(text.json, "trace");
  check_trace(trace);
  const auto sums = durations(trace);
  EXPECT_NEAR(sums.at("step"), 3 * 100, 1e-6);
  EXPECT_NEAR(sums.at("cpu_op"), 3 * 80, 1e-6);
  EXPECT_NEAR(sums.at("plain_step"), 3 * 80, 1e-6);
  EXPECT_EQ(trace.at("distributedInfo").at("rank"), 0);
  EXPECT_EQ(trace.at("hpcdl").at("clock").at("base_ns"), 1'000'000'000);
  int counters = 0;
  for (const auto& e : trace.at("traceEvents")) {
    counters += e.at("ph") == "C";
    if (e.at("ph") != "X" || e.at("cat") != "cpu_op") continue;
    const auto& a = e.at("args");
    EXPECT_EQ(a.at("bound"), "compute");
    EXPECT_NEAR(a.at("of_roof").get<double>(), a.at("phase") == "forward" ? 0.2 : 0.4, 1e-3);
    EXPECT_NEAR(a.at("threads_busy").get<double>(), 0.75, 1e-3);
    EXPECT_EQ(a.at("shapes")[0], "F32 (100)");
  }
  EXPECT_EQ(counters, 3 * 3);  // 448, 896, 448 bytes in every step
}

TEST(trace, a_gpu_has_a_row_of_kernels_and_one_of_the_host_that_queues_them) {
  const auto trace = io::parse_json(trace_text(toy_gpu_profile(2), toy_roofs()).json, "trace");
  check_trace(trace);
  const auto sums = durations(trace);
  EXPECT_NEAR(sums.at("gpu_op"), 2 * 4 * 18, 1e-6);
  EXPECT_NEAR(sums.at("kernel"), 2 * 8 * 8, 1e-6);
  EXPECT_NEAR(sums.at("gpu_memcpy"), 2 * 1, 1e-6);
  EXPECT_NEAR(sums.at("cpu_op"), 2 * 3, 1e-6) << "queueing";
}

TEST(trace, too_large_a_trace_loses_whole_steps) {
  const auto all = trace_text(toy_profile(8), toy_roofs());
  const auto part =
      trace_text(toy_profile(8), toy_roofs(), {.limit = static_cast<std::int64_t>(all.json.size()) / 2, .pings = {}});
  EXPECT_GT(part.steps, 0);
  EXPECT_GT(part.left_out, 0);
  EXPECT_EQ(part.steps + part.left_out, 8);
  check_trace(io::parse_json(part.json, "trace"));
}

TEST(trace, collectives_are_numbered_and_say_what_they_carry) {
  auto profile = toy_profile(2);
  profile.world = 2, profile.rank = 1;
  reduce_over_two_ranks(profile.programs[0].program, 3);
  const auto trace = io::parse_json(trace_text(profile, toy_roofs()).json, "trace");
  std::vector<int> seen;
  for (const auto& e : trace.at("traceEvents"))
    if (e.value("cat", "") == "collective") {
      seen.push_back(e.at("args").at("seq"));
      EXPECT_EQ(e.at("pid"), 1);
      EXPECT_EQ(e.at("args").at("Collective name"), "all_reduce");
      EXPECT_EQ(e.at("args").at("In msg nelems"), 100);
      EXPECT_EQ(e.at("args").at("Process Group Ranks"), "[0,1]");
    }
  EXPECT_EQ(seen, (std::vector<int>{0, 1}));
}

TEST(trace, files_come_back_as_they_were_compressed_or_not) {
  const io::TempFolder tmp;
  std::string text = trace_text(toy_profile(30), toy_roofs()).json;
  for (const char* name : {"a.json", "a.json.gz"}) {
    write_trace(tmp / name, text);
    EXPECT_TRUE(read_trace(tmp / name) == text) << name;
  }
  EXPECT_LT(std::filesystem::file_size(tmp / "a.json.gz"), std::filesystem::file_size(tmp / "a.json") / 5);
  for (std::size_t i = text.size(); text.size() < (3u << 20); ++i)
    text += static_cast<char>('a' + i * i % 23);  // beyond one block of input
  write_trace(tmp / "b.gz", text);
  EXPECT_TRUE(read_trace(tmp / "b.gz") == text);
}

}  // namespace
}  // namespace hpcdl::lab
