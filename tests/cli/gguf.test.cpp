// GGUF files on the command line: written, checked, shown and used like the folder they come from.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

void expect_error(const Result& r, int code, const std::string& part) {
  EXPECT_EQ(r.code, code) << r.err;
  EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

class Gguf : public testing::Test {
 protected:
  void SetUp() override {
    io::ModelConfig c;
    c.family = io::Family::llama;
    c.layers = 2, c.heads = 4, c.kv_heads = 2, c.width = 64, c.context = 96, c.vocab = 300, c.ffn = 128;
    models::resolve(c);
    models::LanguageModel::create(c, 3, false).save(model());
    io::BpeVocab bytes;
    for (const auto& letter : io::byte_level_alphabet())
      bytes.tokens.emplace_back(letter, static_cast<io::TokenId>(bytes.tokens.size()));
    io::Tokenizer::from_bpe(std::move(bytes), {}).save(tmp / "model/tokenizer.json");
    io::write_file_atomic(tmp / "text.txt", std::string(40, 'a') + " few words for a test of a few words");
  }
  std::string path(const std::string& name) const { return (tmp / name).string(); }
  std::string model() const { return path("model"); }
  std::string written(const std::string& type, const std::vector<std::string>& more = {}) {
    const auto out = path("m-" + type + ".gguf");
    std::vector<std::string> words = {"convert", "--model", model(), "--to", "gguf", "--type", type, "--out", out};
    words.insert(words.end(), more.begin(), more.end());
    const auto r = run(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return out;
  }
  io::TempFolder tmp;
};

TEST_F(Gguf, a_file_generates_what_its_folder_does) {
  const auto file = written("F32", {"--verify"});
  const auto generated = [&](const std::string& from) {
    const auto r = run({"generate", "--model", from, "--prompt", "a few", "--tokens", "8", "--ignore-eos", "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.json();
  };
  EXPECT_EQ(generated(file).at("text"), generated(model()).at("text"));
  const auto loss = [&](const std::string& from) {
    const auto r = run({"eval", "--model", from, "--text", path("text.txt"), "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.json().at("loss").get<double>();
  };
  EXPECT_NEAR(loss(file), loss(model()), 1e-6);
  EXPECT_NEAR(loss(written("Q8_0")), loss(model()), 1e-2);
}

TEST_F(Gguf, a_folder_comes_back_from_a_file) {
  const auto file = written("F32");
  ASSERT_EQ(run({"convert", "--model", file, "--out", path("back"), "--verify"}).code, 0);
  EXPECT_EQ(run({"inspect", path("back"), "--json"}).json().at("parameters"),
            run({"inspect", model(), "--json"}).json().at("parameters"));
  ASSERT_EQ(run({"convert", "--model", file, "--to", "bf16", "--out", path("half")}).code, 0);
  EXPECT_EQ(run({"inspect", path("half"), "--json"}).json().at("tensors")[0].at("dtype"), "BF16");
}

TEST_F(Gguf, inspect_shows_a_file) {
  const auto r = run({"inspect", written("Q8_0"), "--json", "--check"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto shown = r.json();
  EXPECT_EQ(shown.at("metadata").at("general.architecture"), "llama");
  EXPECT_EQ(shown.at("metadata").at("llama.attention.head_count_kv"), 2);
  EXPECT_EQ(shown.at("parameters"), run({"inspect", model(), "--json"}).json().at("parameters"));
  EXPECT_NE(run({"inspect", path("m-Q8_0.gguf")}).out.find("blk.1.attn_output.weight  Q8_0"), std::string::npos);
  io::write_file_atomic(tmp / "cut.gguf", io::read_file(path("m-Q8_0.gguf")).substr(0, 30'000));
  expect_error(run({"inspect", path("cut.gguf")}), 70, "truncated download?");
}

TEST_F(Gguf, a_conversion_that_loses_too_much_leaves_nothing) {
  const std::vector<std::string> words = {"convert", "--model", model(),           "--to",     "gguf",     "--type",
                                          "Q4_0",    "--out",   path("lost.gguf"), "--verify", "--max-kl", "1e-12"};
  expect_error(run(words), 70, "nothing was written");
  EXPECT_FALSE(fs::exists(path("lost.gguf")));
  EXPECT_FALSE(fs::exists(path(".checked-lost.gguf")));
}

TEST_F(Gguf, mistakes_are_named) {
  const auto file = written("F16");
  const auto convert = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"convert", "--model", model()};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  expect_error(convert({"--to", "gguf", "--out", file}), 2, "give --force to replace it");
  EXPECT_EQ(convert({"--to", "gguf", "--out", file, "--force"}).code, 0);
  expect_error(convert({"--to", "gguf", "--type", "Q2_K", "--out", path("x")}), 2, "expected one of F32, F16, BF16");
  expect_error(convert({"--type", "F16", "--out", path("x")}), 2, "--type is for --to gguf");
  expect_error(convert({"--to", "gguf", "--out", model()}), 2, "found the folder");
  expect_error(run({"quantize", "--model", file, "--out", path("q")}), 70, "hpcdl convert --to bf16");
  expect_error(run({"generate", "--model", file, "--prompt", "a", "--load", "direct"}), 2, "these options");
}

}  // namespace
}  // namespace hpcdl::cli_test
