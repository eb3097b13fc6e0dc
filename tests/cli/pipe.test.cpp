// hpcdl pipe as other programs see it.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

using Words = std::vector<std::string>;

class PipeCli : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tmp_ = new io::TempFolder;
    ::setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
    io::write_file_atomic(path("run.toml"),
                          "[model]\nfamily = \"llama\"\nlayers = 6\nheads = 2\nwidth = 64\ncontext = 16\nvocab = "
                          "4000\n[train]\nbatch = 2\naccumulate = 8\n");
  }
  static void TearDownTestSuite() { delete tmp_; }
  static std::string path(const std::string& name) { return (*tmp_ / name).string(); }
  static io::TempFolder* tmp_;
};
io::TempFolder* PipeCli::tmp_ = nullptr;

TEST_F(PipeCli, json_has_what_the_contract_says) {
  const auto r = run({"pipe", "simulate", "--schedule", "1f1b", "--stages", "4", "--micros", "8", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  EXPECT_DOUBLE_EQ(j.at("makespan"), 33);
  EXPECT_NEAR(j.at("bubble").get<double>(), 3.0 / 11, 1e-12);
  EXPECT_TRUE(j.at("deadlock").is_null());
  ASSERT_EQ(j.at("ranks").size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& use = j.at("ranks")[static_cast<std::size_t>(rank)];
    EXPECT_DOUBLE_EQ(use.at("busy"), 24);
    EXPECT_DOUBLE_EQ(use.at("idle"), 9);
    EXPECT_EQ(use.at("frames"), 4 - rank);
    EXPECT_EQ(use.at("peak_bytes"), 0);
    EXPECT_EQ(use.at("wire_bytes"), 0);
  }
  EXPECT_EQ(j.at("order")[3], "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7");
  EXPECT_EQ(j.at("actions").size(), 4u);
}

TEST_F(PipeCli, shows_the_timeline) {
  const auto r = run({"pipe", "show", "--schedule", "zero_bubble", "--stages", "2", "--micros", "3"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("zero_bubble: 2 ranks, 2 stages, 3 micro-batches"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("makespan 10 units, bubble 10.0 %"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("rank 0  F0 F1 ...I0 W0 F2 I1 W1 I2 W2 \n"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("rank 1  ...F0 I0 F1 I1 W0 F2 I2 W1 W2 \n"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find('\x1b'), std::string::npos) << "colours where nobody sees them";
}

/// Of a run whose head weighs more than its layers: all ranks divide it.
TEST_F(PipeCli, divides_the_vocabulary_of_a_run) {
  const Words words = {"pipe", "simulate", "--schedule", "1f1b", "--stages", "2", "-c", path("run.toml"), "--json"};
  const auto simulated = [&](const Words& more) {
    auto all = words;
    all.insert(all.end(), more.begin(), more.end());
    const auto r = run(all);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.json();
  };
  const auto divided = simulated({"--vocabulary", "pipeline", "--barriers", "1", "--model.vocab=40000"}),
             whole = simulated({"--model.vocab=40000"});
  EXPECT_LT(divided.at("makespan").get<double>(), whole.at("makespan").get<double>());
  EXPECT_EQ(divided.at("barriers"), 1);
  ASSERT_TRUE(divided.at("costs").contains("vocabulary"));
  EXPECT_FALSE(whole.at("costs").contains("vocabulary"));
  const auto peak = [](const auto& j, std::size_t rank) {
    return j.at("ranks")[rank].at("peak_bytes").template get<double>();
  };
  EXPECT_LT(peak(divided, 1), 0.8 * peak(whole, 1));
  io::write_file_atomic(path("divided.json"), divided.dump());
  const auto again = run({"pipe", "show", "--schedule", "1f1b", "--stages", "2", "--micros", "8", "--barriers", "1",
                          "--costs", path("divided.json")});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("share of the vocabulary"), std::string::npos) << again.out;
  for (const auto& [more, part] : std::vector<std::pair<Words, std::string>>{
           {{"--schedule", "1f1b", "--barriers", "1"}, "--barriers is for ranks that divide the vocabulary"},
           {{"--schedule", "round_robin", "--vocabulary", "pipeline"}, "host memory"},
           {{"--schedule", "1f1b", "--vocabulary", "both"}, "pipeline"}}) {
    Words all = {"pipe", "simulate"};
    all.insert(all.end(), more.begin(), more.end());
    const auto r = run(all);
    EXPECT_EQ(r.code, 2) << r.out;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }
}

TEST_F(PipeCli, takes_the_layers_of_a_run_and_reads_its_costs_again) {
  const auto r = run({"pipe", "simulate", "--schedule", "1f1b", "--stages", "2", "-c", path("run.toml"), "--json",
                      "--svg", path("p.svg")});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  EXPECT_EQ(j.at("micros"), 8) << "train.accumulate";
  EXPECT_EQ(j.at("unit"), "seconds");
  const auto& layers = j.at("costs").at("layers");
  ASSERT_EQ(layers.size(), 8u) << "six layers, embedding and head";
  EXPECT_EQ(layers[3].at("weight_records"), 7);
  // Both cuts send (2, 16, 64) f32 for each of 8 micro-batches.
  for (const auto& use : j.at("ranks")) EXPECT_EQ(use.at("wire_bytes"), 8 * 2 * 16 * 64 * 4);
  EXPECT_LE(j.at("makespan").get<double>(), j.at("even").at("makespan").get<double>());
  int layers_of_stages = 0;
  for (const auto& n : j.at("partition")) layers_of_stages += n.get<int>();
  EXPECT_EQ(layers_of_stages, 8);
  EXPECT_TRUE(io::read_file(path("p.svg")).starts_with("<svg "));

  io::write_file_atomic(path("costs.json"), r.out);
  const auto again = run({"pipe", "simulate", "--schedule", "1f1b", "--stages", "2", "--micros", "8", "--costs",
                          path("costs.json"), "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.json().at("makespan"), j.at("makespan"));
  const auto text = run({"pipe", "simulate", "--schedule", "zbv", "--chunks", "2", "--costs", path("costs.json")});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("records F/I/W"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("layers by cost"), std::string::npos) << text.out;
}

TEST_F(PipeCli, an_override_of_the_run_takes_effect) {
  const auto r = run({"pipe", "simulate", "--schedule", "gpipe", "-c", path("run.toml"), "--train.accumulate=3",
                      "--model.layers=2", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.json().at("micros"), 3);
  EXPECT_EQ(r.json().at("costs").at("layers").size(), 4u);
}

TEST_F(PipeCli, names_the_circle_of_a_deadlock) {
  io::write_file_atomic(path("stuck.csv"), "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1\n");
  const auto r = run({"pipe", "show", "--order", path("stuck.csv"), "--json"});
  EXPECT_EQ(r.code, 1) << r.err;
  const auto j = r.json();
  EXPECT_EQ(j.at("deadlock").size(), 4u);
  EXPECT_TRUE(j.at("makespan").is_null());
  const auto text = run({"pipe", "show", "--order", path("stuck.csv")});
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.out.find("rank 1, action 1: the forward of stage 1, micro-batch 1"), std::string::npos) << text.out;
}

TEST_F(PipeCli, takes_an_order_from_a_file) {
  io::write_file_atomic(path("order.csv"), "# by hand\n0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const auto r = run({"pipe", "simulate", "--order", path("order.csv"), "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_DOUBLE_EQ(r.json().at("makespan"), 9);
}

TEST_F(PipeCli, few_micro_batches_run_with_a_note) {
  const auto r =
      run({"pipe", "simulate", "--schedule", "interleaved", "--chunks", "3", "--stages", "5", "--micros", "2"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("2 micro-batches cannot occupy 5 ranks at a time: use at least 5"), std::string::npos) << r.err;
}

TEST_F(PipeCli, says_what_is_wrong_and_what_would_fit) {
  io::write_file_atomic(path("missing.csv"), "0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n");
  io::write_file_atomic(path("two.csv"), "0F0,0B0\n1F0,1B0\n");
  io::write_file_atomic(path("bad.json"), "{\"layers\": []}");
  for (const auto& [words, message] : std::vector<std::pair<Words, std::string>>{
           {{"pipe"}, "show"},
           {{"pipe", "show"}, "expected --schedule NAME, --order FILE, or a run with parallel.pp above 1"},
           {{"pipe", "show", "--schedule", "1f1"}, "1f1b"},
           {{"pipe", "show", "--schedule", "1f1b", "--chunks", "2"}, "choose one of gpipe, interleaved"},
           {{"pipe", "show", "--schedule", "interleaved"}, "needs --chunks 2 or more"},
           {{"pipe", "show", "--schedule", "gpipe", "--stages", "0"}, "expected 1 to 256"},
           {{"pipe", "show", "--schedule", "gpipe", "--stages", "9", "-c", path("run.toml")}, "use at most 8 stages"},
           {{"pipe", "show", "--schedule", "gpipe", "--train.batch=3"}, "add -c run.toml"},
           {{"pipe", "show", "--schedule", "gpipe", "-c", path("run.toml"), "--costs", path("bad.json")},
            "not by both"},
           {{"pipe", "show", "--schedule", "gpipe", "--order", path("two.csv")}, "not both"},
           {{"pipe", "show", "--schedule", "gpipe", "--memory", "24G"}, "no layers are given"},
           {{"pipe", "show", "--schedule", "gpipe", "-c", path("run.toml"), "--memory", "much"}, "--memory: expected"},
           {{"pipe", "show", "--schedule", "gpipe", "-c", path("run.toml"), "--memory", "10KiB"}, "it takes at least"},
           {{"pipe", "show", "--order", path("missing.csv")}, "the backward of stage 0, micro-batch 1 is missing"},
           {{"pipe", "show", "--order", path("two.csv"), "--micros", "3"}, "leave the option out"}}) {
    const auto r = run(words);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_NE(r.err.find(message), std::string::npos) << r.err;
    EXPECT_TRUE(r.out.empty());
  }
  for (const auto& [words, message] : std::vector<std::pair<Words, std::string>>{
           {{"pipe", "show", "--schedule", "gpipe", "--costs", path("bad.json")}, "expected \"layers\""},
           {{"pipe", "show", "--order", path("none.csv")}, "none.csv"},
           {{"pipe", "show", "--schedule", "gpipe", "--svg", "/proc/none/p.svg"}, "/proc/none"}}) {
    const auto r = run(words);
    EXPECT_EQ(r.code, 70) << r.err;
    EXPECT_NE(r.err.find(message), std::string::npos) << r.err;
  }
}

/// A schedule, a cut and micro-batches of the run itself.
TEST_F(PipeCli, takes_the_pipeline_of_a_run) {
  const Words simulate{"pipe", "simulate", "-c", path("run.toml"), "--json"};
  const auto with = [&](Words more) {
    auto words = simulate;
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const auto j = with({"--parallel.pp=2", "--parallel.schedule=zero_bubble", "--parallel.layers=[3,5]"}).json();
  EXPECT_EQ(j.at("schedule"), "zero_bubble");
  EXPECT_EQ(j.at("micros"), 8);
  EXPECT_EQ(j.at("partition"), (std::vector<int>{3, 5}));
  io::write_file_atomic(path("own.csv"), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(with({"--parallel.pp=2", "--parallel.order=" + path("own.csv")}).json().at("micros"), 2);
  EXPECT_EQ(with({"--parallel.pp=2", "--schedule", "gpipe", "--stages", "4"}).json().at("ranks").size(), 4u);
  const auto none = with({});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("or a run with parallel.pp above 1"), std::string::npos) << none.err;
}

TEST_F(PipeCli, measures_a_pipeline_beside_its_simulation) {
  const auto r = run({"pipe", "measure", "-c", path("run.toml"), "-n", "2", "--rounds", "2", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  EXPECT_EQ(j.at("measured").at("steps").size(), 2u);
  EXPECT_GT(j.at("measured").at("simulated_over_measured").get<double>(), 0);
  EXPECT_EQ(j.at("costs").at("layers").size(), 8u);
  io::write_file_atomic(path("costs.json"), r.out);
  const auto again = run({"pipe", "simulate", "--costs", path("costs.json"), "--schedule", "gpipe", "--json"});
  EXPECT_EQ(again.code, 0) << again.err;
  const auto alone = run({"pipe", "measure", "-c", path("run.toml")});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("hpcdl pipe measure -n 2"), std::string::npos) << alone.err;
}

}  // namespace
}  // namespace hpcdl::cli_test
