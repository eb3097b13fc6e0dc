#pragma once
// A model that a run of the program has trained, for tests of what its verbs do with it.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/io/temp_folder.h"
#include "hpcdl/train/train_for_tests.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {

inline const std::string kConfig = R"([model]
family = "llama"
layers = 2
heads = 2
width = 64
context = 32
[data]
vocab_size = 300
[train]
steps = 6
batch = 2
lr = 3e-3
seed = 3
[checkpoint]
every = 2
keep = 2
)";

/// One trained model that all tests read.
class Cli : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tmp_ = new io::TempFolder;
    ::setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
    io::write_file_atomic(path("toy.txt"), train::toy_text());
    io::write_file_atomic(path("run.toml"), kConfig);
    trained_ = new Result(train({"--out", path("run")}));
  }
  static void TearDownTestSuite() {
    delete trained_;
    delete tmp_;
  }
  static std::string path(const std::string& name) { return (*tmp_ / name).string(); }
  static Result train(std::vector<std::string> words) {
    words.insert(words.begin(), {"train", "-c", path("run.toml"), "--data.text=" + path("toy.txt"), "--json"});
    return run(words);
  }
  static std::string model() { return path("run/model"); }

  static inline io::TempFolder* tmp_ = nullptr;
  static inline Result* trained_ = nullptr;
};
/// One line on stderr, "hpcdl: [area] ...", with the given part; nothing on stdout.
inline void expect_error(const Result& r, int code, const std::string& part) {
  EXPECT_EQ(r.code, code) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find(part), std::string::npos) << "expected: " << part << "\nfound: " << r.err;
  const auto at = r.err.rfind("hpcdl: [");
  ASSERT_NE(at, std::string::npos) << r.err;
  EXPECT_EQ(std::count(r.err.begin() + static_cast<std::ptrdiff_t>(at), r.err.end(), '\n'), 1) << r.err;
}

}  // namespace hpcdl::cli_test
