// hpcdl profile, profile merge and train --explain, as users run them.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hpcdl/train/train_for_tests.h"
#include "tests/cli/program.h"
#include "tools/profile/trace.h"
#include "tools/profile/trace_for_tests.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

const std::string kConfig = R"([model]
family = "gpt2"
layers = 2
heads = 2
width = 64
context = 32
[data]
vocab_size = 300
[train]
batch = 8
seed = 3
)";

class Profile : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tmp_ = new io::TempFolder;
    ::setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
    ::setenv("HPCDL_THREADS", "2", 1);
    io::write_file_atomic(path("toy.txt"), train::toy_text());
    io::write_file_atomic(path("run.toml"), kConfig);
  }
  static void TearDownTestSuite() { delete tmp_; }
  static std::string path(const std::string& name) { return (*tmp_ / name).string(); }
  static std::vector<std::string> words(const std::string& verb, const std::vector<std::string>& more) {
    std::vector<std::string> list{verb, "-c", path("run.toml"), "--data.text=" + path("toy.txt")};
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }
  static io::TempFolder* tmp_;
};
io::TempFolder* Profile::tmp_ = nullptr;

TEST_F(Profile, gives_table_trace_and_page_and_leaves_nothing_else) {
  const auto before = io::list_folder(path(""));
  const auto r = run(words("profile", {"--steps", "2", "--warmup", "1", "--trace", path("t.json.gz"), "--html",
                                       path("r.html"), "--explain"}));
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* part : {"waiting for data", "forward", "backward", "optimizer", "idle in between",
                           "linear.backward layers.*.mlp.c_proj", "step if free", "overhead of recording",
                           "in use at the peak", "lost against the roof"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " is not in\n" << r.out;
  lab::check_trace(io::parse_json(lab::read_trace(path("t.json.gz")), "t.json.gz"));
  EXPECT_NE(io::read_file(path("r.html")).find("<svg"), std::string::npos);
  std::vector<fs::path> fresh;
  for (const auto& p : io::list_folder(path("")))
    if (std::find(before.begin(), before.end(), p) == before.end() && p.filename() != "cache")
      fresh.push_back(p.filename());
  EXPECT_EQ(fresh, (std::vector<fs::path>{"r.html", "t.json.gz"}));
}

TEST_F(Profile, takes_the_steps_that_training_takes) {
  const auto p = run(words("profile", {"--steps", "2", "--warmup", "2", "--json", "--train.dropout=0.1"})).json();
  const auto t =
      run(words("train", {"--out", path("plain"), "--train.steps=6", "--json", "--train.dropout=0.1"})).json();
  const auto e = run(
      words("train", {"--out", path("explained"), "--train.steps=6", "--json", "--train.dropout=0.1", "--explain"}));
  EXPECT_EQ(p.at("loss"), t.at("loss"));
  EXPECT_EQ(e.json().at("loss"), t.at("loss"));
  EXPECT_TRUE(io::read_file(path("plain/model/model.safetensors")) ==
              io::read_file(path("explained/model/model.safetensors")));
  EXPECT_EQ(e.json().at("explain").size(), 5u);
  EXPECT_NE(e.err.find("lost against the roof"), std::string::npos) << e.err;
  EXPECT_FALSE(t.contains("explain"));
  EXPECT_EQ(p.at("steps"), 2);
  EXPECT_EQ(p.at("overhead").at("pairs"), 2);
  double sum = 0;
  for (const auto& row : p.at("rows")) sum += row.at("ms").get<double>();
  const auto& ms = p.at("ms");
  EXPECT_NEAR(sum + ms.at("data_wait").get<double>() + ms.at("idle").get<double>(), p.at("step_ms").get<double>(),
              1e-5);
  EXPECT_EQ(p.at("advice").size(), 5u);
}

/// Two simultaneous runs, each with its own rank, merged on one clock.
TEST_F(Profile, two_processes_merge_into_one_file) {
  std::vector<std::unique_ptr<Program>> ranks;
  for (const char* rank : {"0", "1"})
    ranks.push_back(std::make_unique<Program>(
        words("profile",
              {"--steps", "2", "--warmup", "1", "--trace", path(std::string("rank") + rank + ".json"), "--rank", rank,
               "--world-size", "2", "--data.cache=" + path(std::string("cache") + rank), "--train.threads=1"})));
  for (auto& r : ranks) {
    const auto result = r->wait();
    ASSERT_EQ(result.code, 0) << result.err;
  }
  const auto r =
      run({"profile", "merge", path("rank1.json"), path("rank0.json"), "--out", path("merged.json.gz"), "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto base = [&](int rank) {
    return io::read_json(path("rank" + std::to_string(rank) + ".json"))
        .at("hpcdl")
        .at("clock")
        .at("base_ns")
        .get<double>();
  };
  const auto clocks = r.json().at("clocks");
  ASSERT_EQ(clocks.size(), 2u);
  EXPECT_EQ(clocks[1].at("by"), "same host, same clock");
  EXPECT_NEAR(clocks[1].at("offset_us").get<double>(), (base(1) - base(0)) * 1e-3, 1e-3);
  const auto merged = io::parse_json(lab::read_trace(path("merged.json.gz")), "merged");
  lab::check_trace(merged);
  std::map<int, int> events;
  for (const auto& e : merged.at("traceEvents")) ++events[e.at("pid").get<int>()];
  EXPECT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0], events[1]);
  const auto text = run({"profile", "merge", path("rank0.json"), path("rank1.json"), "--out", path("merged.json")});
  EXPECT_NE(text.out.find("critical path"), std::string::npos);
  EXPECT_NE(text.out.find("no collective was matched"), std::string::npos) << text.out;

  const auto same = run({"profile", "merge", path("rank0.json"), path("rank0.json"), "--out", path("x.json")});
  EXPECT_EQ(same.code, 70);
  EXPECT_NE(same.err.find("--by-order"), std::string::npos) << same.err;
  EXPECT_EQ(
      run({"profile", "merge", path("rank0.json"), path("rank0.json"), "--out", path("x.json"), "--by-order"}).code, 0);
}

TEST_F(Profile, a_trace_over_the_limit_says_what_is_missing) {
  const auto r =
      run(words("profile", {"--steps", "3", "--warmup", "0", "--trace", path("cut.json"), "--trace-limit", "0.03"}));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("left out"), std::string::npos) << r.err;
  lab::check_trace(io::read_json(path("cut.json")));
}

TEST_F(Profile, inspect_knows_records_by_the_same_names) {
  const auto r = run({"inspect", path("run.toml"), "--program"});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* scope : {"layers.1.attn.c_attn", "layers.0.mlp.c_proj", "layers.1.ln_2", "head.ln_f", "embedding"})
    EXPECT_NE(r.out.find(scope), std::string::npos) << scope;
}

TEST_F(Profile, mistakes_are_reported) {
  const auto bad = [&](const std::vector<std::string>& w, int code, const std::string& part) {
    const auto r = run(w);
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  bad({"profile", "--steps", "2"}, 2, "data.text");
  bad(words("profile", {"--steps", "0"}), 2, "--steps");
  bad(words("profile", {"--train.stepps=3"}), 2, "stepps");
  bad(words("profile", {"--rank", "3"}), 2, "world");
  for (const char* file : {"--trace", "--html"}) {
    const auto r = run(words("profile", {file, "/proc/none/x"}));
    EXPECT_EQ(r.code, 70) << r.err;
    EXPECT_NE(r.err.find("/proc/none"), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("step 1"), std::string::npos) << "must fail before any step runs: " << r.err;
  }
  fs::create_directories(path("full/x"));
  bad(words("profile", {"--out", path("full")}), 2, "is not empty");
  bad({"profile", "merge", path("none.json"), "--out", path("x.json")}, 70, "none.json");
  bad({"profile", "merge", path("run.toml"), "--out", path("x.json")}, 70, "run.toml");
  bad({"profile", "merge", "--out", path("x.json")}, 2, "files");
}

}  // namespace
}  // namespace hpcdl::cli_test
