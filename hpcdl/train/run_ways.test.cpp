// The ways of a run are in its checkpoints, and a resumed run computes in them or says why it does not.

#include "hpcdl/train/run_ways.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/models/family.h"
#include "hpcdl/ops/way_names.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/train/check_config.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_for_tests.h"

namespace hpcdl::train {
namespace {

/// What a run says.
struct Heard {
  std::vector<std::string> lines;
  Hooks hooks(std::function<void(std::int64_t)> after_step = {}) {
    return {.console = {.line = [this](std::string_view line) { lines.emplace_back(line); }},
            .speed_of_light = {},
            .after_step = std::move(after_step)};
  }
  bool about(std::string_view part) const {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const auto& line) { return line.find(part) != std::string::npos; });
  }
  std::string all() const {
    std::string text;
    for (const auto& line : lines) text += line + "\n";
    return text;
  }
};

void stop_after(RunConfig& c, Heard& heard, std::int64_t last) {
  const auto done = run(c, heard.hooks([&](std::int64_t step) {
    if (step == last) ::raise(SIGTERM);
  }));
  ASSERT_TRUE(done.stopped);
}

io::UsedWays ways_of(const std::filesystem::path& checkpoint) {
  return io::read_checkpoint_info(checkpoint).state.ways.value();
}

TEST(run_ways, a_cpu_saves_its_instruction_set_and_says_if_it_is_another) {
  if (simd::best_isa() == simd::IsaKind::scalar) GTEST_SKIP() << "there is only one instruction set";
  const io::TempFolder tmp;
  RunConfig first, same, other;
  toy_config(first, tmp, "run"), toy_config(same, tmp, "run"), toy_config(other, tmp, "run");
  Heard before, then, at_last;
  stop_after(first, before, 2);
  const auto used = ways_of(tmp / "run/checkpoints/step_00000002");
  const std::string best(simd::isa_name(simd::best_isa()));
  EXPECT_EQ(used.device, "cpu");
  ASSERT_EQ(used.calls.size(), 1u);
  EXPECT_EQ(used.calls[0].key, (WayKey{"cpu", {}}));
  EXPECT_EQ(used.calls[0].way, best);
  stop_after(same, then, 4);
  EXPECT_FALSE(then.about("last bits")) << then.all();
  ASSERT_TRUE(simd::set_active_isa(simd::IsaKind::scalar));
  run(other, at_last.hooks());
  simd::set_active_isa(simd::best_isa());
  EXPECT_TRUE(at_last.about("every op in the way \"" + best + "\", now \"scalar\"")) << at_last.all();
  EXPECT_TRUE(at_last.about("the last bits of results can differ")) << at_last.all();
  EXPECT_TRUE(at_last.about("HPCDL_ISA=" + best + " computes as before")) << at_last.all();
  EXPECT_EQ(ways_of(tmp / "run/checkpoints/step_00000006").calls[0].way, "scalar");
}

TEST(run_ways, mistakes_in_the_config_are_told) {
  const auto error = [](const std::string& ways, const std::string& device) {
    RunConfig c;
    c.train.ways = ways, c.train.device = device;
    return error_of([&] { check_config(c); });
  };
  EXPECT_NE(error("attention=own", "cpu").find("train.ways = \"attention=own\" is for GPUs"), std::string::npos);
  EXPECT_NE(error("relu=own", "cuda")
                .find("\"relu\": the ops with several are attention, conv2d, fp8_linear, gemm, int4_linear"),
            std::string::npos)
      << error("relu=own", "cuda");
  EXPECT_NE(error("attention", "cuda").find("expected op=way"), std::string::npos);
  if (!all_ways()[0].names.empty()) {
    EXPECT_NE(error("conv2d=cudann", "cuda").find("conv2d has no way \"cudann\": its ways are own; cudnn; gemm"),
              std::string::npos);
    EXPECT_EQ(error("attention=cudnn conv2d=cudnn 2 gemm=cublasLt 16", "cuda"), "no error");
  }
}

constexpr std::int64_t kBatch = 2, kLength = 128;

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    io::ModelConfig c;
    c.family = io::Family::gpt2;
    c.layers = 2, c.heads = 4, c.width = 256, c.context = kLength, c.vocab = 512;
    models::resolve(c);
    model = std::make_unique<models::LanguageModel>(models::LanguageModel::create(c, 3, true));
    step = std::make_unique<TrainStep>(
        *model, pool, StepOptions{.batch = kBatch, .length = kLength, .forward = {.compute = DType::bf16}},
        Device::cuda(0));
  }
  io::UsedWays set(const WaySources& sources) {
    lines.clear();
    return set_ways(*step, sources, [&](std::string_view line) { lines += std::string(line) + "\n"; }).value();
  }
  Pool pool{2};
  std::unique_ptr<models::LanguageModel> model;
  std::unique_ptr<TrainStep> step;
  std::string lines;
};

TEST_F(OnGpu, preferred_ways_are_used_and_resumed) {
  const auto usual = set({}), plain = set({.preferred = "gemm=plain"});
  EXPECT_EQ(lines, "");
  ASSERT_FALSE(usual.calls.empty());
  EXPECT_NE(usual, plain);
  int products = 0;
  for (const auto& c : plain.calls)
    if (c.key.op == "gemm") {
      ++products;
      EXPECT_EQ(c.way, "plain") << c.call;
    }
  EXPECT_GT(products, 4);
  EXPECT_EQ(set({.preferred = "", .before = plain}), plain) << "the ways of the checkpoint are told";
  EXPECT_EQ(lines, "");
  const auto tuned =
      std::make_shared<const Ways>(WayNames{.calls = {{plain.calls.back().key, "plain"}}, .preferred = {}});
  EXPECT_EQ(set({.preferred = "", .before = usual, .tuned = tuned}), usual) << "before those that were tuned later";
  EXPECT_EQ(lines, "");
  set({.preferred = "gemm=plain", .before = usual});
  EXPECT_NE(lines.find("some calls are computed in other ways than before this checkpoint: before, gemm bf16"),
            std::string::npos)
      << lines;
}

TEST_F(OnGpu, ways_that_cannot_be_had_are_named) {
  auto before = set({.preferred = "gemm=plain"});
  const auto usual = set({});
  auto gone = std::find_if(before.calls.begin(), before.calls.end(), [](const auto& c) { return c.key.op == "gemm"; });
  ASSERT_NE(gone, before.calls.end());
  gone->way = "of another version";
  const auto now = set({.preferred = "", .before = before});
  EXPECT_NE(lines.find("because the first is not available here"), std::string::npos) << lines;
  EXPECT_NE(lines.find(gone->call + " in the way \"of another version\", now \""), std::string::npos) << lines;
  EXPECT_NE(lines.find("the last bits of results can differ"), std::string::npos) << lines;
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  EXPECT_EQ(now.calls.size(), before.calls.size());
  before = usual;
  before.device = "NVIDIA Imaginary";
  EXPECT_EQ(set({.preferred = "", .before = before}), usual);
  EXPECT_NE(lines.find("was written on NVIDIA Imaginary, and this is "), std::string::npos) << lines;
  set({.preferred = "attention=decode"});
  EXPECT_NE(lines.find("this GPU cannot compute attention"), std::string::npos) << lines;
}

/// What is noted without running is what a run does.
TEST_F(OnGpu, a_dry_run_notes_what_a_run_uses) {
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  const auto* pass = step->programs(1)[0];
  for (std::size_t i = 0; i < pass->planned()->inputs.size(); ++i) {
    const OwnedTensor zeros(pass->input(i).spec());
    std::fill_n(zeros.tensor.ptr<std::byte>(), zeros.tensor.bytes(), std::byte{0});
    copy(s, pass->input(i), zeros.tensor);
  }
  for (const char* preferred : {"", "gemm=plain attention=own"}) {
    s.set_ways(
        std::make_shared<const Ways>(WayNames{.calls = {}, .preferred = parse_preferred_ways(preferred, "the test")}));
    WayNotes dry, wet;
    {
      const WithWayNotes with(s, dry);
      pass->prepare(s);
    }
    {
      const WithWayNotes with(s, wet);
      pass->run(s);
      s.synchronize();
    }
    const auto a = dry.all(), b = wet.all();
    EXPECT_GT(a.size(), 4u);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [key, note] : a) {
      ASSERT_TRUE(b.contains(key)) << note.call;
      EXPECT_EQ(b.at(key).used, note.used) << note.call;
      EXPECT_FALSE(note.records.empty()) << note.call;
    }
  }
}

/// A whole run: its checkpoint holds the ways that it was told, and a run that is not told resumes with them, to the
/// byte.
TEST(run_ways, a_gpu_resumes_with_the_ways_of_its_checkpoint) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const io::TempFolder tmp;
  RunConfig whole, first, second;
  for (auto* c : {&whole, &first, &second}) {
    toy_config(*c, tmp, c == &whole ? "whole" : "stopped");
    c->train.device = "cuda", c->train.dtype = Compute::bf16;
    if (c != &second) c->train.ways = "gemm=plain attention=plain";
  }
  run(whole, {});
  Heard before, after;
  stop_after(first, before, 4);
  const auto used = ways_of(tmp / "stopped/checkpoints/step_00000004");
  ASSERT_FALSE(used.calls.empty());
  for (const auto& c : used.calls) EXPECT_EQ(c.way, "plain") << c.call;
  run(second, after.hooks());
  EXPECT_FALSE(after.about("last bits")) << after.all();
  EXPECT_EQ(ways_of(tmp / "stopped/checkpoints/step_00000006"), used);
  expect_same_run(tmp / "whole", tmp / "stopped", "step_00000006");
}

}  // namespace
}  // namespace hpcdl::train
