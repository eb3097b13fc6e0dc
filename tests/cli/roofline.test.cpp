// hpcdl roofline as other programs see it. Speed does not matter here.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

class RooflineCli : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tmp_ = new io::TempFolder;
    ::setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
  }
  static void TearDownTestSuite() { delete tmp_; }
  static std::string path(const std::string& name) { return (*tmp_ / name).string(); }
  static io::TempFolder* tmp_;
};
io::TempFolder* RooflineCli::tmp_ = nullptr;

const nlohmann::json* row(const nlohmann::json& j, const std::string& op, const std::string& shape,
                          const std::string& dtype) {
  for (const auto& r : j.at("rows"))
    if (r.at("op") == op && r.at("shape") == shape && r.at("dtype") == dtype) return &r;
  return nullptr;
}

TEST_F(RooflineCli, json_is_one_object_with_the_seed_first) {
  const auto r = run({"roofline", "--json", "--no-measure"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  for (const char* key : {"cpu", "isa"}) EXPECT_TRUE(j.at("machine").contains(key)) << key;
  for (const char* key : {"f32", "bf16", "i8", "memory"}) EXPECT_GT(j.at("roofs").at(key).get<double>(), 0) << key;
  EXPECT_EQ(j.at("device"), "cpu");
  EXPECT_EQ(j.at("above_roof"), 0);
  EXPECT_TRUE(j.at("disturbance").is_null()) << "nothing was measured";
  ASSERT_GT(j.at("rows").size(), 150u);
  const auto& rows = j.at("rows");
  EXPECT_EQ(rows[0].at("op"), "add");
  EXPECT_NEAR(rows[0].at("intensity").get<double>(), 0.083, 5e-4);
  EXPECT_EQ(rows[1].at("op"), "matmul");
  EXPECT_NEAR(rows[1].at("intensity").get<double>(), 682.67, 5e-3);
  EXPECT_EQ(rows[2].at("op"), "softmax");
  for (const auto& one : rows) {
    EXPECT_GT(one.at("light_seconds").get<double>(), 0) << one;
    EXPECT_TRUE(one.at("seconds").is_null());
  }
}

TEST_F(RooflineCli, measures_what_is_asked_and_writes_the_files) {
  const auto r = run({"roofline", "layer_norm", "--shape", "64x256", "--shape", "32x128", "--json", "--csv",
                      path("a.csv"), "--svg", path("a.svg"), "--html", path("a.html")});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  EXPECT_TRUE(j.at("disturbance").at("trusted").is_boolean());
  for (const char* shape : {"64x256", "32x128"}) {
    const auto* one = row(j, "layer_norm", shape, "bf16");
    ASSERT_TRUE(one) << shape;
    EXPECT_GT(one->at("seconds").get<double>(), 0);
    EXPECT_GT(one->at("share").get<double>(), 0);
  }
  EXPECT_TRUE(io::read_file(path("a.csv")).starts_with("source,op,shape,"));
  EXPECT_TRUE(io::read_file(path("a.svg")).starts_with("<svg "));
  EXPECT_NE(io::read_file(path("a.html")).find("layer_norm 64x256"), std::string::npos);
}

TEST_F(RooflineCli, takes_every_record_of_a_training_step) {
  io::write_file_atomic(path("run.toml"),
                        "[model]\nfamily = \"llama\"\nlayers = 2\nheads = 2\nwidth = 64\ncontext = 16\nvocab = "
                        "300\n[train]\nbatch = 2\n");
  const auto r = run({"roofline", "-c", path("run.toml"), "--train.batch=3", "--json", "--no-measure"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  const auto steps = std::count_if(j.at("rows").begin(), j.at("rows").end(),
                                   [](const auto& one) { return one.at("source") == "step"; });
  EXPECT_GT(steps, 15);
  EXPECT_EQ(j.at("rows").size(), static_cast<std::size_t>(steps) + 3) << "the seed, the step, and no other case";
  const auto* attention = row(j, "attention", "3x16x64 3x16x64", "f32");
  ASSERT_TRUE(attention) << "the override must take effect";
  EXPECT_EQ(attention->at("count"), 2);
}

TEST_F(RooflineCli, the_table_is_plain_text_when_nobody_watches) {
  const auto r = run({"roofline", "add", "--shape", "1000", "--no-measure"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out.find('\x1b'), std::string::npos);
  EXPECT_NE(r.out.find("0.083"), std::string::npos);
  EXPECT_NE(r.out.find("ridge"), std::string::npos);
}

TEST_F(RooflineCli, says_what_is_wrong) {
  for (const auto& [words, message] :
       {std::pair<std::vector<std::string>, std::string>{{"roofline", "sofmax"}, "did you mean 'softmax'"},
        {{"roofline", "softmax", "--shape", "7"}, "softmax takes RxC"},
        {{"roofline", "softmax", "--shape", "4xfour"}, "expected a shape"},
        {{"roofline", "--shape", "4x4"}, "needs the names of its ops"},
        {{"roofline", "--train.batch=3"}, "is a key of a run, but no run is given: add -c run.toml"},
        {{"roofline", "-c", path("run.toml"), "--train.bach=3", "--no-measure"}, "batch"}}) {
    const auto r = run(words);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_NE(r.err.find(message), std::string::npos) << r.err;
    EXPECT_TRUE(r.out.empty());
  }
}

TEST_F(RooflineCli, what_cannot_end_well_is_told_before_anything_is_measured) {
  for (const auto& words : {std::vector<std::string>{"--svg", "/proc/none/r.svg"}, {"-c", "/proc/none/run.toml"}}) {
    std::vector<std::string> all{"roofline", "add", "--shape", "1000", "--no-measure"};
    all.insert(all.end(), words.begin(), words.end());
    const auto r = run(all);
    EXPECT_EQ(r.code, 70) << r.err;
    EXPECT_NE(r.err.find("/proc/none"), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("roofline:"), std::string::npos) << r.err;
  }
}

}  // namespace
}  // namespace hpcdl::cli_test
