#include "hpcdl/train/check_resumed.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::train {
namespace {

io::CheckpointInfo checkpoint() {
  io::CheckpointInfo info;
  info.path = "out/step_00000040";
  info.state = {.step = 40, .tokens = 4000, .seed = 1, .epoch = 2, .index = 9, .scalars = {{"loss", 1.5}}};
  return info;
}

std::string said(const io::CheckpointInfo& found, std::int64_t steps, std::int64_t rows) {
  try {
    check_resumed(found, steps, rows);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(check_resumed, accepts_the_files_of_a_run) {
  EXPECT_EQ(said(checkpoint(), 40, 10), "") << "a finished run";
  EXPECT_EQ(said(checkpoint(), 0, 10), "") << "length given in epochs";
  auto more = checkpoint();
  more.state.scalars = {{"loss", 0},           {"epoch_loss", 12.5},  {"epoch_correct", 3.25}, {"epoch_counted", 10},
                        {"epoch_done", 1},     {"loss_scale", 65536}, {"good_steps", 12},      {"skipped_steps", 0},
                        {"evaluation_due", 0}, {"whatever", -1e300}};
  EXPECT_EQ(said(more, 100, 10), "");
}

TEST(check_resumed, names_file_key_and_both_values) {
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find("out/step_00000040/state.json"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(said(checkpoint(), 39, 10), "key \"step\": expected at most the 39 of train.steps, found 40");
  expect(said(checkpoint(), 40, 9), "key \"index\": expected less than the 9 rows of an epoch, found 9");
  auto late = checkpoint();
  late.state.epoch = 4001;
  expect(said(late, 40, 10), "key \"epoch\": expected at most 4000, found 4001");
  late.state.tokens = std::int64_t{1} << 48, late.state.epoch = std::int64_t{1} << 47;
  expect(said(late, 40, 10), "key \"epoch\": expected at most 28147497671065, found 140737488355328");
  const std::pair<const char*, double> scalars[] = {
      {"epoch_counted", -1},  {"interval_counted", 1e300},  {"epoch_counted", 2.5}, {"epoch_correct", -3},
      {"epoch_done", 2},      {"evaluation_due", 0.5},      {"loss_scale", 0},      {"loss_scale", -8},
      {"loss_scale", 1e39},   {"good_steps", 2147483648.0}, {"good_steps", -1},     {"skipped_steps", 1e10},
      {"skipped_steps", 0.1}, {"interval_correct", 1e18}};
  for (const auto& [name, value] : scalars) {
    auto bad = checkpoint();
    bad.state.scalars[name] = value;
    expect(said(bad, 40, 10), std::string("scalars: key \"") + name + "\": expected a ");
  }
}

}  // namespace
}  // namespace hpcdl::train
