// hpcdl tune and --tune as other programs see them, on a machine with or without a GPU.

#include <gtest/gtest.h>

#include "hpcdl/device.h"
#include "hpcdl/io/temp_folder.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

TEST(tune_cli, help_names_its_options) {
  const auto r = run({"tune", "--help"});
  EXPECT_EQ(r.code, 0);
  for (const char* word : {"--config", "--model", "--int4", "--seconds", "--anew", "--list", "--json"})
    EXPECT_NE(r.out.find(word), std::string::npos) << word;
  for (const char* verb : {"train", "generate", "bench"})
    EXPECT_NE(run({verb, "--help"}).out.find("--tune"), std::string::npos) << verb;
}

TEST(tune_cli, without_a_gpu_it_fails_and_says_why) {
  if (cuda_devices() > 0) GTEST_SKIP() << "a GPU is present";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"tune"}, {"tune", "--json"}, {"tune", "--list"}, {"tune", "--device", "cpu"}}) {
    const auto r = run(words);
    EXPECT_EQ(r.code, 70);
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("nothing to tune"), std::string::npos) << r.err;
  }
  EXPECT_EQ(run({"tune", "--device", "cuda"}).code, 2) << "a GPU that was asked for and is not there";
}

TEST(tune_cli, wrong_words_are_usage_errors) {
  for (const auto& words : {std::vector<std::string>{"tune", "--speed", "1"},
                            {"tune", "--seconds", "-1"},
                            {"train", "--tune", "sometimes"},
                            {"bench", "--tune", "on"},
                            {"tune", "--train.batch=4"}}) {
    const auto r = run(words);
    EXPECT_EQ(r.code, 2) << words[1];
    EXPECT_NE(r.err, "");
  }
}

TEST(tune_cli, on_a_cpu_the_option_changes_nothing) {
  for (const char* mode : {"off", "cached", "full"}) {
    const auto r = run({"bench", "add", "--shape", "1024", "--rounds", "3", "--tune", mode, "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err.find("tun"), std::string::npos) << r.err;
  }
}

TEST(tune_cli, tunes_checks_and_remembers_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", tmp.path().c_str(), 1);
  const auto r = run({"tune", "--int4", "1x512x512", "--int4", "3x512x512x64", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  ASSERT_EQ(j.at("tuned").size(), 2u);
  for (const auto& t : j.at("tuned")) {
    EXPECT_EQ(t.at("complete"), true);
    int chosen = 0;
    for (const auto& c : t.at("candidates")) {
      EXPECT_EQ(c.at("verified"), true) << c;
      chosen += c.at("chosen").get<bool>();
    }
    EXPECT_EQ(chosen, 1);
  }
  EXPECT_EQ(run({"tune", "--int4", "1x512x512", "--int4", "3x512x512x64", "--json"}).json().at("remembered"), 2);
  EXPECT_NE(run({"tune", "--list"}).out.find("3x512x512 group 64"), std::string::npos);
  EXPECT_EQ(run({"tune", "--int4", "1x512x500"}).code, 2);
}

}  // namespace
}  // namespace hpcdl::cli_test
