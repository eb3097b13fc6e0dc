// Bad input over all verbs: every error is one line in the program's own words, with a fitting exit code.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/device.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr const char* kVerbs[] = {"demo",    "train",   "eval",     "generate", "tokenize", "quantize",
                                  "inspect", "convert", "logits",   "doctor",   "probe",    "bench",
                                  "profile", "verify",  "roofline", "tune",     "launch",   "slurm"};

std::string joined(const Words& words) {
  std::string text;
  for (const auto& w : words) text += w + " ";
  return text;
}

/// Texts of CLI11, of nlohmann's JSON and of the standard library, and typical mistakes of our own.
void expect_own_words(const Result& r, const Words& words) {
  SCOPED_TRACE(joined(words) + "\n" + r.err);
  EXPECT_TRUE(r.err.starts_with("hpcdl: [")) << "not an error of hpcdl";
  EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << "more than one line";
  for (const char* raw : {"json.exception",
                          "parse error",
                          "Could not convert",
                          "not in range",
                          "not in {",
                          " is required",
                          "At Most",
                          "At least",
                          "At Least",
                          "required TEXT",
                          "required INT",
                          "subcommand",
                          "following argument",
                          "INI",
                          "basic_string",
                          "vector::",
                          "std::",
                          "stoi",
                          "stol",
                          "terminate",
                          "filesystem error",
                          "[internal]",
                          "?;",
                          "1 threads",
                          ";;",
                          "  "})
    EXPECT_EQ(r.err.find(raw), std::string::npos) << "raw text: " << raw;
}

void expect_error(const Words& words, int code, const std::string& part) {
  const auto r = run(words);
  expect_own_words(r, words);
  EXPECT_EQ(r.code, code) << joined(words) << r.err;
  EXPECT_EQ(r.out, "") << joined(words);
  EXPECT_NE(r.err.find(part), std::string::npos) << joined(words) << r.err << "without: " << part;
}

/// Options that --help shows with a number, or with one of several words.
Words options_of(const std::string& verb, const std::string& kind) {
  std::istringstream help(run({verb, "--help"}).out);
  const std::regex option("^ +(?:-[a-z],)?(--[a-z0-9-]+) .*");
  Words names;
  std::smatch match;
  for (std::string line; std::getline(help, line);)
    if (std::regex_search(line, match, option) && std::regex_search(line, std::regex(kind))) names.push_back(match[1]);
  return names;
}

class Messages : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (tmp_ / name).string(); }
  std::string file(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    io::write_file_atomic(path(name), text);
    return path(name);
  }
  io::TempFolder tmp_;
};

TEST_F(Messages, a_misspelt_option_is_named_in_every_verb) {
  for (const std::string verb : kVerbs) {
    const Words words{verb, "--hlep"};
    const auto r = run(words);
    EXPECT_EQ(r.code, 2) << verb << r.err;
    expect_own_words(r, words);
    EXPECT_NE(r.err.find("unknown option --hlep; did you mean --help?"), std::string::npos) << verb << r.err;
  }
  expect_error({"generate", "--modle", "X"}, 2, "generate: unknown option --modle; did you mean --model? See hpcdl");
  expect_error({"generate", "--modle=X"}, 2, "unknown option --modle; did you mean --model?");
  expect_error({"generate", "--prompt", "x"}, 2, "generate needs --model; see hpcdl generate --help");
  expect_error({"train", "--memroy"}, 2, "unknown option --memroy; did you mean --memory?");
  expect_error({"train", "--train.stpes=4"}, 2, "did you mean 'train.steps'?");
  expect_error({"bench", "comm", "--max-byte=1"}, 2,
               "bench comm: unknown option --max-byte; see hpcdl bench comm --help");
  expect_error({"trian"}, 2, "unknown verb \"trian\"; did you mean 'train'? See hpcdl --help");
  expect_error({}, 2, "expected a verb; see hpcdl --help");
}

TEST_F(Messages, values_that_cannot_be_read_are_told_in_our_words) {
  std::size_t tried = 0;
  for (const std::string verb : kVerbs) {
    for (const auto& option : options_of(verb, R"( (INT|UINT|FLOAT|N>=?0|[0-9]+\.\.[0-9]+)\b)")) {
      expect_error({verb, option, "many"}, 2, option + ": expected ");
      expect_error({verb, option}, 2, "expected a value after " + option + ", found none; see hpcdl");
      ++tried;
    }
    for (const auto& option : options_of(verb, R"( [a-z0-9_]+(\|[a-z0-9_]+)+)")) {
      expect_error({verb, option, "sometimes"}, 2, option + ": expected ");
      ++tried;
    }
  }
  EXPECT_GT(tried, 40u);
  expect_error({"eval", "--model", "x", "--dtype", "f64"}, 2, "--dtype: expected auto, f32, bf16 or f16, found f64");
  expect_error({"doctor", "--json=maybe"}, 2, "--json takes no value");
  expect_error({"generate", "--model", "a", "--model", "b"}, 2, "--model is given more than once");
  expect_error({"generate", "--model", "a", "--seed", "-1"}, 2, "--seed: expected");
  expect_error({"generate", "--model", "a", "b"}, 2, "generate takes no argument \"b\" here");
  expect_error({"demo", "7"}, 2, "expected a number from 1 to 4, found 7");
}

TEST_F(Messages, help_says_ranges_and_choices_plainly) {
  for (const std::string verb : kVerbs) {
    const auto help = run({verb, "--help"}).out;
    for (const char* raw : {"POSITIVE", "NONNEGATIVE", "INT:", "FLOAT:", "TEXT:", " in ["})
      EXPECT_EQ(help.find(raw), std::string::npos) << verb << ": " << raw;
  }
  EXPECT_NE(run({"launch", "--help"}).out.find("--ranks 1..4096"), std::string::npos);
  EXPECT_NE(run({"convert", "--help"}).out.find("--to gguf|hpcdl|f32|bf16|f16"), std::string::npos);
}

TEST_F(Messages, a_folder_that_is_no_model_is_called_so) {
  fs::create_directories(path("empty"));
  file("other/notes.txt", "x");
  for (const auto& [folder, found] : {std::pair(path("empty"), std::string("found an empty folder")),
                                      {path("other"), "found notes.txt"},
                                      {file("a.txt", "x"), "found a file"}})
    for (const Words& words : {Words{"generate", "--model", folder, "--prompt", "x"},
                               {"eval", "--model", folder, "--text", path("a.txt")},
                               {"eval", "--model", folder, "--images"},
                               {"quantize", "--model", folder, "--out", path("q")},
                               {"convert", "--model", folder, "--out", path("c")},
                               {"inspect", "--program", folder},
                               {"logits", "--model", folder, "--tokens", "1", "--out", path("l")}})
      expect_error(
          words, 70,
          folder + ": not a model: expected a folder with config.json and model.safetensors or a GGUF file, " + found);
  expect_error({"generate", "--model", path("none"), "--prompt", "x"}, 70, "found none of them");
}

TEST_F(Messages, damaged_files_are_told_by_place_and_in_our_words) {
  int n = 0;
  for (const auto& [text, part] : {std::pair<std::string, std::string>{"{", "line 1, column 2"},
                                   {"", "an empty file"},
                                   {"[1, 2]", ""},
                                   {"{\n \"model_type\": \"llama\",\n oops\n}", "a mistake in line 3, column 2"},
                                   {"{\"model_type\": 5}", ""},
                                   {"{\"a\": 1e999}", "a number that is too large"},
                                   {"{\"\xff\": 1}", "a mistake in line 1"},
                                   {"{\"model_type\": \"llama\", \"hidden_size\": \"wide\"}", ""},
                                   {"{\"model_type\": \"gpt5\"}", ""}}) {
    const auto folder = "broken" + std::to_string(n++);
    file(folder + "/config.json", text);
    for (const Words& words : {Words{"generate", "--model", path(folder), "--prompt", "x"},
                               {"quantize", "--model", path(folder), "--out", path("q")},
                               {"inspect", "--program", path(folder)}})
      expect_error(words, 70, part);
    const auto tokenizer = file(folder + "/tokenizer.json", text);
    expect_error({"tokenize", "--tokenizer", tokenizer, "--ids"}, 70, part);
    expect_error({"profile", "merge", tokenizer, "--out", path("merged.json")}, 70, "");
    expect_error({"inspect", file("x" + folder + ".safetensors", text)}, 70, "");
    expect_error({"inspect", file(folder + "/model.safetensors.index.json", text)}, 70, "");
    for (const std::string verb : {"train", "slurm", "profile", "roofline"})
      expect_error({verb, "-c", file(folder + ".toml", text + " ="), "--output=" + path("run")}, 2, ".toml:");
  }
  file("bad.jsonl", "{\"text\": \"a\"}\n{oops\n");
  expect_error({"tokenize", "--train", "--vocab", "300", "--out", path("t"), path("bad.jsonl")}, 70, "line 2");
}

TEST_F(Messages, what_is_missing_is_said_with_what_would_do) {
  const auto config =
      file("run.toml", "[model]\nfamily = \"gpt2\"\n[data]\ntext = \"" + file("t.txt", "text ") + "\"\n");
  expect_error(
      {"train", "-c", config, "--out", path("run"), "--parallel.dp=2"}, 2,
      "parallel.dp = 2: expected 2 ranks, found one: start them with `hpcdl launch -n 2 -- train -c run.toml`, "
      "mpirun or srun");
  expect_error({"train", "-c", config, "--out", path("run"), "--parallel.tp=3"}, 2,
               "parallel.tp = 3: expected 3 ranks, found one: start them with `hpcdl launch -n 3 -- train");
  expect_error({"tune", "--train.batch=4"}, 2, "--train.batch is a key of a run, but no run is given: add -c run.toml");
  expect_error({"roofline", "--train.batch=4"}, 2, "--train.batch is a key of a run, but no run is given");
  expect_error({"tune", "--mdel", "x"}, 2, "unknown option --mdel; did you mean --model?");
  expect_error({"tune", "-c", "missing.toml"}, 70, "missing.toml");
  expect_error({"tune", "--model", "no/such/folder"}, 70, "no/such/folder");
  if (cuda_devices() == 0) expect_error({"tune"}, 70, "this machine has no GPU, so there is nothing to tune");
  for (const Words& words : {Words{"train"},
                             {"slurm"},
                             {"eval", "--model", "x"},
                             {"inspect"},
                             {"launch", "-n", "2"},
                             {"bench", "no_such_op"},
                             {"verify", "no_such_file.so", "--op"},
                             {"convert"},
                             {"logits"},
                             {"quantize"},
                             {"tokenize"},
                             {"train", "-c", path("none.toml")}}) {
    const auto r = run(words);
    EXPECT_TRUE(r.code == 2 || r.code == 70) << joined(words) << r.code;
    expect_own_words(r, words);
  }
}

TEST_F(Messages, one_thread_is_one) {
  ::setenv("HPCDL_THREADS", "1", 1);
  const auto r = run({"train", "--data.text=" + file("t.txt", std::string(4000, 'a') + " b"), "--data.vocab_size=260",
                      "--model.layers=1", "--model.heads=1", "--model.width=8", "--model.context=8", "--train.steps=1",
                      "--train.batch=1", "--out", path("run")});
  ::unsetenv("HPCDL_THREADS");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("planned, 1 thread"), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("1 threads"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace hpcdl::cli_test
