#include "hpcdl/train/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace hpcdl::train {
namespace {

TEST(progress, plain_lines_come_first_last_and_not_too_often) {
  std::vector<std::string> lines;
  const Console console{[&](std::string_view l) { lines.emplace_back(l); }, {}};
  Progress p(console);
  for (int step = 1; step <= 100; ++step) p.show({.step = step, .steps = 100, .loss = 1});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("step 1/100 "));
  EXPECT_TRUE(lines[1].starts_with("step 100/100 "));
}

TEST(progress, the_line_says_what_matters) {
  const auto line = progress_line({.step = 3,
                                   .steps = 9,
                                   .loss = 1.5,
                                   .lr = 1e-3,
                                   .grad_norm = 2,
                                   .per_second = 12'300,
                                   .sol_percent = 61,
                                   .data_wait_percent = 0.25,
                                   .seconds_left = 90});
  for (const char* part : {"step 3/9", "loss 1.5000", "12.30K tok/s", "61% of light", "1m 30s left"})
    EXPECT_NE(line.find(part), std::string::npos) << line;
  EXPECT_NE(progress_line({.comm_percent = 31, .hidden_percent = 84}).find("comm 31% (84% hidden)"), std::string::npos);
  EXPECT_EQ(progress_line({}).find("comm"), std::string::npos) << "one rank";
  EXPECT_EQ(line.find("epoch"), std::string::npos) << "not counted";
  const auto images = progress_line({.per_second = 900, .unit = "img/s", .epoch = 1.5, .accuracy = 0.6251});
  for (const char* part : {"epoch 1.50", "accuracy 62.51%", "900 img/s"})
    EXPECT_NE(images.find(part), std::string::npos) << images;
  EXPECT_EQ(progress_line({.sol_percent = -1}).find("light"), std::string::npos);
  EXPECT_NE(progress_line({.grad_norm = -NAN}).find("norm not finite"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::train
