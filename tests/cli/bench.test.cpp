// hpcdl bench as other programs see it. Speed does not matter here.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"
#include "hpcdl/machine/machine.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

class BenchCli : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tmp_ = new io::TempFolder;
    ::setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
    ::setenv("HPCDL_BENCH_PYTHON", path("no-such-python").c_str(), 1);
  }
  static void TearDownTestSuite() { delete tmp_; }
  static std::string path(const std::string& name) { return (*tmp_ / name).string(); }
  /// The smallest possible comparison.
  static Result bench(std::vector<std::string> words) {
    words.insert(words.begin(), "bench");
    words.insert(words.end(), {"--rounds", "3", "--seconds", "0.02"});
    return run(words);
  }
  static io::TempFolder* tmp_;
};
io::TempFolder* BenchCli::tmp_ = nullptr;

TEST_F(BenchCli, decodes_with_random_weights_of_a_geometry) {
  const std::string config = path("config.json");
  io::write_file_atomic(
      config,
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2,
          "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16"})");
  for (const std::string dtype : {"bf16", "f32", "int4"}) {
    const auto r = run({"bench", "decode", "--config", config, "--batch", "1,3", "--depth", "0,20", "--tokens", "4",
                        "--dtype", dtype, "--group", "32", "--rounds", "2", "--json"});
    ASSERT_EQ(r.code, 0) << r.err;
    const auto rows = r.json().at("rows");
    ASSERT_EQ(rows.size(), 4u);
    for (const auto& row : rows) {
      EXPECT_GT(row.at("tokens_per_second").get<double>(), 0);
      EXPECT_EQ(row.at("rounds").size(), 2u);
      EXPECT_EQ(row.contains("prompt_tokens_per_second"), row.at("depth") == 20);
    }
  }
  const auto turns = run({"bench", "decode", "--config", config, "--tokens", "8", "--text", "copy", "--spec",
                          "none,ngram", "--repetition-penalty", "1.1", "--rounds", "1", "--json"});
  ASSERT_EQ(turns.code, 0) << turns.err;
  ASSERT_EQ(turns.json().at("rows").size(), 2u);
  EXPECT_EQ(turns.json().at("rows")[1].at("spec"), "ngram");
  EXPECT_EQ(run({"bench", "decode", "--config", config, "--spec", "none,draft"}).code, 2);
  const auto too_deep = run({"bench", "decode", "--config", config, "--depth", "62", "--tokens", "4"});
  EXPECT_EQ(too_deep.code, 2);
  EXPECT_NE(too_deep.err.find("context of"), std::string::npos) << too_deep.err;
}

TEST_F(BenchCli, sweeps_shapes_that_a_seed_draws) {
  const std::vector<std::string> words{"softmax", "linear",    "--sweep", "3",     "--dtype",
                                       "bf16",    "--forward", "--json",  "--seed"};
  const auto shapes = [&](const std::string& seed) {
    auto all = words;
    all.push_back(seed);
    const auto r = bench(all);
    EXPECT_EQ(r.code, 0) << r.err;
    const auto j = r.json();
    EXPECT_EQ(j.at("sweep").at("compared"), j.at("cases").size());
    EXPECT_LE(j.at("sweep").at("least"), j.at("sweep").at("median"));
    EXPECT_FALSE(j.at("sweep").at("worst").empty());
    std::vector<std::string> list;
    for (const auto& c : j.at("cases"))
      list.push_back(c.at("op").get<std::string>() + " " + c.at("shape").get<std::string>());
    return list;
  };
  const auto first = shapes("7");
  EXPECT_GE(first.size(), 3u * 4) << "softmax, softmax of scores, and the forms of linear";
  EXPECT_EQ(first, shapes("7"));
  EXPECT_NE(first, shapes("8"));
  const auto text = bench({"rms_norm", "--sweep", "2", "--forward"});
  EXPECT_NE(text.out.find("the worst:"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("  rms_norm "), std::string::npos) << "the distribution of each op\n" << text.out;
  EXPECT_EQ(bench({"softmax", "--sweep", "2", "--shape", "4x4"}).code, 2);
  const auto library = bench({"linear", "--sweep", "2", "--vs", "cublaslt"});
  EXPECT_EQ(library.code, 2);
  EXPECT_NE(library.err.find("--device cuda"), std::string::npos) << library.err;
  EXPECT_EQ(bench({"embedding", "--sweep", "2"}).code, 2) << "whose shapes there is no way to draw";
}

TEST_F(BenchCli, prints_one_json_object_with_what_a_reader_needs) {
  const auto r = bench({"softmax", "--shape", "64x256", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  for (const char* key : {"cpu", "isa", "threads"}) EXPECT_TRUE(j.at("machine").contains(key)) << key;
  EXPECT_EQ(j.at("protocol").at("cache"), "warm");
  ASSERT_EQ(j.at("cases").size(), 4u) << "f32 and bf16, forward and with backward";
  for (const auto& c : j.at("cases")) {
    EXPECT_EQ(c.at("op"), "softmax");
    EXPECT_EQ(c.at("shape"), "64x256");
    EXPECT_EQ(c.at("cache"), "warm");
    EXPECT_EQ(c.at("rounds"), 3);
    for (const char* key : {"flops", "bytes", "gflops", "gbps", "speed_of_light_ms", "speed_of_light_score"})
      EXPECT_GT(c.at(key).get<double>(), 0) << key;
    const auto& ours = c.at("sides").at("hpcdl");
    EXPECT_LE(ours.at("min_ms"), ours.at("median_ms"));
    EXPECT_LE(ours.at("low_ms"), ours.at("high_ms"));
    EXPECT_GE(ours.at("calls"), 1);
    EXPECT_TRUE(c.at("disturbance").at("trusted").is_boolean());
  }
  EXPECT_TRUE(j.at("disturbed").is_number_integer());
}

TEST_F(BenchCli, writes_the_object_into_a_file_and_keeps_the_table_on_stdout) {
  const auto r = bench({"add", "--shape", "4096", "--forward", "--dtype", "f32", "--cold", "--json", path("out.json")});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("add 4096 f32 fwd"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("of light"), std::string::npos) << r.out;
  const auto j = nlohmann::json::parse(io::read_file(path("out.json")));
  ASSERT_EQ(j.at("cases").size(), 1u);
  EXPECT_EQ(j.at("protocol").at("cache"), "cold");
  EXPECT_NE(j.at("cases")[0].at("cache").get<std::string>().find("flushed"), std::string::npos)
      << "must state how the caches were flushed";
}

TEST_F(BenchCli, the_name_of_an_op_after_json_is_not_a_file) {
  const auto r = bench({"--shape", "64x256", "--forward", "--json", "relu"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.json().at("cases").size(), 2u);
}

TEST_F(BenchCli, peers_that_are_missing_are_reported_and_no_error) {
  const auto r =
      bench({"matmul", "--shape", "16x32x24", "--forward", "--vs", "torch,triton,onednn,openblas", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  for (const char* name : {"torch", "triton"})
    EXPECT_NE(j.at("missing").at(name).get<std::string>().find("no-such-python"), std::string::npos) << j.at("missing");
  for (const char* name : {"onednn", "openblas"}) {
    EXPECT_NE(j.at("missing").contains(name), j.at("peers").contains(name)) << name;
    for (const auto& c : j.at("cases"))
      EXPECT_TRUE(c.at("sides").contains(name) ? c.at("ratios").contains(name) || c.contains("fault")
                                               : c.at("missing").contains(name))
          << name << c;
    if (!j.at("peers").contains(name)) continue;
    EXPECT_FALSE(j.at("peers").at(name).at("version").get<std::string>().empty());
    EXPECT_NE(j.at("peers").at(name).at("file").get<std::string>().find('/'), std::string::npos);
  }
  const auto text = bench({"relu", "--shape", "64x256", "--forward", "--vs", "torch"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("missing torch: "), std::string::npos) << text.out;
}

/// A program that stands in for Python: it has our module, and runs `does` with the name of the answer's file in $last.
std::string stand_in(const std::string& file, const std::string& does) {
  io::write_file_atomic(file,
                        "#!/bin/sh\ncase \"$*\" in *' -c '*) exit 0;; esac\nfor last; do :; done\n" + does + "\n");
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  return file;
}

TEST_F(BenchCli, results_from_python_become_part_of_the_result) {
  const std::string answer =
      R"({"peers": {"torch": {"version": "9"}}, "missing": {"triton": "no CUDA device"}, "cases": [
    {"sides": {"hpcdl": {"median_ms": 1}, "torch": {"median_ms": 2}}, "ratios": {"torch": {"median": 2.0, "low": 1.9, "high": 2.1}}},
    {"missing": {"torch": "no counterpart"}}]})";
  ::setenv("HPCDL_BENCH_PYTHON", stand_in(path("python"), "cat > $last <<'END'\n" + answer + "\nEND").c_str(), 1);
  const std::vector<std::string> words = {"relu", "--shape", "64x256", "--forward", "--vs", "torch,triton", "--json"};
  const auto r = bench(words);
  ::setenv("HPCDL_BENCH_PYTHON", stand_in(path("broken"), "exit 3").c_str(), 1);
  const auto broken = bench(words);
  ::setenv("HPCDL_BENCH_PYTHON", path("no-such-python").c_str(), 1);
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  EXPECT_EQ(j.at("peers").at("torch").at("version"), "9");
  EXPECT_EQ(j.at("missing").at("triton"), "no CUDA device");
  const auto& first = j.at("cases").at(0);
  EXPECT_EQ(first.at("sides").at("hpcdl from Python").at("median_ms"), 1) << "our own side must keep its position";
  EXPECT_EQ(first.at("sides").at("torch").at("median_ms"), 2);
  if (!first.contains("fault")) {
    EXPECT_EQ(first.at("ratios").at("torch").at("median"), 2.0);
  }
  EXPECT_EQ(j.at("cases").at(1).at("missing").at("torch"), "no counterpart");
  ASSERT_EQ(broken.code, 0) << broken.err;
  for (const char* name : {"torch", "triton"})
    EXPECT_NE(broken.json().at("missing").at(name).get<std::string>().find("ended with code 3"), std::string::npos)
        << broken.out;
}

TEST_F(BenchCli, compares_a_thing_with_itself) {
  const auto r =
      bench({"relu", "--shape", "64x256", "--forward", "--dtype", "f32", "--aa", "--repeats", "2", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto aa = r.json().at("aa");
  EXPECT_GE(aa.at("repeats"), 1);
  EXPECT_LE(aa.at("repeats"), 2);
  EXPECT_EQ(aa.at("goal_met").get<bool>(), aa.at("share").get<double>() >= 0.95);
  EXPECT_EQ(r.json().at("cases")[0].at("aa").at("repeats"), aa.at("repeats"));
  EXPECT_NE(r.err.find("2 repeats of"), std::string::npos) << "must announce the duration: " << r.err;
}

TEST_F(BenchCli, lists_without_timing) {
  const auto text = run({"bench", "softmax", "--list"});
  ASSERT_EQ(text.code, 0) << text.err;
  const auto j = run({"bench", "softmax", "--list", "--json"}).json();
  EXPECT_EQ(static_cast<std::ptrdiff_t>(j.at("cases").size()), std::count(text.out.begin(), text.out.end(), '\n'));
}

TEST_F(BenchCli, the_reader_of_a_named_pipe_gets_the_object) {
  const auto pipe = path("pipe"), read = path("read");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto line =
      fmt::format("cat {0} > {1} & timeout 60 {2} bench add --shape 1024 --rounds 3 --json {0} > {1}.text 2>&1; wait",
                  pipe, read, HPCDL_PROGRAM);
  EXPECT_EQ(std::system(line.c_str()), 0);
  EXPECT_FALSE(nlohmann::json::parse(io::read_file(read)).at("cases").empty());
}

TEST_F(BenchCli, wrong_words_are_usage_errors) {
  const auto expect = [](const Result& r, const std::string& part) {
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  expect(run({"bench", "sofmax"}), "did you mean 'softmax'");
  expect(run({"bench", "softmax", "--vs", "tourch"}), "did you mean 'torch'");
  expect(run({"bench", "softmax", "--cold", "--warm"}), "--cold");
  expect(run({"bench", "softmax", "--aa", "--vs", "torch"}), "--aa");
  expect(run({"bench", "softmax", "--shape", "1x2x3x4"}), "softmax");
  expect(run({"bench", "softmax", "--rounds", "0"}), "--rounds");
}

TEST_F(BenchCli, impossible_requests_are_refused_before_anything_is_timed) {
  const auto expect = [](const Result& r, const std::string& part) {
    EXPECT_EQ(r.code, 70) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  expect(run({"bench", "relu", "--shape", "10x10", "--rounds", "1", "--json", "/proc/none/b.json"}), "/proc/none");
  // Linux would grant the memory, and end the process when it is touched.
  const auto rows = std::to_string(lab::this_machine().memory_total / 4096);
  expect(run({"bench", "relu", "--shape", rows + "x4096", "--rounds", "1"}), "smaller --shape");
}

}  // namespace
}  // namespace hpcdl::cli_test
