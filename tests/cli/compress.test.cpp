// hpcdl compress: what it writes works wherever the original did, and its errors.

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "hpcdl/io/safetensors.h"
#include "tests/cli/trained_model.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

TEST_F(Cli, a_compressed_model_works_wherever_the_other_did) {
  for (const std::string method : {"svd", "monarch", "blast"}) {
    const auto out = path(method);
    Words words{"compress", "--model", model(),    "--out",       out,      "--method", method,
                "--ratio",  "0.5",     "--report", out + ".json", "--json", "--text",   path("toy.txt")};
    const auto made = run(words);
    ASSERT_EQ(made.code, 0) << made.err;
    const auto json = made.json();
    EXPECT_EQ(json.at("method"), method);
    EXPECT_LE(json.at("ratio").get<double>(), 0.5);
    EXPECT_EQ(json.at("layers").size(), 14u);
    for (const char* key : {"name", "shape", "method", "rank", "bytes_before", "bytes", "relative_error"})
      EXPECT_TRUE(json.at("layers")[0].contains(key)) << key;
    EXPECT_GT(json.at("loss_after").get<double>(), 0);
    const auto report = io::parse_json(io::read_file(out + ".json"), "report");
    EXPECT_EQ(report.at("layers"), json.at("layers"));

    const auto text = run({"generate", "--model", out, "--prompt", "the river", "--tokens", "4", "--json"});
    EXPECT_EQ(text.code, 0) << text.err;
    const auto eval = run({"eval", "--model", out, "--text", path("toy.txt"), "--json"});
    ASSERT_EQ(eval.code, 0) << eval.err;
    EXPECT_NEAR(eval.json().at("loss").get<double>(), json.at("loss_after").get<double>(), 1e-9);
    const auto inspected = run({"inspect", out, "--json"});
    ASSERT_EQ(inspected.code, 0) << inspected.err;
    EXPECT_EQ(inspected.json().at("config").at("hpcdl_compression").size(), 14u);
    EXPECT_EQ(run({"inspect", out, "--program"}).code, 0);

    const auto tuned = run({"train", "--model.init=" + out, "--data.text=" + path("toy.txt"), "--train.steps=2",
                            "--train.batch=2", "--out", path(method + "-tuned"), "--json"});
    EXPECT_EQ(tuned.code, 0) << tuned.err;
    EXPECT_EQ(run({"eval", "--model", path(method + "-tuned/model"), "--text", path("toy.txt"), "--json"}).code, 0);
    words.insert(words.end(), {"--threads", "1", "--force"});
    const auto first = io::read_file(fs::path(out) / "model.safetensors");
    ASSERT_EQ(run(words).code, 0);
    EXPECT_EQ(first, io::read_file(fs::path(out) / "model.safetensors")) << "threads change no bit";
  }
}

TEST_F(Cli, compress_weighs_errors_by_a_text) {
  const auto weighed = run({"compress", "--model", model(), "--out", path("weighed"), "--method", "svd", "--ratio",
                            "0.5", "--calib", path("toy.txt"), "--calib-tokens", "512", "--json"});
  ASSERT_EQ(weighed.code, 0) << weighed.err;
  for (const auto& layer : weighed.json().at("layers")) EXPECT_EQ(layer.at("weighed"), true);
  EXPECT_NE(run({"compress", "--model", model(), "--out", path("table"), "--ratio", "0.5", "--blocks", "2"})
                .out.find("14 matrices by method monarch"),
            std::string::npos);
}

TEST_F(Cli, compress_says_what_is_wrong) {
  const auto with = [&](const Words& more) {
    Words words{"compress", "--model", model(), "--out", path("none")};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run(words);
    EXPECT_FALSE(fs::exists(path("none")));
    return result;
  };
  expect_error(with({}), 2, "--ratio");
  for (const char* ratio : {"0", "1", "-0.5", "2", "nan"}) expect_error(with({"--ratio", ratio}), 2, "--ratio");
  expect_error(with({"--ratio", "0.5", "--method", "magic"}), 2, "--method");
  expect_error(with({"--ratio", "0.5", "--method", "svd", "--blocks", "4"}), 2, "svd has one block");
  expect_error(with({"--ratio", "0.5", "--calib", path("toy.txt")}), 2, "--method svd only");
  expect_error(with({"--ratio", "0.5", "--keep", "("}), 2, "--keep: expected a regular expression");
  expect_error(with({"--ratio", "0.5", "--keep", "nothing"}), 70, "no matrix has a name that is to be kept");
  expect_error(with({"--ratio", "0.5", "--blocks", "7"}), 70, "--blocks may be 2, 4, 8");
  expect_error(with({"--ratio", "0.001"}), 70, "use a larger ratio");
  ASSERT_EQ(run({"compress", "--model", model(), "--out", path("once"), "--ratio", "0.5"}).code, 0);
  expect_error(run({"compress", "--model", model(), "--out", path("once"), "--ratio", "0.5"}), 2, "--force");
  for (const Words& words : {Words{"compress", "--ratio", "0.5"}, {"quantize"}, {"convert", "--to", "gguf"}}) {
    auto all = words;
    all.insert(all.end(), {"--model", path("once"), "--out", path("none")});
    expect_error(run(all), 70, "start from the original");
    EXPECT_FALSE(fs::exists(path("none"))) << words[0];
  }
}

/// As on a full disk: an error that says why, and nothing is left.
TEST_F(Cli, compress_leaves_nothing_if_it_cannot_write) {
  const auto err = path("limited.err");
  const auto command = fmt::format("ulimit -f 64; exec '{}' compress --model '{}' --ratio 0.5 --out '{}' 2>'{}'",
                                   HPCDL_PROGRAM, model(), path("limited"), err);
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 70);
  EXPECT_NE(io::read_file(err).find("ulimit -f"), std::string::npos) << io::read_file(err);
  EXPECT_FALSE(fs::exists(path("limited")));
  EXPECT_FALSE(fs::exists(path(".tmp-limited")));
}

}  // namespace
}  // namespace hpcdl::cli_test
