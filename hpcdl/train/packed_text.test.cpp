// Runs on documents that share rows (data.packing); chat_runs.test.cpp has conversations.

#include <gtest/gtest.h>

#include <cmath>

#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

struct PackedText : ::testing::Test {
  RunSummary train(const std::string& name, bool packing, const std::function<void(RunConfig&)>& change = {}) {
    RunConfig c;
    toy_config(c, tmp, name);
    std::string lines;
    for (int i = 0; i < 300; ++i)
      lines +=
          io::Json{{"text", "the " + std::string(static_cast<std::size_t>(i % 9 + 1), 'a') + " river"}}.dump() + "\n";
    io::write_file_atomic(tmp / "short.jsonl", lines);
    c.data.text = {(tmp / "short.jsonl").string()}, c.data.packing = packing;
    if (change) change(c);
    return run(c, {});
  }
  io::TempFolder tmp;
};

TEST_F(PackedText, documents_of_a_row_do_not_see_each_other) {
  const auto change = [](RunConfig& c) { c.train.steps = 1, c.train.eval_every = 1; };
  const auto packed = train("packed", true, change), together = train("together", false, change);
  EXPECT_EQ(packed.eval_tokens, together.eval_tokens);
  EXPECT_TRUE(std::isfinite(packed.eval_loss));
  EXPECT_GT(std::fabs(packed.eval_loss - together.eval_loss), 1e-5);
}

TEST_F(PackedText, a_gpu_has_the_losses_of_a_cpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  for (const auto family : {io::Family::llama, io::Family::gpt2}) {
    const std::string name(io::enum_name(family));
    const auto change = [&](const char* device) {
      return [=](RunConfig& c) { c.model.family = family, c.train.steps = 8, c.train.device = device; };
    };
    const auto cpu = train(name + "_cpu", true, change("cpu")), gpu = train(name + "_gpu", true, change("cuda"));
    EXPECT_NEAR(gpu.eval_loss, cpu.eval_loss, 1e-4 * cpu.eval_loss) << name;
    EXPECT_NEAR(gpu.loss, cpu.loss, 1e-4 * cpu.loss) << name;
  }
}

TEST_F(PackedText, a_stopped_run_goes_on_as_if_it_had_not_been) {
  train("whole", true);
  train("half", true, [](RunConfig& c) { c.checkpoint.every = 3; });
  std::filesystem::remove_all(tmp / "half" / "checkpoints" / "step_00000006");
  EXPECT_EQ(train("half", true).first_step, 3);
  expect_same_file(tmp / "whole/model/model.safetensors", tmp / "half/model/model.safetensors");
}

}  // namespace
}  // namespace hpcdl::train
