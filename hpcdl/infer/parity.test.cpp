// What an engine makes of many prompts at a time, with transformers as the judge: the same tokens, for every family.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {
namespace {

using Json = nlohmann::json;

/// A logit that is below another one by less than this share of their range may come before it by rounding.
constexpr double kTie = 1e-4;
constexpr double kLogprob = 2e-4;

class Parity : public testing::Test {
 protected:
  void SetUp() override {
    python_ = io::find_python("torch, transformers, safetensors");
    if (!python_) GTEST_SKIP() << "no Python with torch, transformers and safetensors; set HPCDL_PYTHON";
  }
  std::string run(const std::string& verb) const {
    bool ok = false;
    const std::string source = HPCDL_SOURCE_DIR;
    const auto script = io::read_file(source + "/hpcdl/infer/parity.py");
    auto out = io::run_python(*python_, script,
                              verb + " " + models_.path().string() + " " + source + "/hpcdl/models/golden", ok);
    EXPECT_TRUE(ok) << out;
    return out;
  }

  const io::TempFolder models_;
  std::optional<std::string> python_;
};

/// All prompts of a folder in one engine.
void answer(const std::filesystem::path& folder) {
  const auto asked = Json::parse(io::read_file(folder / "prompts.json"));
  const auto& prompts = asked["prompts"];
  Pool pool(2);
  const auto model = models::LanguageModel::open(folder);
  Engine engine(model, pool, {.sequences = std::ssize(prompts), .vocab = asked["limit"].get<std::int64_t>()});
  std::vector<Heard> heard(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i)
    submit(engine, {.prompt = prompts[i], .tokens = asked["new"].get<int>(), .sampling = {.logprobs = 0}}, heard[i]);
  engine.run();
  Json told{{"answers", Json::array()}, {"logprobs", Json::array()}};
  for (const auto& h : heard) {
    EXPECT_EQ(std::ssize(h.ids), asked["new"].get<int>()) << h.end.message;
    told["answers"].push_back(h.ids), told["logprobs"].push_back(h.logprobs);
  }
  io::write_file_atomic(folder / "answers.json", told.dump());
}

TEST_F(Parity, ragged_prompts_continue_as_transformers_continues_them) {
  run("make");
  for (const auto& entry : std::filesystem::directory_iterator(models_.path())) answer(entry.path());
  std::istringstream lines(run("judge"));
  int models = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('{')) continue;  // a warning of a library
    ++models;
    const auto seen = Json::parse(line);
    EXPECT_EQ(seen["tokens"], 32 * 64);
    EXPECT_GE(seen["best"].get<int>(), 32 * 64 * 99 / 100) << line << ": ties are rare";
    EXPECT_LE(seen["gap"].get<double>(), kTie) << line;
    EXPECT_LE(seen["distance"].get<double>(), kLogprob) << line;
  }
  EXPECT_EQ(models, 13);
}

}  // namespace
}  // namespace hpcdl::infer
