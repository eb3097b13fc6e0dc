#pragma once
// The format that all our traces must have: that of Perfetto and similar tools, and more.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "hpcdl/io/json.h"

namespace hpcdl::lab {

/// Types and keys of all events; no negative time; on every row of every process, events begin in order and do not
/// overlap.
inline void check_trace(const io::Json& trace) {
  ASSERT_TRUE(trace.at("traceEvents").is_array());
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  EXPECT_TRUE(trace.at("distributedInfo").at("rank").is_number_integer());
  EXPECT_TRUE(trace.at("distributedInfo").at("world_size").is_number_integer());
  std::map<std::pair<int, int>, double> end;
  std::map<int, double> counter;
  std::set<std::pair<int, int>> named;
  for (const auto& e : trace.at("traceEvents")) {
    ASSERT_TRUE(e.at("name").is_string());
    const std::string ph = e.at("ph");
    const std::pair<int, int> row{e.at("pid").get<int>(), e.at("tid").get<int>()};
    if (ph == "M") {
      named.insert(row);
      EXPECT_TRUE(e.at("args").is_object());
      continue;
    }
    const double ts = e.at("ts");
    EXPECT_GE(ts, 0) << e.dump();
    if (ph == "C") {
      EXPECT_TRUE(e.at("args").begin()->is_number());
      EXPECT_GE(ts, counter[row.first]);
      counter[row.first] = ts;
    } else if (ph == "X") {
      EXPECT_TRUE(e.at("cat").is_string());
      EXPECT_TRUE(named.count(row)) << "row " << row.second << " of rank " << row.first << " has no name";
      EXPECT_GE(e.at("dur").get<double>(), 0) << e.dump();
      EXPECT_GE(ts, end[row] - 1e-3) << e.dump();  // written in whole nanoseconds
      end[row] = ts + e.at("dur").get<double>();
    } else {
      ASSERT_TRUE(ph == "s" || ph == "f") << e.dump();
      EXPECT_TRUE(e.contains("id"));
    }
  }
}

/// Total microseconds by category; recorded steps under "step".
inline std::map<std::string, double> durations(const io::Json& trace) {
  std::map<std::string, double> sums;
  for (const auto& e : trace.at("traceEvents")) {
    if (e.at("ph") != "X") continue;
    const std::string name = e.at("name"), category = e.at("cat");
    sums[category == "user_annotation" && name.starts_with("step ") ? "step" : category] += e.at("dur").get<double>();
  }
  return sums;
}

}  // namespace hpcdl::lab
