// Ranks with different settings, as real processes: all end at once, with one sentence.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/temp_folder.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

struct Agreement : testing::Test {
  Agreement() {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += fmt::format("word{} is {}.\n", i % 97, i * i % 89);
    io::write_file_atomic(folder / "text.txt", text);
    io::write_file_atomic(folder / "other.txt", text + "One more line.\n");
  }

  /// The command line for a shell.
  std::string command() const {
    const auto at = folder.path().string();
    return fmt::format(
        "'{}' train --model.layers 1 --model.heads 2 --model.width 32 --model.context 16 --data.text {}/text.txt "
        "--data.cache {}/cache --data.vocab_size 300 --train.steps 2 --train.batch 2 --train.threads 1 --out {}/run "
        "--checkpoint.resume none --dist.timeout 600",
        HPCDL_PROGRAM, at, at, at);
  }
  /// Two ranks; `rank1` holds shell words only for rank 1, before the program and after it.
  Result train(const std::string& environment, const std::string& words, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"launch", "-n", "2", "--program", "/bin/sh", "--", "-c"};
    all.push_back(fmt::format("if [ $RANK = 1 ]; then {} exec {} {}; else exec {}; fi", environment, command(), words,
                              command()));
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }
  void expect_difference(const Result& r, const std::string& what) const {
    EXPECT_EQ(r.code, 2) << r.err;
    for (const char* rank : {"[rank 0]", "[rank 1]"})
      EXPECT_NE(r.err.find(fmt::format("{} hpcdl: [ranks] {}", rank, what)), std::string::npos) << r.err;
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "run" / "model"));
  }
  io::TempFolder folder;
};

TEST_F(Agreement, equal_ranks_train) {
  const auto r = train("", "");
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST_F(Agreement, the_key_the_values_and_the_ranks_are_named) {
  for (const auto& [key, here, there] : std::vector<std::array<const char*, 3>>{{"train.lr", "0.001", "0.002"},
                                                                                {"train.seed", "1", "2"},
                                                                                {"train.batch", "2", "4"},
                                                                                {"train.accumulate", "1", "2"},
                                                                                {"model.heads", "2", "4"},
                                                                                {"train.weight_decay", "0.1", "0.2"},
                                                                                {"train.clip", "1.0", "0.5"},
                                                                                {"model.width", "32", "64"},
                                                                                {"model.layers", "1", "2"},
                                                                                {"model.context", "16", "32"},
                                                                                {"parallel.bucket_mb", "25.0", "1.0"},
                                                                                {"checkpoint.every", "\"10m\"", "1"}})
    expect_difference(train("", fmt::format("--{} {}", key, there)),
                      fmt::format("{} is {} on rank 0 and {} on rank 1", key, here, there));
}

/// Each is started by a separate shell: they have neither a parent nor a job name in common.
TEST_F(Agreement, ranks_that_were_started_by_hand_meet_at_a_file) {
  const auto at = folder.path().string();
  const auto rank = [&](int r) {
    return fmt::format("sh -c \"$TRAIN --dist.rank {} --dist.world 2 --dist.method file://{}/meet; exit\"", r, at);
  };
  const int status =
      std::system(fmt::format("TRAIN=\"{}\"; export TRAIN; ({}) 2>{}/err & {}; code=$?; wait $! && exit $code",
                              command(), rank(1), at, rank(0))
                      .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0) << io::read_file(folder / "err");
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "run" / "model"));
}

TEST_F(Agreement, so_are_data_that_differ) {
  const auto r = train("", fmt::format("--data.text {}/other.txt", folder.path().string()));
  EXPECT_EQ(r.code, 2) << r.err;
  EXPECT_NE(r.err.find("[rank 0] hpcdl: [ranks] data.t"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("[rank 1] hpcdl: [ranks] data.t"), std::string::npos) << r.err;
}

TEST_F(Agreement, so_is_the_instruction_set) {
  expect_difference(train("export HPCDL_ISA=scalar;", ""), "the instruction set (HPCDL_ISA) is ");
}

TEST_F(Agreement, allowed_differences_between_ranks_are_accepted) {
  const auto r = train("", "--train.threads 2 --train.memory_limit 1G");
  EXPECT_EQ(r.code, 0) << r.err;
}

}  // namespace
}  // namespace hpcdl::cli_test
