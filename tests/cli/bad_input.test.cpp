// The contract of the program: the errors for bad input.

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "hpcdl/io/safetensors.h"
#include "tests/cli/trained_model.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

TEST_F(Cli, wrong_words_are_usage_errors) {
  expect_error(run({"trian"}), 2, "did you mean");
  expect_error(run({"generate", "--modle", "x"}), 2, "[usage]");
  expect_error(run({"generate", "--model", model(), "--tokns=4"}), 2, "unknown option --tokns; did you mean --tokens?");
  expect_error(run({"doctor", "here"}), 2, "no argument \"here\"");
  expect_error(run({"bench", "comm", "--no-such-words"}), 2,
               "[usage] bench comm: unknown option --no-such-words; see hpcdl bench comm --help");
  expect_error(run({"bench", "comm", "--max-byte=1"}), 2, "bench comm: unknown option --max-byte");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"launch", "-n", "1", "--grace", "nan", "--", "doctor"},
        {"convert", "--model", model(), "--out", path("x"), "--max-shard", "nan"}})
    expect_error(run(words), 2, "found nan");
  expect_error(run({"launch", "-n", "2", "train", "-c", path("run.toml")}), 2, "after --");
  expect_error(run({"inspect", path("run.toml")}), 2, "--program");
  expect_error(run({}), 2, "expected a verb");
  expect_error(run({"--json", "doctor"}), 2, "--json");
  expect_error(run({"generate", "--model", model(), "--prompt", "x", "--seed", "-1"}), 2, "-1");
  expect_error(train({"--out", path("x"), "--train.stpes=3"}), 2, "train.steps");
  expect_error(train({"--out", path("x"), "--train.steps=many"}), 2, "[config] --train.steps: expected an integer");
  expect_error(train({"--out", path("x"), "--model.heads=3"}), 2, "heads");
  expect_error(train({}), 2, "--out");
  expect_error(run({"quantize", "--model", model(), "--group", "48", "--out", path("x")}), 2, "48");
  expect_error(run({"logits", "--model", model(), "--tokens", "1,x", "--out", path("x")}), 2, "\"x\"");
  io::write_file_atomic(path("bad.toml"), "[train]\nsteps = \"ten\"\n");
  expect_error(run({"train", "-c", path("bad.toml"), "--out", path("x")}), 2, "bad.toml:2");
  io::write_file_atomic(path("unknown.toml"), "[train]\nsteeps = 10\n");
  expect_error(run({"train", "-c", path("unknown.toml"), "--out", path("x")}), 2, "steeps");
}

TEST_F(Cli, options_that_tokenize_would_ignore_are_refused) {
  const std::vector<std::string> use = {"tokenize", "--tokenizer", model()}, learn = {"tokenize", "--train"};
  const auto refused = [&](std::vector<std::string> words, const std::vector<std::string>& more,
                           const std::string& part) {
    words.insert(words.end(), more.begin(), more.end());
    expect_error(run(words), 2, part);
  };
  refused(use, {"--ids", path("toy.txt")}, "--ids reads standard input: write < ");
  refused(use, {"--ids", "--out", path("x")}, "--out cannot be combined with --ids");
  refused(use, {"--ids", "--text-key", "body"}, "--text-key is for .jsonl files");
  refused(use, {"--vocab", "300", "--out", path("x"), path("toy.txt")}, "--vocab is for learning a tokenizer");
  refused(learn, {"--layout", "nanogpt", "--out", path("x"), path("toy.txt")}, "--layout is for token files");
}

TEST_F(Cli, an_empty_value_does_not_take_the_next_word) {
  expect_error(train({"--out="}), 2, "no output folder");
  EXPECT_EQ(
      run({"generate", "--model", model(), "--prompt=", "--json", "--tokens", "3"}).json().at("prompt_ids").size(), 1u);
  EXPECT_EQ(train({"--data.tokenizer=", "--print-config"}).json().at("data").at("tokenizer"), "");
}

TEST_F(Cli, bad_models_have_different_errors) {
  expect_error(run({"generate", "--model", path("none"), "--prompt", "x"}), 70, "none");
  fs::create_directories(path("empty"));
  expect_error(run({"generate", "--model", path("empty"), "--prompt", "x"}), 70, "config.json");
  fs::copy(model(), path("cut"), fs::copy_options::recursive);
  fs::resize_file(path("cut/model.safetensors"), fs::file_size(path("cut/model.safetensors")) / 2);
  expect_error(run({"generate", "--model", path("cut"), "--prompt", "x"}), 70, "model.safetensors");
  expect_error(run({"logits", "--model", model(), "--tokens", "1,99999", "--out", path("x")}), 70, "99999");
}

TEST_F(Cli, bad_texts_have_different_errors) {
  io::write_file_atomic(path("empty.txt"), "");
  io::write_file_atomic(path("bytes.txt"), "fine so far \xff\xfe not any more");
  const std::string out = path("text-run");
  expect_error(run({"train", "-c", path("run.toml"), "--data.text=" + path("empty.txt"), "--out", out}), 70,
               "empty.txt");
  expect_error(run({"train", "-c", path("run.toml"), "--data.text=" + path("bytes.txt"), "--out", out}), 70, "UTF-8");
  expect_error(run({"eval", "--model", model(), "--text", path("bytes.txt")}), 70, "UTF-8");
  expect_error(run({"train", "-c", path("run.toml"), "--data.text=" + path("missing.txt"), "--out", out}), 70,
               "missing.txt");
  expect_error(train({"--out", out, "--model.vocab=290"}), 2, "vocab is 290");
  io::write_file_atomic(path("mixed.txt"), train::toy_text() + "\xff");
  expect_error(train({"--out", out, "--data.text=" + path("mixed.txt")}), 70, "data.replace_invalid");
  const auto mended = train({"--out", out, "--data.text=" + path("mixed.txt"), "--data.replace_invalid=true"});
  EXPECT_EQ(mended.code, 0) << mended.err;
}

/// Runs a command in a shell, which closes descriptors and sets limits.
int shell(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(Cli, messages_go_into_no_file_where_standard_error_is_closed) {
  const auto words = fmt::format("'{}' train -c '{}' --data.text='{}' --out '{}' --json", HPCDL_PROGRAM,
                                 path("run.toml"), path("toy.txt"), path("closed"));
  EXPECT_EQ(shell(words + " >" + path("closed.out") + " 2>&-"), 0);
  EXPECT_EQ(shell(words + " --train.steps=8 <&- >&- 2>&-"), 70) << "the result cannot be written anywhere";
  int files = 0;
  for (const auto& file : io::list_folder(path("closed"), true)) {
    if (fs::is_directory(file)) continue;
    EXPECT_EQ(io::read_file(file).find("training tokens"), std::string::npos) << file;
    ++files;
  }
  EXPECT_GT(files, 10);
}

TEST_F(Cli, a_file_that_may_not_grow_is_an_error_and_no_crash) {
  const auto err = path("limited.err");
  EXPECT_EQ(shell(fmt::format("ulimit -f 8; exec '{}' logits --model '{}' --tokens 1,2,3,4,5,6,7,8 --out '{}' 2>'{}'",
                              HPCDL_PROGRAM, model(), path("limited"), err)),
            70);
  EXPECT_NE(io::read_file(err).find("ulimit -f"), std::string::npos) << io::read_file(err);
}

TEST_F(Cli, a_run_among_its_texts_goes_on) {
  fs::create_directories(path("texts"));
  fs::copy_file(path("toy.txt"), path("texts/toy.txt"));
  const std::vector<std::string> words = {"train",
                                          "-c",
                                          path("run.toml"),
                                          "--data.text=" + path("texts"),
                                          "--out",
                                          path("texts/run"),
                                          "--data.cache=" + path("texts/cache"),
                                          "--json"};
  const auto first = run(words), second = run(words);
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.err.find("already at step 6"), std::string::npos) << second.err;
  int made = 0;
  for (const auto& entry : fs::directory_iterator(path("texts/cache"))) made += entry.is_directory();
  EXPECT_EQ(made, 1) << "the text has changed between the runs";
}

TEST_F(Cli, unreadable_folders_are_reported) {
  fs::create_symlink("loop", path("loop"));
  for (const std::vector<std::string>& words : {std::vector<std::string>{"quantize", "--model", model(), "--out"},
                                                {"convert", "--model", model(), "--out"},
                                                {"inspect"}}) {
    auto all = words;
    all.push_back(path("loop"));
    expect_error(run(all), 70, "hpcdl: [io] " + path("loop") + ": Too many levels of symbolic links");
  }
}

TEST_F(Cli, a_reader_that_has_left_is_no_error) {  // as in hpcdl ... | head -1
  int in[2], out[2];
  ASSERT_EQ(pipe2(in, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  const auto end = [](int fd) { return "/dev/fd/" + std::to_string(fd); };
  Program p({"tokenize", "--ids", "--tokenizer", model()}, end(in[0]), end(out[1]));
  for (const int fd : {out[0], out[1], in[0], in[1]}) close(fd);  // with the last one its input ends
  const auto r = p.wait();
  EXPECT_EQ(r.code, 128 + SIGPIPE);
  EXPECT_EQ(r.err, "");
}

TEST_F(Cli, a_full_disk_and_a_missing_permission_are_reported) {
  EXPECT_EQ(run({"inspect", path("run"), "--json"}, "/dev/null", "/dev/full").code, 70);
  expect_error(run({"--help"}, "/dev/null", "/dev/full"), 70, "disk is full");
  expect_error(run({"logits", "--model", model(), "--tokens", "1", "--out", "/proc/none/l.safetensors"}), 70,
               "/proc/none");
  expect_error(train({"--out", "/proc/none"}), 70, "/proc/none");
  expect_error(run({"logits", "--model", model(), "--tokens", "1", "--out", ""}), 70, "expected the name of a file");
}

}  // namespace
}  // namespace hpcdl::cli_test
