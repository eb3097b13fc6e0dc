#include "hpcdl/io/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint_for_tests.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {
namespace {

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& e : fs::directory_iterator(folder)) out.push_back(e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}
const Checkpoints::Warn kQuiet = [](const std::string&) {};

TEST(checkpoint, round_trips_tensors_and_state) {
  const TempFolder tmp;
  const ToyRun saved(7);
  Checkpoints store(tmp / "c");
  const fs::path path = store.save(saved.state(), saved.content());
  EXPECT_EQ(path.filename(), "step_00000007");
  EXPECT_EQ(read_file(tmp / "c/latest"), "step_00000007\n");
  EXPECT_EQ(names_in(path), (std::vector<std::string>{"DONE", "config.json", "config.toml", "model.safetensors",
                                                      "optim-rank0.safetensors", "state.json"}));
  const auto found = Checkpoints::find(tmp / "c", "auto", kQuiet);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->state, saved.state());
  ToyRun loaded(0);
  load_checkpoint(found->path, loaded.model(), loaded.optimizer());
  EXPECT_TRUE(loaded.is_at(7));
  EXPECT_EQ(TensorFolder::open(path).at("b.weight").dtype(), DType::bf16);
}

TEST(checkpoint, find_knows_none_auto_and_path) {
  const TempFolder tmp;
  EXPECT_FALSE(Checkpoints::find(tmp / "missing", "auto", kQuiet));
  Checkpoints store(tmp.path());
  EXPECT_FALSE(Checkpoints::find(tmp.path(), "auto", kQuiet));
  for (const int step : {1, 2}) store.save(ToyRun(step).state(), ToyRun(step).content());
  EXPECT_FALSE(Checkpoints::find(tmp.path(), "none", kQuiet));
  EXPECT_EQ(Checkpoints::find(tmp.path(), "auto", kQuiet)->state.step, 2);
  EXPECT_EQ(Checkpoints::find(tmp.path(), (tmp / "step_00000001").string(), kQuiet)->state.step, 1);
  EXPECT_THROW(Checkpoints::find(tmp.path(), "step_9", kQuiet), Error);
}

TEST(checkpoint, keeps_the_newest_by_when_they_were_written) {
  const TempFolder tmp;
  Checkpoints store(tmp.path(), 2);
  for (const int step : {10, 20, 30, 5}) store.save(ToyRun(step).state(), ToyRun(step).content());  // went back to 5
  EXPECT_EQ(names_in(tmp.path()), (std::vector<std::string>{".lock", "latest", "step_00000005", "step_00000030"}));
  EXPECT_EQ(Checkpoints::find(tmp.path(), "auto", kQuiet)->state.step, 5);
}

TEST(checkpoint, saving_a_step_again_replaces_it) {
  const TempFolder tmp;
  Checkpoints store(tmp.path(), 1);
  store.save(ToyRun(3).state(), ToyRun(99).content());
  store.save(ToyRun(3).state(), ToyRun(3).content());
  ToyRun loaded(0);
  load_checkpoint(Checkpoints::find(tmp.path(), "auto", kQuiet)->path, loaded.model(), loaded.optimizer());
  EXPECT_TRUE(loaded.is_at(3));
  EXPECT_EQ(names_in(tmp.path()), (std::vector<std::string>{".lock", "latest", "step_00000003"}));
}

TEST(checkpoint, leftovers_are_removed_and_two_writers_refused) {
  const TempFolder tmp;
  make_folder(tmp / ".tmp-step_00000009");
  write_file_atomic(tmp / ".tmp-step_00000009/x", "x");
  make_folder(tmp / ".tmp-delete-step_00000001");
  Checkpoints store(tmp.path());
  EXPECT_EQ(names_in(tmp.path()), std::vector<std::string>{".lock"});
  EXPECT_THROW(Checkpoints other(tmp.path()), Error);
}

TEST(checkpoint, a_different_configuration_is_a_clear_error) {
  const TempFolder tmp;
  Checkpoints store(tmp.path());
  const fs::path path = store.save(ToyRun(1).state(), ToyRun(1).content());
  ToyRun run(0);
  auto fewer = run.model(), renamed = run.model(), reshaped = run.model();
  fewer.pop_back();
  renamed[0].name = "other";
  reshaped[0].tensor = reshaped[0].tensor.reshaped({reshaped[0].tensor.size()});
  EXPECT_THROW(load_checkpoint(path, fewer, run.optimizer()), Error);
  EXPECT_THROW(load_checkpoint(path, renamed, run.optimizer()), Error);
  EXPECT_THROW(load_checkpoint(path, reshaped, run.optimizer()), Error);
  EXPECT_THROW(load_checkpoint(path, run.model(), {}), Error);
}

TEST(checkpoint, a_damaged_byte_anywhere_falls_back_to_the_one_before) {
  const TempFolder tmp;
  {
    Checkpoints store(tmp.path());
    for (const int step : {1, 2}) store.save(ToyRun(step).state(), ToyRun(step).content());
  }
  const fs::path newest = tmp / "step_00000002";
  for (const auto& name : names_in(newest)) {
    const std::string whole = read_file(newest / name);
    const std::size_t stride = std::max<std::size_t>(1, whole.size() / 40);
    for (std::size_t at = 0; at < whole.size(); at += stride) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      write_file_atomic(newest / name, bad);
      std::string warning;
      const auto found = Checkpoints::find(tmp.path(), "auto", [&](const std::string& w) { warning += w; });
      ASSERT_TRUE(found && found->state.step == 1) << name << " byte " << at;
      ASSERT_NE(warning.find("step_00000002 is damaged"), std::string::npos) << warning;
    }
    write_file_atomic(newest / name, whole.substr(0, whole.size() / 2));
    ASSERT_EQ(Checkpoints::find(tmp.path(), "auto", kQuiet)->state.step, 1) << name << " truncated";
    fs::remove(newest / name);
    ASSERT_EQ(Checkpoints::find(tmp.path(), "auto", kQuiet)->state.step, 1) << name << " missing";
    write_file_atomic(newest / name, whole);
    ASSERT_EQ(Checkpoints::find(tmp.path(), "auto", kQuiet)->state.step, 2) << name << " restored";
  }
  fs::remove(newest / "DONE");
  fs::remove(tmp / "step_00000001/DONE");
  try {
    Checkpoints::find(tmp.path(), "auto", kQuiet);
    ADD_FAILURE() << "if all are damaged, that must not look like a fresh start";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("set checkpoint.resume = \"none\" to start over"), std::string::npos)
        << e.what();
  }
}

TEST(checkpoint, folders_with_other_names_stay) {
  const TempFolder tmp;
  Checkpoints store(tmp.path(), 1);
  store.save(ToyRun(1).state(), ToyRun(1).content());
  fs::rename(tmp / "step_00000001", tmp / "step_00000001_best");
  make_folder(tmp / "step_by_step");
  for (const int step : {2, 3}) store.save(ToyRun(step).state(), ToyRun(step).content());
  EXPECT_EQ(names_in(tmp.path()),
            (std::vector<std::string>{".lock", "latest", "step_00000001_best", "step_00000003", "step_by_step"}));
  EXPECT_EQ(Checkpoints::find(tmp.path(), "auto", kQuiet)->state.step, 3);
  EXPECT_EQ(Checkpoints::find(tmp.path(), (tmp / "step_00000001_best").string(), kQuiet)->state.step, 1);
}

UsedWays some_ways() {
  return {"NVIDIA H200",
          {{{"gemm", {4096, -1, 0}}, "128x256x64 stages 4 cluster 2 raster 16", "gemm bf16 4096x4096x4096 +bias", true},
           {{"attention", {}}, "cudnn", "attention bf16 \"1x2\"", false}}};
}

TEST(checkpoint, holds_the_ways_of_its_run) {
  const TempFolder tmp;
  Checkpoints store(tmp.path());
  TrainState state = ToyRun(1).state();
  const auto without = store.save(state, ToyRun(1).content());
  EXPECT_EQ(read_file(without / "state.json").find("ways"), std::string::npos);
  EXPECT_FALSE(read_checkpoint_info(without).state.ways);
  state.step = 2;
  state.ways = some_ways();
  const auto with = store.save(state, ToyRun(2).content());
  EXPECT_EQ(read_checkpoint_info(with).state, state);
  EXPECT_EQ(verify_checkpoint(with).state.ways, some_ways());
}

TEST(checkpoint, ways_in_files_are_checked) {
  EXPECT_EQ(to_json(some_ways()).dump(),
            R"({"calls":[{"call":"gemm bf16 4096x4096x4096 +bias","key":[4096,-1,0],"op":"gemm","told":true,)"
            R"("way":"128x256x64 stages 4 cluster 2 raster 16"},{"call":"attention bf16 \"1x2\"","key":[],)"
            R"("op":"attention","told":false,"way":"cudnn"}],"device":"NVIDIA H200"})");
  const auto error = [](const std::string& text) -> std::string {
    try {
      used_ways_from(parse_json(text, "a file"), "a file");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const std::string call = R"({"op":"gemm","key":[1],"way":"plain","told":true,"call":"a product"})";
  EXPECT_EQ(error(R"({"device":"cpu","calls":[)" + call + "]}"), "");
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "a file"},
           {R"({"calls":[]})", "device"},
           {R"({"device":1,"calls":[]})", "device"},
           {R"({"device":"cpu"})", "calls"},
           {R"({"device":"cpu","calls":{}})", "calls"},
           {R"({"device":"cpu","calls":[3]})", "call 1"},
           {R"({"device":"cpu","calls":[)" + call + "," + call + "]}", "listed twice"},
           {R"({"device":"cpu","calls":[{"op":"gemm","way":"plain","told":true,"call":""}]})", "key"},
           {R"({"device":"cpu","calls":[{"op":"gemm","key":[0.5],"way":"plain","told":true,"call":""}]})", "whole"},
           {R"({"device":"cpu","calls":[{"op":"gemm","key":[1],"way":3,"told":true,"call":""}]})", "way"},
           {R"({"device":"cpu","calls":[{"op":"gemm","key":[1],"way":"plain","told":"yes","call":""}]})", "told"}})
    EXPECT_NE(error(text).find(part), std::string::npos) << text << ": " << error(text);
  const std::string whole = to_json(some_ways()).dump();
  const Rng rng{7, 0};
  for (std::uint64_t i = 0; i < 6000; i += 2) {  // any damage is an Error or other ways
    std::string text = whole;
    text[rng.below(i, text.size())] = static_cast<char>(rng.below(i + 1, 256));
    try {
      EXPECT_LE(used_ways_from(parse_json(text, "a file"), "a file").calls.size(), 2u);
    } catch (const Error&) {}
  }
}

TEST(checkpoint, non_finite_scalars_are_refused) {
  const TempFolder tmp;
  Checkpoints store(tmp.path());
  TrainState state = ToyRun(1).state();
  state.scalars["loss"] = std::nan("");
  EXPECT_THROW(store.save(state, ToyRun(1).content()), Error);
  EXPECT_EQ(names_in(tmp.path()), std::vector<std::string>{".lock"});
}

/// In a child: saves step 1, lets `break_it` damage the environment, expects step 2 to fail with `part` in the error.
int failing_save(const fs::path& folder, const std::function<bool()>& break_it, const char* part) {
  const pid_t child = fork();
  if (child == 0) {
    Checkpoints store(folder);
    store.save(ToyRun(1).state(), ToyRun(1).content());
    if (!break_it()) _exit(77);
    try {
      store.save(ToyRun(2).state(), ToyRun(2).content());
    } catch (const Error& e) {
      if (std::strstr(e.what(), part) == nullptr) std::fprintf(stderr, "%s\n", e.what());
      const auto found = Checkpoints::find(folder, "auto", kQuiet);
      const auto names = names_in(folder);
      const bool clean = names == std::vector<std::string>{".lock", "latest", "step_00000001"};
      _exit(std::strstr(e.what(), part) && found && found->state.step == 1 && clean ? 0 : 4);
    }
    _exit(5);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(checkpoint, a_full_disk_keeps_the_earlier_ones) {
  const TempFolder tmp;
  EXPECT_EQ(failing_save(
                tmp / "limit",
                [] {
                  signal(SIGXFSZ, SIG_IGN);
                  const rlimit limit{2048, 2048};
                  return setrlimit(RLIMIT_FSIZE, &limit) == 0;
                },
                "ulimit -f"),
            0);
}

TEST(checkpoint, a_full_file_system_keeps_the_earlier_ones) {
  const TempFolder tmp;
  make_folder(tmp / "small");
  if (mount("tmpfs", (tmp / "small").c_str(), "tmpfs", 0, "size=256k") != 0)
    GTEST_SKIP() << "no permission to mount a small disk";
  const fs::path folder = tmp / "small/c";
  const int result = failing_save(
      folder,
      [&] {
        std::ofstream filler(tmp / "small/filler");
        while (filler.write("0123456789abcdef", 16).flush()) {}
        return true;
      },
      "disk is full");
  umount((tmp / "small").c_str());
  EXPECT_EQ(result, 0);
}

TEST(checkpoint, lost_permission_keeps_the_earlier_ones) {
  const TempFolder tmp;
  fs::permissions(tmp.path(), fs::perms::all);
  const int result = failing_save(
      tmp / "c",
      [&] {
        fs::permissions(tmp / "c", static_cast<fs::perms>(0555));
        return geteuid() != 0 || setuid(65534) == 0;
      },
      "check the permissions");
  fs::permissions(tmp / "c", fs::perms::owner_all);
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace hpcdl::io
