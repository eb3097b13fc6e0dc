// The contract of the program, as other programs see it: train, resume, eval, logits, quantize, generate, inspect and
// tokenize on a small text, with the promised files, keys and exit codes, and the errors for bad input.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Result {
  int code;
  std::string out, err;
  json object() const { return json::parse(out); }
};

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

class Cli : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<hpcdl::io::TempFolder>();
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "The quick brown fox number " + std::to_string(i) + " jumps over the lazy dog.\n\n";
    write(at("text.txt"), text);
    write(at("run.toml"),
          "[model]\nfamily = \"gpt2\"\nlayers = 2\nheads = 2\nwidth = 64\ncontext = 32\n[data]\ntext = \"" +
              at("text.txt") + "\"\ncache = \"" + at("cache") +
              "\"\nvocab_size = 300\n[train]\nsteps = 8\nbatch = 4\nseed = 3\n[checkpoint]\nevery = 4\nkeep = 2\n");
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string at(const std::string& name) { return (folder_->path() / name).string(); }

  static Result run(const std::string& arguments, const std::string& input = "/dev/null") {
    const std::string command =
        "HPCDL_THREADS=2 '" HPCDL_PROGRAM "' " + arguments + " <'" + input + "' 2>'" + at("stderr") + "'";
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), [](FILE*) { return 0; });
    Result r{-1, "", ""};
    std::array<char, 4096> buffer;
    for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;)
      r.out.append(buffer.data(), n);
    const int status = pclose(pipe.get());
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    r.err = read(at("stderr"));
    return r;
  }
  static Result good(const std::string& arguments, const std::string& input = "/dev/null") {
    const Result r = run(arguments, input);
    EXPECT_EQ(r.code, 0) << arguments << "\n" << r.err;
    return r;
  }
  /// Every test may need the trained model; the first one trains it.
  static std::string model() {
    if (!fs::exists(at("run/model"))) good("train -c " + at("run.toml") + " --out " + at("run"));
    return at("run/model");
  }

  static inline std::unique_ptr<hpcdl::io::TempFolder> folder_;
};

TEST_F(Cli, train_leaves_what_is_promised) {
  model();
  for (const char* name : {"run/model/config.json", "run/model/model.safetensors", "run/model/tokenizer.json",
                           "run/metrics.jsonl", "run/tensorboard", "run/config.toml", "run/checkpoints/step_00000008"})
    EXPECT_TRUE(fs::exists(at(name))) << name;
  std::ifstream metrics(at("run/metrics.jsonl"));
  int lines = 0;
  for (std::string line; std::getline(metrics, line);) {
    const json m = json::parse(line);
    if (!m.contains("loss")) continue;
    ++lines;
    for (const char* key : {"step", "loss", "lr", "grad_norm", "tokens_per_second", "sol_percent", "data_wait_percent"})
      EXPECT_TRUE(m.contains(key)) << key << " is not in " << line;
  }
  EXPECT_EQ(lines, 8);
}

TEST_F(Cli, the_same_command_resumes) {
  const std::string command = "train -c " + at("run.toml") + " --out " + at("resumed");
  good(command + " --train.steps=4");
  const auto first = read(at("resumed/metrics.jsonl"));
  good(command + " --train.steps=6");
  EXPECT_EQ(read(at("resumed/metrics.jsonl")).substr(0, first.size()), first)
      << "the log of the first four steps must be kept";
  good(command + " --train.steps=6");  // done already: nothing to do, and no error
}

TEST_F(Cli, eval_and_logits_agree_with_the_model) {
  const json e = good("eval --model " + model() + " --text " + at("text.txt") + " --json").object();
  EXPECT_GT(e.at("tokens").get<int>(), 100);
  EXPECT_NEAR(e.at("perplexity").get<double>(), std::exp(e.at("loss").get<double>()),
              1e-3 * e.at("perplexity").get<double>());
  good("logits --model " + model() + " --tokens 1,2,3 --out " + at("logits.safetensors"));
  const auto file = hpcdl::io::SafeTensors::open(at("logits.safetensors"));
  const auto logits = file.at("logits");
  EXPECT_EQ(logits.dtype(), hpcdl::DType::f32);
  ASSERT_EQ(logits.rank(), 2);
  EXPECT_EQ(logits[0], 3);
}

TEST_F(Cli, generate_is_a_function_of_its_arguments) {
  const std::string command =
      "generate --model " + model() + " --prompt 'The quick' --tokens 12 --json --seed 5 --temperature ";
  const json a = good(command + "0").object(), b = good(command + "0").object();
  EXPECT_EQ(a.at("token_ids"), b.at("token_ids"));
  EXPECT_EQ(a.at("text"), b.at("text"));
  EXPECT_LE(a.at("token_ids").size(), 12u);
  for (const char* key : {"tokens_per_second", "time_to_first_token_ms", "peak_rss_bytes", "mapped_bytes"})
    EXPECT_TRUE(a.at(key).is_number()) << key;
  EXPECT_EQ(good(command + "0.8").object().at("token_ids"), good(command + "0.8").object().at("token_ids"))
      << "the same seed must give the same text";
}

TEST_F(Cli, a_quantised_model_works_wherever_the_other_did) {
  const json q =
      good("quantize --model " + model() + " --format int4 --group 32 --out " + at("int4") + " --json").object();
  EXPECT_NEAR(q.at("bits_per_weight").get<double>(), 4.5, 0.01);
  EXPECT_GT(q.at("ratio_fp32").get<double>(), 1);
  good("generate --model " + at("int4") + " --prompt 'The quick' --tokens 4 --temperature 0 --json");
  const double before = good("eval --model " + model() + " --text " + at("text.txt") + " --json").object().at("loss");
  const double after = good("eval --model " + at("int4") + " --text " + at("text.txt") + " --json").object().at("loss");
  EXPECT_NEAR(after, before, 0.25);
  const json i = good("inspect " + at("int4") + " --json").object();
  EXPECT_FALSE(i.at("tensors").empty());
}

TEST_F(Cli, tokenize_trains_writes_shards_and_prints_ids) {
  good("tokenize --train --vocab 300 --out " + at("tokenizer.json") + " " + at("text.txt"));
  good("tokenize --tokenizer " + at("tokenizer.json") + " --out " + at("shard.bin") + " " + at("text.txt"));
  EXPECT_GT(fs::file_size(at("shard.bin")), 1024u);
  const std::string ids = good("tokenize --tokenizer " + at("tokenizer.json") + " --ids", at("text.txt")).out;
  EXPECT_FALSE(ids.empty());
}

/// The weights are read from the mapped file at every token: if another program truncates a file meanwhile, the error
/// names it.
TEST_F(Cli, a_shard_that_is_cut_short_under_generate_is_named) {
  good("train -c " + at("run.toml") + " --model.family=llama --train.steps=1 --out " + at("long"));
  const std::string folder = at("long/model"), shard = folder + "/model.safetensors";
  json config = json::parse(read(folder + "/config.json"));
  config["max_position_embeddings"] = 30000;  // more text than a pipe holds, so that the program waits for its reader
  write(folder + "/config.json", config.dump());
  const auto before = fs::file_size(shard);
  const std::string command = "HPCDL_THREADS=2 exec '" HPCDL_PROGRAM "' generate --model '" + folder +
                              "' --prompt The --tokens 29000 2>'" + at("stderr") + "'";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  ::fcntl(fileno(pipe), F_SETPIPE_SZ, 4096);
  EXPECT_NE(std::fgetc(pipe), EOF) << "generation must start";
  fs::resize_file(shard, 4096);
  std::array<char, 4096> buffer;
  while (std::fread(buffer.data(), 1, buffer.size(), pipe) > 0) {}
  const int status = pclose(pipe);
  ASSERT_TRUE(WIFEXITED(status)) << "a signal ended the process";
  EXPECT_EQ(WEXITSTATUS(status), 70);
  const std::string said = read(at("stderr"));
  EXPECT_NE(said.find("hpcdl: [io] " + shard + ": was cut short while it was in use: it had " + std::to_string(before) +
                      " bytes and has 4096 now"),
            std::string::npos)
      << said;
}

TEST_F(Cli, every_verb_explains_itself) {
  for (const char* verb :
       {"train", "eval", "generate", "tokenize", "quantize", "inspect", "convert", "doctor", "logits"})
    EXPECT_GT(good(std::string(verb) + " --help").out.size(), 100u) << verb;
}

TEST_F(Cli, bad_words_are_usage_errors_and_bad_input_is_explained) {
  EXPECT_EQ(run("trian").code, 2);
  const Result unknown = run("train -c " + at("run.toml") + " --out " + at("bad") + " --train.stepps=3");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("steps"), std::string::npos) << "the error must name the nearest key: " << unknown.err;
  EXPECT_EQ(run("train -c " + at("run.toml") + " --out " + at("bad") + " --train.steps=many").code, 2);

  write(at("empty.txt"), "");
  const Result empty = run("train -c " + at("run.toml") + " --out " + at("bad") + " --data.text=" + at("empty.txt"));
  EXPECT_TRUE(empty.code != 0 && empty.code < 128) << empty.code;
  EXPECT_NE(empty.err.find('['), std::string::npos) << empty.err;

  fs::copy(model(), at("broken"));
  fs::resize_file(at("broken/model.safetensors"), fs::file_size(at("broken/model.safetensors")) / 2);
  const Result broken = run("generate --model " + at("broken") + " --prompt a --tokens 1");
  EXPECT_TRUE(broken.code != 0 && broken.code < 128) << broken.code;
  EXPECT_NE(broken.err.find("model.safetensors"), std::string::npos) << broken.err;

  const Result outside = run("logits --model " + model() + " --tokens 1,99999 --out " + at("x.safetensors"));
  EXPECT_TRUE(outside.code != 0 && outside.code < 128) << outside.code;
  const Result group = run("quantize --model " + model() + " --group 48 --out " + at("int4bad"));
  EXPECT_EQ(group.code, 2);
}

}  // namespace
