#include "tools/roofline/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/roofline/report_for_tests.h"

namespace hpcdl::lab::roofline {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(report, json_says_everything) {
  const auto report = report_for_tests({"softmax"}, 0.8);
  const auto j = to_json(report);
  EXPECT_EQ(j["machine"]["cpu"], "Test & <Co>");
  EXPECT_EQ(j["device"], "cpu");
  EXPECT_EQ(j["roofs"]["f32"], 500e9);
  EXPECT_EQ(j["roofs"]["memory"], 60e9);
  EXPECT_EQ(j["roofs"]["caches"][2]["name"], "L3");
  EXPECT_EQ(j["above_roof"], 0);
  ASSERT_EQ(j["rows"].size(), report.rows.size());
  const auto& seed = j["rows"][0];
  EXPECT_EQ(seed["source"], "seed");
  EXPECT_EQ(seed["op"], "add");
  EXPECT_DOUBLE_EQ(seed["intensity"].get<double>(), 1.0 / 12);
  EXPECT_EQ(seed["bound"], "memory");
  EXPECT_NEAR(seed["share"].get<double>(), 0.8, 1e-12);
  EXPECT_NEAR(seed["seconds"].get<double>() * 0.8, seed["light_seconds"].get<double>(), 1e-15);
  EXPECT_EQ(seed["above_roof"], false);
}

TEST(report, what_was_not_measured_is_null) {
  auto report = report_for_tests({"add"}, 0.8);
  for (auto& r : report.rows) r.seconds = 0;
  const auto j = to_json(report);
  for (const char* key : {"seconds", "share", "flops_per_second", "bytes_per_second"})
    EXPECT_TRUE(j["rows"][0][key].is_null()) << key;
  EXPECT_EQ(to_text(report, false).find("of roof"), std::string::npos);
}

TEST(report, csv_has_one_line_for_each_row) {
  auto report = report_for_tests({"add"}, 0.5);
  report.rows[0].shape = "1,2";
  const auto lines = lines_of(to_csv(report));
  ASSERT_EQ(lines.size(), report.rows.size() + 1);
  EXPECT_NE(lines[1].find("seed,add,\"1,2\",f32,fwd,"), std::string::npos) << lines[1];
  const auto columns = std::count(lines[0].begin(), lines[0].end(), ',');
  for (std::size_t i = 2; i < lines.size(); ++i)
    EXPECT_EQ(std::count(lines[i].begin(), lines[i].end(), ','), columns) << lines[i];
}

TEST(report, the_table_is_aligned_and_plain_without_a_terminal) {
  const auto report = report_for_tests({"linear", "softmax"}, 0.7);
  const auto text = to_text(report, false);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(to_text(report, true).find('\x1b'), std::string::npos);
  std::size_t at = std::string::npos;
  int rows = 0;
  for (const auto& line : lines_of(text)) {
    if (line.find("70 %") == std::string::npos || line.find("█") == std::string::npos) continue;
    if (line.find("linear") == std::string::npos && line.find("softmax+") == std::string::npos) continue;
    if (at == std::string::npos) at = line.find("70 %");
    EXPECT_EQ(line.find("70 %"), at) << line;
    ++rows;
  }
  EXPECT_GT(rows, 20);
  for (const char* words : {"0.083", "683", "The seed", "ridge", "median 70 % of the roof"})
    EXPECT_NE(text.find(words), std::string::npos) << words;
}

TEST(report, a_fault_is_said_in_words) {
  auto report = report_for_tests({"add"}, 0.5);
  report.rows[4].seconds = report.rows[4].light.seconds / 1.2;
  EXPECT_EQ(report.faults(), 1);
  const auto text = to_text(report, false);
  EXPECT_NE(text.find("ABOVE ITS ROOF"), std::string::npos);
  EXPECT_NE(text.find("1 above their roof"), std::string::npos);
  EXPECT_EQ(to_json(report)["rows"][4]["above_roof"], true);
}

TEST(report, numbers_have_three_digits) {
  EXPECT_EQ(show_seconds(11.14e-3), "11.1 ms");
  EXPECT_EQ(show_seconds(123.4e-6), "123 us");
  EXPECT_EQ(show_seconds(0), "0.00 ns");
  EXPECT_EQ(show_seconds(9.996e-3), "10.0 ms");
  EXPECT_EQ(show_seconds(99.96e-3), "100 ms");
  EXPECT_EQ(show_seconds(999.7e-6), "1.00 ms");
  EXPECT_EQ(show_seconds(999.7e-9), "1.00 us");
  EXPECT_EQ(show_seconds(0.9997), "1.00 s");
  EXPECT_EQ(show_rate(47.61e9, "B/s"), "47.6 GB/s");
  EXPECT_EQ(show_rate(1.04e12, "FLOP/s"), "1040 GFLOP/s");
  EXPECT_EQ(show_intensity(1.0 / 12), "0.083");
  EXPECT_EQ(show_intensity(4096.0 / 6), "683");
}

}  // namespace
}  // namespace hpcdl::lab::roofline
