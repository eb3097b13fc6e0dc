// hpcdl bench comm, ddp and tp on ranks that are threads, as other programs see them.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

Result bench(const std::string& name, std::vector<std::string> words) {
  words.insert(words.begin(), {"bench", name});
  return run(words);
}

Result comm(std::vector<std::string> words) {
  words.insert(words.end(), {"--rounds", "3", "--seconds", "0.001", "--check"});
  return bench("comm", words);
}

void expect_usage_error(const Result& r, const std::string& part) {
  EXPECT_EQ(r.code, 2) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

TEST(bench_ranks, one_collective_is_one_json_object) {
  for (const char* what : {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"})
    for (const char* algorithm : {"auto", "shared"}) {
      const auto r = comm({"-n", "2", "--collective", what, "--algorithm", algorithm, "--bytes", "64K", "--json"});
      ASSERT_EQ(r.code, 0) << r.err;
      const auto j = r.json();
      EXPECT_EQ(j.at("collective"), what);
      EXPECT_EQ(j.at("algorithm"), algorithm);
      EXPECT_EQ(j.at("bytes"), 64 << 10);
      for (const char* key : {"us", "algbw", "busbw"}) EXPECT_GT(j.at(key).get<double>(), 0) << key;
      for (const char* key : {"native_us", "ratio"})
        EXPECT_TRUE(j.at(key).is_null()) << "threads have no native library";
      EXPECT_LE(j.at("max_error").get<double>(), 1e-6);
    }
}

TEST(bench_ranks, bytes_are_those_of_whole_elements_for_each_rank) {
  const auto bytes = [](const std::string& what, const std::string& asked) {
    return comm({"-n", "3", "--collective", what, "--algorithm", "shared", "--bytes", asked, "--json"})
        .json()
        .at("bytes");
  };
  EXPECT_EQ(bytes("all_reduce", "3"), 4);
  EXPECT_EQ(bytes("all_reduce", "103"), 100);
  EXPECT_EQ(bytes("all_gather", "103"), 96);
  const auto sweep = comm({"-n", "3", "--collective", "all_to_all", "--min", "4", "--max", "64", "--json"}).json();
  std::vector<int> sizes;
  for (const auto& row : sweep.at("rows"))
    if (row.at("algorithm") == "pairwise") sizes.push_back(row.at("bytes"));
  EXPECT_EQ(sizes, (std::vector<int>{12, 60})) << "4 and 16 are both one element for each";
}

TEST(bench_ranks, the_table_compares_with_native_only_where_there_is_one) {
  const auto r = comm({"-n", "2", "--bytes", "1K"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("all_reduce, 2 ranks on 1 host, threads, fp32"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("as fast as native"), std::string::npos) << r.out;
}

TEST(bench_ranks, an_impossible_choice_is_refused_with_the_possible_ones) {
  expect_usage_error(comm({"-n", "2", "--collective", "all_to_all", "--algorithm", "ring", "--bytes", "1K"}),
                     "no all_to_all by ring between 2 ranks on 1 host over threads: expected auto, pairwise, shared");
  expect_usage_error(comm({"-n", "2", "--collective", "allreduce"}), "did you mean 'all_reduce'");
  expect_usage_error(comm({"-n", "2", "--bytes", "1Q"}), "1Q");
  for (const char* name : {"comm", "ddp", "tp", "zero"})
    expect_usage_error(bench(name, {}),
                       std::string("there is only one rank: start several with mpirun -n 2 hpcdl bench ") + name);
}

TEST(bench_ranks, sizes_that_make_no_sweep_are_refused) {
  expect_usage_error(comm({"-n", "2", "--min", "0.5"}), "0.5");  // no whole byte: four times that is still too little
  expect_usage_error(comm({"-n", "2", "--min", "1M", "--max", "1K"}), "--min 1M is more than --max 1K");
}

TEST(bench_ranks, files_are_tried_before_anything_is_timed_and_a_single_size_is_drawn_too) {
  for (const char* name : {"comm", "ddp", "tp", "zero"})
    for (const char* file : {"--svg", "--json"}) {
      if (name[0] != 'c' && name[0] != 'd' && std::string(file) == "--svg") continue;
      const auto r = bench(name, {"-n", "2", "--rounds", "10000", file, "/proc/none/file"});
      EXPECT_EQ(r.code, 70) << r.err;
      EXPECT_NE(r.err.find("/proc/none"), std::string::npos) << r.err;
    }
  const io::TempFolder tmp;
  const auto svg = (tmp / "one.svg").string();
  ASSERT_EQ(comm({"-n", "2", "--algorithm", "ring", "--bytes", "1K", "--svg", svg}).code, 0);
  const auto picture = io::read_file(svg);
  EXPECT_NE(picture.find("ring"), std::string::npos);
  EXPECT_EQ(picture.find("nan"), std::string::npos) << picture;
}

const std::vector<std::string> kSmall = {"-n",        "2",  "--layers", "1",  "--width", "32", "--heads",  "2",
                                         "--context", "16", "--vocab",  "64", "--batch", "2",  "--rounds", "1",
                                         "--threads", "1",  "--json"};

TEST(bench_ranks, ddp_compares_bucket_sizes_with_waiting_and_with_no_exchange) {
  auto words = kSmall;
  words.insert(words.begin(), {"--buckets", "0.01,25"});
  const auto r = bench("ddp", words);
  ASSERT_EQ(r.code, 0) << r.err;
  const auto forms = r.json().at("forms");
  ASSERT_EQ(forms.size(), 4u);
  EXPECT_EQ(forms[0].at("form"), "compute");
  EXPECT_FALSE(forms[0].contains("hidden"));
  EXPECT_EQ(forms[1].at("form"), "blocking");
  EXPECT_GT(forms[2].at("buckets"), forms[3].at("buckets"));
  for (std::size_t i = 1; i < forms.size(); ++i) {
    EXPECT_GE(forms[i].at("hidden").get<double>(), 0);
    EXPECT_LE(forms[i].at("hidden").get<double>(), 1);
    EXPECT_GT(forms[i].at("speedup_vs_blocking").get<double>(), 0);
  }
}

TEST(bench_ranks, zero_says_what_each_stage_takes) {
  const auto r = bench("zero", kSmall);
  ASSERT_EQ(r.code, 0) << r.err;
  const auto stages = r.json().at("stages");
  ASSERT_EQ(stages.size(), 4u);
  for (std::size_t i = 1; i < stages.size(); ++i) {
    EXPECT_EQ(stages[i].at("first_loss"), stages[0].at("first_loss"));
    EXPECT_LT(stages[i].at("state_bytes"), stages[i - 1].at("state_bytes"));
  }
  expect_usage_error(bench("zero", {"-n", "2", "--stages", "0,7"}), "expected stages from 0 to 3, got 7");
}

TEST(bench_ranks, tp_counts_what_the_formulas_say) {
  const auto r = bench("tp", kSmall);
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  ASSERT_EQ(j.at("schemes").size(), 3u) << j;
  for (const auto& scheme : j.at("schemes")) {
    EXPECT_GT(scheme.at("wire_bytes"), 0) << scheme;
    EXPECT_EQ(scheme.at("wire_bytes"), scheme.at("declared_bytes")) << scheme;
  }
}

}  // namespace
}  // namespace hpcdl::cli_test
