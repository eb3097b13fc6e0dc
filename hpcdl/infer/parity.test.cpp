// What an engine makes of many prompts at a time, with transformers as the judge: the same tokens, for every family.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {
namespace {

using Json = nlohmann::json;

/// Two logits nearer to each other than this share of their range may change places by rounding.
constexpr double kTie = 1e-4;

/// Compares up to the first difference, which must be a tie. Returns the number of tokens that were compared.
int compare(const Json& want, std::size_t text, const Heard& got) {
  const auto& answer = want["answers"][text];
  EXPECT_EQ(got.ids.size(), answer.size()) << got.end.message;
  for (std::size_t i = 0; i < got.ids.size() && i < answer.size(); ++i) {
    SCOPED_TRACE("prompt " + std::to_string(text) + ", token " + std::to_string(i));
    if (got.ids[i] != answer[i].get<std::int32_t>()) {
      EXPECT_LE(want["gaps"][text][i].get<double>(), kTie);
      EXPECT_EQ(got.ids[i], want["seconds"][text][i].get<std::int32_t>());
      return static_cast<int>(i);
    }
    EXPECT_NEAR(got.logprobs[i], want["logprobs"][text][i].get<double>(), 2e-4);
  }
  return static_cast<int>(answer.size());
}

TEST(Parity, ragged_prompts_continue_as_transformers_continues_them) {
  const auto python = io::find_python("torch, transformers");
  if (!python) GTEST_SKIP() << "no Python with torch and transformers; set HPCDL_PYTHON";
  const io::TempFolder temp;
  bool ok = false;
  const auto out = io::run_python(*python, io::read_file(std::string(HPCDL_SOURCE_DIR) + "/hpcdl/infer/parity.py"),
                                  temp.path().string(), ok);
  ASSERT_TRUE(ok) << out;
  std::size_t models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(temp.path())) {
    SCOPED_TRACE(entry.path().filename().string());
    const auto want = Json::parse(io::read_file(entry.path() / "parity.json"));
    const auto& prompts = want["prompts"];
    Pool pool(2);
    const auto model = models::LanguageModel::open(entry.path());
    Engine engine(model, pool, {.sequences = std::ssize(prompts), .vocab = want["limit"].get<std::int64_t>()});
    std::vector<Heard> heard(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i)
      submit(engine,
             {.prompt = prompts[i], .tokens = static_cast<int>(want["answers"][i].size()), .sampling = {.logprobs = 0}},
             heard[i]);
    engine.run();
    int same = 0, all = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i)
      same += compare(want, i, heard[i]), all += static_cast<int>(want["answers"][i].size());
    EXPECT_GE(same, all * 9 / 10) << "ties are rare";
    std::printf("%-28s %d of %d tokens\n", entry.path().filename().c_str(), same, all);
    ++models;
  }
  EXPECT_EQ(models, 13u);
}

}  // namespace
}  // namespace hpcdl::infer
