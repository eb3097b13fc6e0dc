// --threads in every verb that computes: the same results, and silly counts refused before anything is done.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/train/train_for_tests.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

TEST(threads_option, a_silly_count_is_refused_before_anything_else) {
  const std::vector<std::vector<std::string>> verbs = {
      {"bench"},
      {"demo"},
      {"eval", "--model", "/none", "--text", "/none"},
      {"generate", "--model", "/none", "--prompt", "x"},
      {"logits", "--model", "/none", "--tokens", "1", "--out", "/none/x"},
      {"profile", "-c", "/dev/null"},
      {"quantize", "--model", "/none", "--out", "/none/x"},
      {"roofline"},
      {"tokenize", "--train", "--out", "/none/x", "/none"},
      {"train", "-c", "/dev/null"},
      {"verify", "softmax"}};
  for (auto words : verbs) {
    words.push_back("--threads");
    words.push_back("100000");
    const auto r = run(words);
    EXPECT_EQ(r.code, 2) << words[0] << "\n" << r.err;
    EXPECT_NE(r.err.find("--threads = 100000: expected 1 to "), std::string::npos) << words[0] << "\n" << r.err;
  }
  const auto key = run({"train", "--train.threads=4096"});
  EXPECT_EQ(key.code, 2);
  EXPECT_NE(key.err.find("train.threads = 4096: expected 1 to "), std::string::npos) << key.err;
}

TEST(threads_option, changes_no_result) {
  const io::TempFolder tmp;
  ::setenv("XDG_CACHE_HOME", (tmp / "cache").c_str(), 1);
  io::write_file_atomic(tmp / "text.txt", train::toy_text());
  const auto trained = [&](const std::string& threads) {
    const auto out = (tmp / ("run" + threads)).string();
    const auto r = run({"train", "--out", out, "--threads", threads, "--data.text=" + (tmp / "text.txt").string(),
                        "--data.vocab_size=300", "--model.family=llama", "--model.layers=2", "--model.heads=2",
                        "--model.width=64", "--model.context=32", "--train.steps=3", "--train.batch=2", "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.err.find(threads + " thread"), std::string::npos) << r.err;
    return out;
  };
  const std::string one = trained("1"), three = trained("3");
  EXPECT_EQ(io::read_file(one + "/model/model.safetensors"), io::read_file(three + "/model/model.safetensors"));
  const auto said = [&](const std::string& threads) {
    return run({"generate", "--model", one + "/model", "--prompt", "the", "--tokens", "12", "--threads", threads}).out;
  };
  EXPECT_EQ(said("1"), said("4"));
}

}  // namespace
}  // namespace hpcdl::cli_test
