// hpcdl probe and hpcdl doctor as users run them.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/machine/remembered.h"
#include "tests/cli/program.h"
#include "tools/measure_roofs.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

/// One quick probe that all tests read.
class ProbeCli : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tmp_ = new io::TempFolder;
    ::setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
    first_ = new Result(run({"probe", "--quick", "--json", "--disk", tmp_->path().string(), "--out", path("probe.json"),
                             "--svg", path("stairs.svg")}));
  }
  static void TearDownTestSuite() {
    delete first_;
    delete tmp_;
  }
  static std::string path(const std::string& name) { return (*tmp_ / name).string(); }
  static void expect_error(const Result& r, int code, const std::string& part) {
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }
  static inline io::TempFolder* tmp_ = nullptr;
  static inline Result* first_ = nullptr;
};

TEST_F(ProbeCli, measures_everything_and_says_the_spread) {
  ASSERT_EQ(first_->code, 0) << first_->err;
  const auto j = first_->json();
  for (const char* list : {"bandwidth", "stairs", "latency", "peaks", "launch", "first_touch"}) {
    ASSERT_FALSE(j.at(list).empty()) << list;
    for (const auto& row : j.at(list)) {
      const auto& f = row.contains("seconds")            ? row.at("seconds")
                      : row.contains("bytes_per_second") ? row.at("bytes_per_second")
                                                         : row.at("operations_per_second");
      ASSERT_TRUE(f.is_object()) << list << row;
      EXPECT_GE(f.at("rounds"), 3);
      EXPECT_GT(f.at("min"), 0);
      EXPECT_LE(f.at("min"), f.at("median"));
      EXPECT_LE(f.at("median"), f.at("max"));
    }
  }
  for (const char* key : {"machine", "memory_bytes", "kernel", "date", "version", "isa", "replay_per_record"})
    EXPECT_FALSE(j.at(key).is_null()) << key;
  EXPECT_TRUE(j.at("disk").at("read_cold").is_object()) << j.at("disk");
  EXPECT_TRUE(j.at("gpus").is_array());
  EXPECT_EQ(nlohmann::json::parse(io::read_file(path("probe.json"))), j);
  const auto picture = io::read_file(path("stairs.svg"));
  EXPECT_TRUE(picture.starts_with("<svg"));
  EXPECT_NE(picture.find("made with --quick"), std::string::npos);
  EXPECT_NE(j.value("caveat", "").find("made with --quick"), std::string::npos);
}

TEST_F(ProbeCli, is_what_every_later_percentage_uses) {
  const auto file = lab::probe_file();
  ASSERT_TRUE(fs::exists(file)) << first_->err;
  Pool pool(1);
  const auto isa = first_->json().at("isa").get<std::string>();
  const auto kept = lab::find_roofs(lab::read_remembered(), isa, 1);
  ASSERT_TRUE(kept);
  EXPECT_EQ(lab::roofs(pool).f32, kept->f32);
  // Higher values from before are kept, unless they are to be forgotten.
  auto higher = lab::read_remembered();
  auto roofs = *kept;
  roofs.f32 = 1e18;
  lab::put_roofs(higher, isa, 1, roofs);
  lab::put_roofs(higher, isa, 4000, roofs);
  lab::write_remembered(higher);
  ASSERT_EQ(run({"probe", "--quick", "--no-disk", "--threads", "1"}).code, 0);
  EXPECT_EQ(lab::find_roofs(lab::read_remembered(), isa, 1)->f32, 1e18);
  EXPECT_TRUE(lab::find_roofs(lab::read_remembered(), isa, 4000));
  ASSERT_EQ(run({"probe", "--quick", "--no-disk", "--threads", "1", "--anew"}).code, 0);
  EXPECT_LT(lab::find_roofs(lab::read_remembered(), isa, 1)->f32, 1e18);
  EXPECT_FALSE(lab::find_roofs(lab::read_remembered(), isa, 4000));
}

TEST_F(ProbeCli, a_damaged_memory_is_replaced_and_a_closed_one_is_told) {
  auto odd = lab::read_remembered();
  odd["roofs"][0]["isa"] = 5, odd["roofs"].push_back({{"isa", "avx2"}, {"threads", "all"}});
  lab::write_remembered(odd);
  const auto beside = run({"probe", "--quick", "--no-disk", "--threads", "1"});
  EXPECT_EQ(beside.code, 0) << beside.err;
  EXPECT_NE(beside.err.find("remembered in"), std::string::npos) << beside.err;
  io::write_file_atomic(lab::probe_file(), "{\"machine\": 3");
  const auto r = run({"probe", "--quick", "--no-disk", "--threads", "1"});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* part : {"bandwidth", "memory", "launch", "GPU"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part;
  EXPECT_NE(r.err.find("remembered in"), std::string::npos) << r.err;
  EXPECT_FALSE(lab::read_remembered().empty());
  ::setenv("XDG_CACHE_HOME", "/dev/null", 1);
  const auto closed = run({"probe", "--quick", "--no-disk", "--threads", "1"});
  ::setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
  EXPECT_EQ(closed.code, 0);
  EXPECT_NE(closed.err.find("not remembered"), std::string::npos) << closed.err;
}

TEST_F(ProbeCli, wrong_words_and_closed_doors_are_told_before_the_work) {
  for (const char* threads : {"0", "x", "1..", "1,,2", "2..100000", "-1", ",", "1..99999"})
    expect_error(run({"probe", "--quick", "--threads", threads}), 2, "--threads");
  expect_error(run({"probe", "--quick", "--out", "/proc/none/p.json"}), 70, "/proc/none");
  expect_error(run({"probe", "--quick", "--svg", "/proc/none/p.svg"}), 70, "/proc/none");
  expect_error(run({"probe", "--quick", "--disk", ".", "--no-disk"}), 2, "exclude each other");
  for (const auto& words : {std::vector<std::string>{"--threads", "1"}, {"--svg", path("gpu.svg")}, {"--no-disk"}}) {
    auto all = words;
    all.insert(all.begin(), {"probe", "--quick", "--device", "cuda"});
    expect_error(run(all), 2, words[0] + " is for the CPU");
  }
  const auto r = run({"probe", "--quick", "--threads", "1", "--json", "--disk", "/proc/none"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.json().at("disk").at("note").get<std::string>().find("/proc/none"), std::string::npos);
}

TEST_F(ProbeCli, doctor_tells_state_cost_and_fix) {
  const auto r = run({"doctor", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  for (const char* what :
       {"cpu", "cores", "instruction set", "peak", "bandwidth", "memory", "huge pages", "/dev/shm", "memlock",
        "open files", "disk", "gpu", "cuda toolkit", "nccl", "cudnn", "mpi", "slurm", "python module"}) {
    ASSERT_TRUE(j.contains(what)) << what;
    if (j.at(what).at("state") != "ok") {
      EXPECT_TRUE(j.at(what).contains("cost") && j.at(what).contains("fix")) << what;
    }
  }
  EXPECT_EQ(j.at("environment").at("XDG_CACHE_HOME"), path("cache"));
  ::setenv("PATH", "/nowhere", 1);
  const auto bare = run({"doctor", "--env"});
  EXPECT_EQ(bare.code, 0) << bare.err;
  EXPECT_NE(bare.out.find("mpirun"), std::string::npos);
  EXPECT_NE(bare.out.find("fix: apt-get install libopenmpi-dev"), std::string::npos) << bare.out;
  EXPECT_NE(bare.out.find("env PATH"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::cli_test
