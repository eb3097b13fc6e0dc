#include "hpcdl/train/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace hpcdl::train {
namespace {

TEST(progress, lines_that_stay_come_first_last_and_not_too_often) {
  for (const bool terminal : {false, true}) {
    std::vector<std::string> lines;
    int bars = 0, cleared = 0;
    Console console{[&](std::string_view l) { lines.emplace_back(l); }};
    if (terminal) console.bar = [&](const Bar* b) { ++(b ? bars : cleared); };
    Progress p(console);
    EXPECT_EQ(p.has_bar(), terminal);
    for (int step = 1; step <= 100; ++step) {
      p.show(progress_bar({.step = step, .steps = 100, .loss = 1}));
      p.stay({.step = step, .steps = 100, .loss = 1});
    }
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_TRUE(lines[0].starts_with("step 1/100 "));
    EXPECT_TRUE(lines[1].starts_with("step 100/100 "));
    EXPECT_EQ(bars, terminal ? 100 : 0);
    EXPECT_EQ(cleared, terminal ? 1 : 0) << "the bar must be cleared after the last step";
  }
}

TEST(progress, the_line_says_what_matters) {
  const StepNumbers n{.step = 3,
                      .steps = 9,
                      .loss = 1.5,
                      .lr = 1e-3,
                      .grad_norm = 2,
                      .per_second = 12'300,
                      .sol_percent = 61,
                      .data_wait_percent = 0.25,
                      .seconds_left = 90};
  const auto line = progress_line(n);
  for (const char* part : {"step 3/9", "loss 1.5000", "12.30K tok/s", "61% of light", "1m 30s left"})
    EXPECT_NE(line.find(part), std::string::npos) << line;
  for (const int columns : {24, 30, 36, 40, 50, 60, 80, 100}) {
    const auto narrow = progress_line(n, columns);
    EXPECT_LE(narrow.size(), static_cast<std::size_t>(columns));
    EXPECT_NE(narrow.find("1m 30s left"), std::string::npos) << narrow;
  }
  EXPECT_NE(progress_line({.comm_percent = 31, .hidden_percent = 84}).find("comm 31% (84% hidden)"), std::string::npos);
  EXPECT_EQ(progress_line({}).find("comm"), std::string::npos) << "one rank";
  EXPECT_EQ(line.find("epoch"), std::string::npos) << "epochs are not counted";
  const auto images = progress_line({.per_second = 900, .unit = "img/s", .epoch = 1.5, .accuracy = 0.6251});
  for (const char* part : {"epoch 1.50", "accuracy 62.51%", "900 img/s"})
    EXPECT_NE(images.find(part), std::string::npos) << images;
  EXPECT_EQ(progress_line({.sol_percent = -1}).find("light"), std::string::npos);
  EXPECT_NE(progress_line({.grad_norm = -NAN}).find("norm not finite"), std::string::npos);
}

TEST(progress, a_narrow_line_keeps_the_time) {
  const StepNumbers n{.step = 1076, .steps = 1500, .loss = 2.2126, .per_second = 36'860, .seconds_left = 7};
  EXPECT_EQ(progress_line(n, 60), "step 1076/1500  loss 2.2126  36.86K tok/s  7 s left");
  EXPECT_EQ(progress_line(n, 40), "step 1076/1500  loss 2.2126  7 s left");
  EXPECT_EQ(progress_line(n, 30), "1076/1500  2.213  7 s left");
}

TEST(progress, the_last_line_tells_what_the_run_took_and_no_time_left) {
  const auto line = progress_line({.step = 9, .steps = 9, .seconds = 200});
  EXPECT_NE(line.find("in 3m 20s"), std::string::npos) << line;
  EXPECT_EQ(line.find("left"), std::string::npos) << line;
  EXPECT_LT(progress_bar({.step = 9, .steps = 9}).seconds_left, 0);
  EXPECT_EQ(progress_line({.step = 8, .steps = 9, .seconds_left = 1e-7}).find("0 us"), std::string::npos);
}

TEST(progress, tokenizing_is_shown_in_words) {
  std::vector<Bar> bars;
  const auto progress = tokenize_progress({.line = {}, .bar = [&](const Bar* b) {
                                             if (b) bars.push_back(*b);
                                           }});
  progress({"merge", 25, 100});
  progress({"encode", 1 << 20, 4 << 20});
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_EQ(bars[0].what, "learning tokens");
  EXPECT_EQ(bars[0].done, 0.25);
  EXPECT_EQ(bars[1].what, "tokenizing");
  for (const auto& bar : bars)
    EXPECT_TRUE(bar.facts.empty()) << "no rate may be shown right after the start: " << bar.facts[0].text;
}

}  // namespace
}  // namespace hpcdl::train
