// Every kind of damage to a checkpoint is named.

#include "hpcdl/io/checkpoint_check.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/checkpoint_place.h"
#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/ranks_for_tests.h"
#include "hpcdl/io/sharded_for_tests.h"

namespace hpcdl::io {
namespace {

/// Checkpoints of steps 1 and 2, saved by three ranks that hold flat ranges of the optimizer's tensors.
class Damaged : public testing::Test {
 protected:
  void SetUp() override {
    ThreadRanks::run(3, [&](Ranks& ranks) {
      ShardedRun run(11, {1, 1, 3}, ranks.rank(), 1, 4);
      Checkpoints checkpoints(tmp_.path(), 0, &ranks);
      for (const int step : {1, 2}) {
        run.go_to(step);
        checkpoints.save(run.state(), run.content());
      }
    });
  }
  fs::path step(int n) const { return tmp_ / fmt::format("step_0000000{}", n); }

  static std::vector<std::string> flaws(const fs::path& folder) {
    std::vector<std::string> list;
    check_checkpoint(folder, [&](const std::string& what) { list.push_back(what); });
    return list;
  }
  /// The only flaw of step 2, which must contain all of the parts.
  void expect_flaw(const std::vector<std::string>& parts) const {
    const auto found = flaws(step(2));
    ASSERT_EQ(found.size(), 1u) << testing::PrintToString(found);
    for (const auto& part : parts) EXPECT_NE(found[0].find(part), std::string::npos) << found[0];
    EXPECT_TRUE(flaws(step(1)).empty());
  }
  static void change_byte(const fs::path& file, std::size_t from_end) {
    auto text = read_file(file);
    text[text.size() - from_end] = static_cast<char>(text[text.size() - from_end] ^ 1);
    write_file_atomic(file, text);
  }

  TempFolder tmp_;
};

TEST_F(Damaged, a_whole_one_has_no_flaws) {
  EXPECT_TRUE(flaws(step(1)).empty());
  EXPECT_TRUE(flaws(step(2)).empty());
}

TEST_F(Damaged, a_torn_file) {
  const auto file = step(2) / "optim-rank1.safetensors";
  const auto text = read_file(file);
  write_file_atomic(file, text.substr(0, text.size() - 5));
  expect_flaw({"optim-rank1.safetensors", fmt::format("expected {} bytes, found {}", text.size(), text.size() - 5),
               "it was cut off"});
}

TEST_F(Damaged, a_torn_file_of_the_model_is_named_once) {
  const auto file = step(2) / "model-00001-of-00003.safetensors";
  ASSERT_TRUE(fs::exists(file));
  write_file_atomic(file, read_file(file).substr(0, 40));
  expect_flaw({"model-00001-of-00003.safetensors: expected ", "it was cut off"});
}

TEST_F(Damaged, a_shard_that_is_not_listed) {
  Json state = read_json(step(2) / "state.json");
  state["files"].erase("optim-rank1.safetensors");
  seal_checkpoint(step(2), state);
  expect_flaw({"state.json: \"optim-rank1.safetensors\" is not among \"files\""});
}

TEST_F(Damaged, a_missing_shard) {
  fs::remove(step(2) / "optim-rank2.safetensors");
  expect_flaw({"optim-rank2.safetensors"});
}

TEST_F(Damaged, a_changed_byte) {
  change_byte(step(2) / "optim-rank0.safetensors", 3);
  expect_flaw({"optim-rank0.safetensors: 1 of ", "do not match their checksums, first \"", "damaged on disk"});
}

TEST_F(Damaged, a_shard_of_another_save) {
  write_file_atomic(step(2) / "optim-rank1.safetensors", read_file(step(1) / "optim-rank1.safetensors"));
  expect_flaw({"it is optim-rank1.safetensors of the checkpoint step_00000001"});
}

TEST_F(Damaged, a_shard_of_an_unknown_save) {
  write_file_atomic(step(2) / "optim-rank1.safetensors", read_file(step(1) / "optim-rank1.safetensors"));
  fs::rename(step(1), tmp_ / "gone");
  const TempFolder elsewhere;
  fs::rename(step(2), elsewhere / "step_00000002");
  const auto found = flaws(elsewhere / "step_00000002");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("a file of another save"), std::string::npos) << found[0];
}

TEST_F(Damaged, swapped_shards) {
  const auto a = step(2) / "optim-rank0.safetensors", b = step(2) / "optim-rank2.safetensors";
  const auto text = read_file(a);
  write_file_atomic(a, read_file(b));
  write_file_atomic(b, text);
  const auto found = flaws(step(2));
  ASSERT_EQ(found.size(), 2u) << testing::PrintToString(found);
  for (const auto& what : found)
    EXPECT_TRUE(what.find("its content is that of optim-rank2.safetensors") != std::string::npos ||
                what.find("its content is that of optim-rank0.safetensors") != std::string::npos ||
                what.find("expected ") != std::string::npos)
        << what;
}

TEST_F(Damaged, a_hole_and_an_overlap) {
  Json state = read_json(step(2) / "state.json");
  bool moved = false;
  for (auto& [file, tensors] : state["optimizer"].items())
    for (auto& [name, tensor] : tensors.items())
      if (!moved && tensor.contains("boxes"))
        for (auto& box : tensor["boxes"])
          for (std::size_t d = 0; d < box[0].size() && !moved; ++d)
            if (box[0][d] > 0 && box[1][d] > 0) box[0][d] = box[0][d].get<int>() - 1, moved = true;
  ASSERT_TRUE(moved);
  seal_checkpoint(step(2), state);
  expect_flaw({"optimizer: tensor ", "the files hold elements ", " times, expected once"});
}

TEST_F(Damaged, every_flaw_is_reported_and_a_reporter_may_stop) {
  fs::remove(step(2) / "optim-rank2.safetensors");
  change_byte(step(2) / "optim-rank0.safetensors", 3);
  write_file_atomic(step(2) / "config.toml", "a = 2\n");
  EXPECT_EQ(flaws(step(2)).size(), 3u) << testing::PrintToString(flaws(step(2)));
  EXPECT_THROW(check_checkpoint(step(2), [](const std::string& what) { throw Error(what); }), Error);
  fs::remove(step(2) / "DONE");
  EXPECT_EQ(flaws(step(2)).size(), 1u);
}

TEST_F(Damaged, progress_goes_from_0_to_1) {
  std::vector<double> shares;
  check_checkpoint(step(1), [](const std::string&) { FAIL(); },
                   {.progress = [&](double share, const std::string&) { shares.push_back(share); }});
  ASSERT_FALSE(shares.empty());
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_LE(shares.back(), 1);
  EXPECT_GT(shares.back(), 0.5);
}

TEST_F(Damaged, folders_are_found_by_what_they_hold) {
  EXPECT_EQ(find_checkpoint(tmp_.path()).checkpoint, step(2));
  EXPECT_EQ(find_checkpoint(tmp_.path()).kept.size(), 2u);
  EXPECT_EQ(find_checkpoint(step(1)).checkpoint, step(1));
  EXPECT_TRUE(find_checkpoint(step(1)).kept.empty());
  write_file_atomic(step(2) / "DONE", "x");
  EXPECT_EQ(find_checkpoint(tmp_.path()).checkpoint, step(1));
  EXPECT_FALSE(kept_checkpoints(tmp_.path())[0].info);
  EXPECT_NE(kept_checkpoints(tmp_.path())[0].flaw.find("DONE"), std::string::npos);
  const TempFolder empty;
  try {
    find_checkpoint(empty.path());
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("found an empty folder"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace hpcdl::io
