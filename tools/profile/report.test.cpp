#include "tools/profile/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/profile/advice.h"
#include "tools/profile/profile_for_tests.h"
#include "tools/profile/trace.h"

namespace hpcdl::lab {
namespace {

constexpr double kNs = 1e-12;  // times are whole nanoseconds: sums differ only by rounding

TEST(report, layers_are_folded_and_everything_adds_up) {
  const auto r = report(toy_profile(4), toy_roofs());
  EXPECT_EQ(r.steps, 4);
  EXPECT_NEAR(r.step_seconds, 100e-6, kNs);
  EXPECT_NEAR(r.plain_seconds, 80e-6, kNs);
  EXPECT_NEAR(r.data, 10e-6, kNs);
  EXPECT_NEAR(r.phases[0], 40e-6, kNs);
  EXPECT_NEAR(r.phases[2], 40e-6, kNs);
  EXPECT_NEAR(r.gap_seconds(), 10e-6, kNs);
  EXPECT_NEAR(r.data + r.phases[0] + r.phases[2] + r.gap_seconds(), r.step_seconds, kNs);
  EXPECT_NEAR(r.light, 24e-6, kNs);
  EXPECT_NEAR(r.between_steps, 3e-6, kNs);
  ASSERT_EQ(r.rows.size(), 2u);
  EXPECT_EQ(r.records_by_time.size(), 4u);
  for (const auto& row : r.rows) {
    const bool backward = row.phase == Phase::backward;
    EXPECT_EQ(row.label(), backward ? "work.backward layers.*.mlp" : "work layers.*.mlp");
    EXPECT_EQ(row.calls, 2);
    EXPECT_NEAR(row.seconds, 40e-6, kNs);
    EXPECT_NEAR(row.light, backward ? 16e-6 : 8e-6, kNs);
    EXPECT_NEAR(row.lost(), backward ? 24e-6 : 32e-6, kNs);
    EXPECT_EQ(row.bound, Bound::compute);
    EXPECT_NEAR(row.busy, 0.75, 1e-9);
    EXPECT_NEAR(row.balance, 0.75, 1e-9);
  }
}

TEST(report, idle_time_is_named_after_what_ends_it) {
  const auto r = report(toy_profile(1), toy_roofs());
  ASSERT_EQ(r.gaps.size(), 2u);
  EXPECT_NEAR(r.gaps[0].seconds, 5e-6, kNs);
  EXPECT_EQ(r.gaps[0].before, "end of step");
  EXPECT_EQ(r.gaps[1].before, "work layers.0.mlp");
}

TEST(report, overhead_is_the_median_over_neighbours) {
  auto profile = toy_profile(3);
  EXPECT_EQ(overhead(profile.steps).pairs, 3);
  EXPECT_NEAR(overhead(profile.steps).median, 0.25, 1e-9);
  std::swap(profile.steps[2], profile.steps[3]);  // plain first
  profile.steps[1].end += 1'000'000;              // one noisy neighbour does not move the median
  EXPECT_NEAR(overhead(profile.steps).median, 0.25, 1e-9);
  profile.steps.resize(1);
  EXPECT_EQ(overhead(profile.steps).pairs, 0);
}

TEST(report, the_peak_of_memory_names_its_record) {
  const auto profile = toy_profile(1);
  const auto peak = memory_peak(profile);
  EXPECT_EQ(peak.live, 896);  // two slots of 400 bytes on 64-byte lines
  EXPECT_EQ(peak.label, "work layers.1.mlp");
  EXPECT_EQ(profile.programs[0].live_bytes, (std::vector<std::int64_t>{448, 896, 896, 448}));
}

TEST(report, json_and_text_tell_the_same) {
  const auto r = report(toy_profile(2), toy_roofs());
  const auto j = report_json(r);
  EXPECT_EQ(j.at("rows").size(), 2u);
  EXPECT_EQ(j.at("records").size(), 4u);
  EXPECT_NEAR(j.at("step_ms").get<double>(), 0.1, 1e-9);
  EXPECT_NEAR(j.at("rows")[0].at("step_ms_at_roof").get<double>(),
              j.at("rows")[0].at("phase") == "forward" ? 0.068 : 0.076, 1e-9);
  const auto text = report_text(r, {.rows = 1, .by_record = false, .advice = true});
  for (const char* part : {"work", "layers.*.mlp", "and 1 more", "overhead of recording: +25.00 %", "threads: 75.0 %",
                           "lost against the roof", "1.47x", "idle in between"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

TEST(report, a_gpu_that_idles_within_a_program_waits_for_launches) {
  const auto r = report(toy_gpu_profile(3), toy_roofs());
  EXPECT_NEAR(r.launch_gaps, 14e-6, kNs) << "two in each of four records, two between them";
  EXPECT_EQ(r.kernels, 9);
  EXPECT_LT(report(toy_profile(1), toy_roofs()).launch_gaps, 0) << "a CPU has no launch gaps";
  const auto j = report_json(r);
  EXPECT_NEAR(j.at("gpu").at("launch_gaps_share").get<double>(), 0.14, 1e-6);
  const auto text = report_text(r, {});
  for (const char* part : {"launch gaps", "14.0 %", "9 kernels, copies and fills per step; timed by hand"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  auto events = toy_gpu_profile(1);
  events.steps[0].device.clear();
  EXPECT_NEAR(launch_gaps(events), 6e-6, kNs) << "event times cover only records";
}

TEST(advice, the_greatest_loss_comes_first_and_has_a_cause) {
  const auto r = report(toy_profile(2), toy_roofs());
  const auto list = advice(r.rows, r.roofs, 1);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].label, "work layers.*.mlp");
  EXPECT_NEAR(list[0].lost, 32e-6, kNs);
  EXPECT_NE(list[0].text.find("uneven work"), std::string::npos) << list[0].text;

  Row slow;
  slow.calls = 1, slow.seconds = 1e-3, slow.light = 0.5e-3, slow.flops = 1e9, slow.bound = Bound::compute;
  EXPECT_NE(advice({slow}, r.roofs)[0].text.find("bf16"), std::string::npos);
  slow.phase = Phase::update, slow.bound = Bound::memory;
  EXPECT_NE(advice({slow}, r.roofs)[0].text.find("accumulate"), std::string::npos);
  slow.light = 0.95e-3;
  EXPECT_NE(advice({slow}, r.roofs)[0].text.find("near its roof"), std::string::npos);
  slow.seconds = slow.light;
  EXPECT_TRUE(advice({slow}, r.roofs).empty());
}

TEST(report, no_tick_of_the_timeline_is_cut_off) {
  const auto page = report_html(report(toy_profile(1), toy_roofs()), toy_profile(1), "");
  EXPECT_NE(page.find("text-anchor=\"middle\">0.08 ms<"), std::string::npos);
  EXPECT_NE(page.find("text-anchor=\"end\">0.1 ms<"), std::string::npos) << "at the edge of the image";
  EXPECT_NE(page.find("th{color:var(--soft);font-weight:500;white-space:normal"), std::string::npos)
      << "heads of columns may take two lines, so that the last column is seen";
}

TEST(report, wide_parts_of_the_page_scroll_by_themselves) {
  const auto page = report_html(report(toy_profile(1), toy_roofs()), toy_profile(1), "");
  for (const char* part : {"<div class=\"scroll\"><svg", "<div class=\"scroll\"><table"})
    EXPECT_NE(page.find(std::string("<p class=\"hint\">Swipe sideways to see all of it &rarr;</p>") + part),
              std::string::npos)
        << part;
}

TEST(report, one_step_is_no_steps) {
  const auto profile = toy_profile(1);
  const auto r = report(profile, toy_roofs());
  EXPECT_NE(report_html(r, profile, "").find("1 recorded step on 2 threads"), std::string::npos);
  EXPECT_NE(report_text(r, {}).find("median of 1 pair of"), std::string::npos);
}

TEST(advice, what_is_in_16_bits_is_not_sent_there) {
  for (const auto dtype : {DType::bf16, DType::f16}) {
    auto profile = toy_profile(2);
    for (auto& o : profile.programs[0].program.operands) o.spec.dtype = dtype;
    for (const auto& row : report(profile, toy_roofs()).rows) EXPECT_EQ(row.dtype, dtype);
  }
}

TEST(steps, numbers_leave_a_scope_and_nothing_else_does) {
  EXPECT_EQ(folded_scope("layers.12.attn.c_attn"), "layers.*.attn.c_attn");
  EXPECT_EQ(folded_scope("head.ln_1"), "head.ln_1");
  EXPECT_EQ(folded_scope(""), "");
  EXPECT_TRUE(is_collective("all_reduce.sum"));
  EXPECT_FALSE(is_collective("linear"));
}

TEST(report, an_exchange_is_compared_with_the_network_or_said_not_to_be) {
  auto profile = toy_profile(1);
  auto& p = profile.programs[0].program;
  reduce_over_two_ranks(p, 3);
  p.records[3].cost = {.updates = 400, .wire = 400};
  const auto row_of = [](const Report& r) {
    return *std::find_if(r.rows.begin(), r.rows.end(),
                         [](const Row& row) { return row.name.starts_with("all_reduce"); });
  };
  const auto blind = report(profile, toy_roofs());
  EXPECT_EQ(row_of(blind).roof_text(), "network not measured");
  EXPECT_EQ(row_of(blind).bound, Bound::network);
  EXPECT_EQ(row_of(blind).lost(), 0) << "without roofs no loss can be computed";
  EXPECT_NE(report_text(blind, {}).find("run hpcdl bench comm"), std::string::npos);
  EXPECT_NE(report_json(blind).dump().find("\"of_roof\":null"), std::string::npos);
  EXPECT_NE(trace_text(profile, toy_roofs()).json.find("\"network\":\"not measured\""), std::string::npos);
  auto roofs = toy_roofs();
  roofs.networks = {{"cpu", 2, 1, 1e8, 1e-6}};
  const auto r = report(profile, roofs);
  EXPECT_NEAR(row_of(r).light, 1e-6 + 400 / 1e8, kNs);
  EXPECT_EQ(row_of(r).bound, Bound::network);
  EXPECT_EQ(row_of(r).roof_text(), "25.0 %");
  EXPECT_EQ(report_text(r, {}).find("bench comm"), std::string::npos);
}

TEST(report, an_exchange_is_hidden_as_far_as_other_records_run) {
  auto profile = toy_profile(3);
  profile.world = 2;
  profile.programs[0].program.records[3].op = "all_reduce.toy";
  for (auto& step : profile.steps) {
    if (!step.recorded) continue;
    const auto& times = step.runs[0].times;  // of 20 us each
    step.runs[0].exchanges = {{times[1].begin, times[2].begin, 2}, {times[2].begin, times[3].begin + 5'000, 3}};
  }
  const auto r = report(profile, toy_roofs());
  EXPECT_NEAR(r.exchange, 45e-6, kNs);
  EXPECT_NEAR(r.exchange_waited, 5e-6, kNs);
  EXPECT_NEAR(report_json(r).at("exchange").at("hidden").get<double>(), 40.0 / 45, 1e-9);
  EXPECT_FALSE(report_json(report(toy_profile(3), toy_roofs())).contains("exchange")) << "one rank";
  const auto trace = trace_text(profile, toy_roofs()).json;
  EXPECT_NE(trace.find("\"gradients of all ranks\""), std::string::npos);
  EXPECT_NE(trace.find("\"name\":\"all_reduce.toy.backward\",\"cat\":\"exchange\""), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::lab
