// The contract of the program: what other programs rely on.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "hpcdl/core/convert.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"
#include "tests/cli/trained_model.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

TEST_F(Cli, training_leaves_what_the_contract_says) {
  ASSERT_EQ(trained_->code, 0) << trained_->err;
  EXPECT_EQ(trained_->json().at("step"), 6);
  for (const char* name :
       {"model/config.json", "model/model.safetensors", "model/tokenizer.json", "checkpoints/step_00000006/DONE",
        "checkpoints/step_00000004/DONE", "metrics.jsonl", "config.toml"})
    EXPECT_TRUE(fs::exists(*tmp_ / "run" / name)) << name;
  EXPECT_FALSE(fs::exists(*tmp_ / "run/checkpoints/step_00000002")) << "keep = 2";
  EXPECT_FALSE(fs::is_empty(*tmp_ / "run/tensorboard"));
  std::istringstream metrics(io::read_file(*tmp_ / "run/metrics.jsonl"));
  std::string line;
  ASSERT_TRUE(std::getline(metrics, line));
  for (const char* key : {"step", "loss", "lr", "grad_norm", "tokens_per_second", "sol_percent", "data_wait_percent"})
    EXPECT_TRUE(nlohmann::json::parse(line).at(key).is_number()) << key;
}

TEST_F(Cli, the_saved_config_repeats_the_run) {
  const auto r = run({"train", "-c", path("run/config.toml"), "--out", path("again"), "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(io::read_file(path("run/model/model.safetensors")) ==
              io::read_file(path("again/model/model.safetensors")));
}

TEST_F(Cli, a_signal_saves_and_asks_to_be_requeued_and_the_same_command_goes_on) {
  const std::vector<std::string> words = {"train",
                                          "-c",
                                          path("run.toml"),
                                          "--data.text=" + path("toy.txt"),
                                          "--out",
                                          path("stopped"),
                                          "--train.steps=200000",
                                          "--checkpoint.every=0",
                                          "--json"};
  Program program(words);
  for (int i = 0;
       i < 600 && (!fs::exists(path("stopped/metrics.jsonl")) || fs::file_size(path("stopped/metrics.jsonl")) == 0);
       ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(program.pid(), SIGTERM);
  const auto stopped = program.wait();
  ASSERT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_TRUE(stopped.json().at("stopped"));
  const std::int64_t step = stopped.json().at("step");
  const auto resumed =
      train({"--out", path("stopped"), "--checkpoint.every=0", "--train.steps=" + std::to_string(step + 3)});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.json().at("first_step"), step);
  EXPECT_EQ(resumed.json().at("step"), step + 3);
}

TEST_F(Cli, generate_eval_and_logits_answer_in_json) {
  const auto g = run({"generate", "--model", model(), "--prompt", "the river", "--tokens", "12", "--temperature", "0",
                      "--seed", "1", "--json"});
  ASSERT_EQ(g.code, 0) << g.err;
  for (const char* key : {"tokens_per_second", "time_to_first_token_ms", "peak_rss_bytes", "mapped_bytes"})
    EXPECT_GT(g.json().at(key).get<double>(), 0) << key;
  EXPECT_TRUE(g.json().at("text").is_string());
  EXPECT_LE(g.json().at("token_ids").size(), 12u);
  EXPECT_EQ(
      run({"generate", "--model", model(), "--prompt", "the river", "--tokens", "12", "--json"}).json().at("token_ids"),
      g.json().at("token_ids"));

  const auto e = run({"eval", "--model", model(), "--text", path("toy.txt"), "--json"});
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_NEAR(e.json().at("perplexity").get<double>(), std::exp(e.json().at("loss").get<double>()), 1e-6);
  EXPECT_GT(e.json().at("tokens"), 1000);

  const auto l = run({"logits", "--model", model(), "--tokens", "1,2,3", "--out", path("l.safetensors"), "--json"});
  ASSERT_EQ(l.code, 0) << l.err;
  const auto i = run({"inspect", path("l.safetensors"), "--json"}).json();
  EXPECT_EQ(i.at("tensors")[0].at("name"), "logits");
  EXPECT_EQ(i.at("tensors")[0].at("shape")[0], 3);
  EXPECT_EQ(i.at("tensors")[0].at("dtype"), "F32");
}

TEST_F(Cli, a_quantised_folder_works_wherever_the_original_did) {
  using Words = std::vector<std::string>;
  for (const auto& [options, bits] : {std::pair{Words{"int4", "--group", "32", "--asymmetric"}, 6.0},
                                      {{"nf4", "--keep-odd"}, 5.0},
                                      {{"nf4", "--double", "--keep-odd"}, 8.0},  // the tables of small matrices
                                      {{"fp4", "--keep-odd"}, 5.0},
                                      {{"int8", "--keep-odd"}, 9.0}}) {
    SCOPED_TRACE(options[0]);
    Words words{"quantize", "--model", model(),         "--out",  path("q"),
                "--force",  "--text",  path("toy.txt"), "--json", "--format"};
    words.insert(words.end(), options.begin(), options.end());
    const auto q = run(words);
    ASSERT_EQ(q.code, 0) << q.err;
    EXPECT_LT(q.json().at("bits_per_weight"), bits);
    EXPECT_TRUE(q.json().at("perplexity_after").is_number());
    for (const Words& use : {Words{"generate", "--model", path("q"), "--prompt", "a stone", "--tokens", "5", "--json"},
                             {"eval", "--model", path("q"), "--text", path("toy.txt"), "--json"},
                             {"inspect", path("q"), "--json"},
                             {"logits", "--model", path("q"), "--tokens", "5", "--out",
                              path("ql-" + options[0] + options[1]), "--json"}}) {
      const auto r = run(use);
      EXPECT_EQ(r.code, 0) << use[0] << ": " << r.err;
      EXPECT_TRUE(r.json().is_object());
    }
    EXPECT_EQ(run({"inspect", path("q"), "--json"}).json().at("parameters"),
              run({"inspect", model(), "--json"}).json().at("parameters"));
  }
  expect_error(run({"quantize", "--model", model(), "--out", path("x"), "--double"}), 2, "only those of nf4 and fp4");
}

TEST_F(Cli, quantize_with_a_calibration_text) {
  auto words =
      std::vector<std::string>{"quantize", "--model", model(), "--out", path("calibrated"), "--activation-scales"};
  expect_error(run(words), 2, "give --calib TEXT, too");
  words.insert(words.end(), {"--calib", path("toy.txt"), "--report", path("r.json"), "--group", "32"});
  ASSERT_EQ(run(words).code, 0);
  EXPECT_NE(io::read_file(path("r.json")).find("\"kl\""), std::string::npos);
}

TEST_F(Cli, convert_there_and_back) {
  ASSERT_EQ(run({"convert", "--model", model(), "--to", "bf16", "--out", path("bf16"), "--json"}).code, 0);
  const auto r = run({"generate", "--model", path("bf16"), "--prompt", "the", "--tokens", "3", "--json"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(run({"inspect", path("bf16"), "--json"}).json().at("tensors")[0].at("dtype"), "BF16");
}

TEST_F(Cli, convert_leaves_no_old_shards_and_takes_no_other_files) {
  for (const char* size : {"0.0001", "1e300", "0.0001", "5"})
    ASSERT_EQ(run({"convert", "--model", model(), "--max-shard", size, "--out", path("shards"), "--force"}).code, 0);
  EXPECT_FALSE(fs::exists(path("shards/model-00001-of-00002.safetensors")));
  EXPECT_TRUE(fs::exists(path("shards/model.safetensors")));
  io::write_file_atomic(path("shards/thesis.txt"), "years of work");
  for (const char* verb : {"convert", "quantize"})
    expect_error(run({verb, "--model", model(), "--out", path("shards"), "--force"}), 70, "as thesis.txt");
  EXPECT_TRUE(fs::exists(path("shards/thesis.txt")));
}

TEST_F(Cli, an_existing_folder_is_replaced_only_with_force) {
  for (const char* verb : {"convert", "quantize"}) {
    const auto out = path(std::string("into-") + verb);
    fs::create_directory(out);
    const std::vector<std::string> words = {verb, "--model", model(), "--out", out};
    ASSERT_EQ(run(words).code, 0) << "an empty folder is accepted";
    const auto before = fs::last_write_time(out + "/config.json");
    expect_error(run(words), 2, "--force");
    EXPECT_EQ(fs::last_write_time(out + "/config.json"), before);
    auto forced = words;
    forced.push_back("--force");
    EXPECT_EQ(run(forced).code, 0);
  }
}

TEST_F(Cli, invalid_numbers_are_reported) {
  const auto files = io::TensorFolder::open(model());
  const auto with = [&](const std::string& name, float value) {
    fs::copy(model(), path(name));
    std::vector<io::NamedSpec> specs;
    for (const auto& t : files.tensors()) specs.push_back({t.name, t.spec});
    io::TensorFolderWriter writer(path(name), specs);
    for (const auto& s : specs) {
      OwnedTensor t(s.spec);
      convert_elements(t.tensor, files.at(s.name));
      if (s.name == "model.norm.weight") t.tensor.ptr<float>()[0] = value;
      writer.write(s.name, t.tensor);
    }
    writer.commit();
    return path(name);
  };
  const auto nan = with("nan", NAN), large = with("large", 1e5f);
  for (const std::vector<std::string>& words : {std::vector<std::string>{"logits", "--tokens", "1", "--out", path("l")},
                                                {"generate", "--prompt", "x"},
                                                {"eval", "--text", path("toy.txt")}}) {
    auto all = words;
    all.insert(all.end(), {"--model", nan, "--json"});
    expect_error(run(all), 70, "the weights hold NaN");
  }
  EXPECT_FALSE(fs::exists(path("l")));
  expect_error(run({"convert", "--model", large, "--to", "f16", "--out", path("half")}), 70,
               "model.norm.weight has numbers that F16 cannot");
  EXPECT_FALSE(fs::exists(path("half")));
}

TEST_F(Cli, tokenize_learns_writes_and_prints) {
  ASSERT_EQ(run({"tokenize", "--train", "--vocab", "300", "--out", path("t.json"), path("toy.txt")}).code, 0);
  const auto shard =
      run({"tokenize", "--tokenizer", path("t.json"), "--out", path("s.bin"), path("toy.txt"), "--json"});
  ASSERT_EQ(shard.code, 0) << shard.err;
  EXPECT_GT(shard.json().at("tokens"), 1000);
  io::write_file_atomic(path("in"), "the river");
  const auto ids = run({"tokenize", "--tokenizer", path("t.json"), "--ids"}, path("in"));
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_TRUE(std::all_of(ids.out.begin(), ids.out.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) || c == ' ' || c == '\n';
  })) << ids.out;
}

TEST_F(Cli, tokenize_replaces_what_is_no_text_on_stdin_too) {
  ASSERT_EQ(run({"tokenize", "--train", "--vocab", "300", "--out", path("t.json"), path("toy.txt")}).code, 0);
  io::write_file_atomic(path("in"), "the\xff river");
  expect_error(run({"tokenize", "--tokenizer", path("t.json"), "--ids"}, path("in")), 70, "0xFF");
  EXPECT_EQ(run({"tokenize", "--tokenizer", path("t.json"), "--ids", "--replace-invalid"}, path("in")).code, 0);
}

TEST_F(Cli, ranks_generate_from_the_standard_input_of_the_first) {
  io::write_file_atomic(path("prompt.txt"), "the river and the stone");
  std::vector<std::string> words = {"generate", "--model", model(), "--prompt-file", "-", "--tokens", "5", "--json"};
  const auto alone = run(words, path("prompt.txt"));
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_GT(alone.json().at("prompt_ids").size(), 1u);
  words.insert(words.begin(), {"launch", "-n", "2", "--plain", "--"});
  const auto shared = run(words, path("prompt.txt"));
  ASSERT_EQ(shared.code, 0) << shared.err;
  EXPECT_EQ(shared.json().at("prompt_ids"), alone.json().at("prompt_ids"));
}

TEST_F(Cli, generate_fits_what_was_not_said_to_the_context) {
  const auto g = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", "--model", model(), "--ignore-eos", "--json"});
    return run(words);
  };
  const auto some = g({"--prompt-ids", "1,2,3"});
  ASSERT_EQ(some.code, 0) << some.err;
  EXPECT_EQ(some.json().at("token_ids").size(), 29u) << "a context of 32";
  EXPECT_GT(g({"--prompt-ids", "1", "--tokens", "1"}).json().at("tokens_per_second"), 0);
  expect_error(g({"--prompt-ids", "1,2,3", "--tokens", "30"}), 70, "the model's context of 32");
  expect_error(g({"--prompt-ids", "1", "--prompt", "x"}), 2, "exclude each other");
  expect_error(g({"--prompt", "x", "--tokens", "0"}), 2, "--tokens: expected a number above 0, found 0;");
}

TEST_F(Cli, the_folder_of_a_run_stands_for_its_model) {
  const std::vector<std::string> words = {"--text", path("toy.txt"), "--limit", "100", "--json"};
  const auto loss = [&](std::vector<std::string> all) {
    all.insert(all.end(), words.begin(), words.end());
    return run(all).json().at("loss");
  };
  EXPECT_EQ(loss({"eval", "--model", path("run")}), loss({"eval", "--model", model()}));
}

TEST_F(Cli, the_config_is_printed_as_json_too) {
  const auto config = train({"--out", path("5"), "--print-config"}).json();
  EXPECT_EQ(config.at("output"), path("5"));
  EXPECT_EQ(config.at("model").at("family"), "llama");
  EXPECT_EQ(config.at("train").at("steps"), 6);
  EXPECT_EQ(config.at("data").at("text"), std::vector<std::string>{path("toy.txt")});
  const auto origins = run({"train", "--out", "5", "--print-config"}).out;
  EXPECT_EQ(origins.substr(0, origins.find(' ')), "output") << origins;
  EXPECT_TRUE(origins.substr(0, origins.find('\n')).ends_with("# --output")) << origins;
}

TEST_F(Cli, doctor_and_inspect_answer_in_json) {
  EXPECT_TRUE(run({"doctor", "--json"}).json().contains("memory"));
  const auto i = run({"inspect", path("run"), "--json"}).json();
  EXPECT_GT(i.at("parameters"), 1000);
  EXPECT_EQ(i.at("config").at("model_type"), "llama");
  const auto p = run({"inspect", path("run.toml"), "--program"});
  EXPECT_EQ(p.code, 0) << p.err;
  for (const char* part : {"adamw", "attention", "peak memory", "backward"})
    EXPECT_NE(p.out.find(part), std::string::npos) << part;
  fs::create_directories(path("bare"));
  fs::copy_file(model() + "/model.safetensors", path("bare/model.safetensors"));
  const auto bare = run({"inspect", path("bare"), "--json"});
  ASSERT_EQ(bare.code, 0) << bare.err;
  EXPECT_EQ(bare.json().at("parameters"), i.at("parameters"));
  ASSERT_EQ(run({"convert", "--model", model(), "--max-shard", "0.0001", "--out", path("parts")}).code, 0);
  const auto index = run({"inspect", path("parts/model.safetensors.index.json"), "--json"});
  ASSERT_EQ(index.code, 0) << index.err;
  EXPECT_EQ(index.out, run({"inspect", path("parts"), "--json"}).out);
}

TEST_F(Cli, inspect_says_in_which_ways_a_run_computed) {
  const auto checkpoint = path("run/checkpoints/step_00000006");
  const auto ways = run({"inspect", checkpoint, "--json"}).json().at("ways");
  EXPECT_EQ(ways.at("device"), "cpu");
  ASSERT_EQ(ways.at("calls").size(), 1u);
  EXPECT_EQ(ways.at("calls")[0].at("op"), "cpu");
  const std::string isa = ways.at("calls")[0].at("way");
  const auto text = run({"inspect", checkpoint});
  EXPECT_NE(text.out.find("ways: " + isa + " on cpu"), std::string::npos) << text.out;
  EXPECT_NE(run({"inspect", path("run.toml"), "--program"}).out.find("the ways of calls are chosen on the device"),
            std::string::npos);
  expect_error(run({"train", "-c", path("run.toml"), "--out", path("w"), "--train.ways=attention=own"}), 2,
               "train.ways = \"attention=own\" is for GPUs");
  expect_error(run({"train", "-c", path("run.toml"), "--out", path("w"), "--train.ways=relu=own"}), 2,
               "there is only one way to compute \"relu\"");
  expect_error(run({"generate", "--model", model(), "--prompt-ids", "1", "--ways", "attention=own"}), 2,
               "--ways is for GPUs");
}

TEST_F(Cli, inspect_shows_the_records_of_any_rank_of_any_mesh) {
  const auto programs = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"inspect", "--program", "-c", path("run.toml"), "--json"});
    const auto r = run(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.json();
  };
  const auto all = programs({"--mesh", "dp=2,tp=2", "--rank", "3"});
  EXPECT_EQ(all.at("mesh").at("tp"), 2);
  EXPECT_EQ(all.at("rank"), 3);
  const auto& first = all.at("programs")[0];
  ASSERT_EQ(first.at("record_list").size(), first.at("records"));
  double flops = 0;
  std::set<std::string> ops, phases;
  for (const auto& r : first.at("record_list")) {
    flops += r.at("flops").get<double>();
    ops.insert(r.at("op")), phases.insert(r.at("phase"));
    for (const auto& o : r.at("operands")) EXPECT_TRUE(o.is_null() || o.at("slot") >= 0) << o.dump();
  }
  EXPECT_NEAR(flops / first.at("flops").get<double>(), 1, 1e-9);
  EXPECT_TRUE(ops.contains("attention") && ops.contains("all_reduce"));
  EXPECT_EQ(phases, (std::set<std::string>{"backward", "forward"}));
  const auto& digest = first.at("digest");
  EXPECT_NE(programs({"--mesh", "dp=2,tp=2", "--rank", "2"}).at("programs")[0].at("digest"), digest);
  EXPECT_NE(programs({}).at("programs")[0].at("digest"), digest);
  const auto steps = programs({"--generate", "8"}).at("programs");
  ASSERT_EQ(steps.size(), 3u) << "1 token; 8 tokens, without and with a head";
  EXPECT_EQ(steps[1].at("name"), "8 tokens of a prompt");
  ASSERT_EQ(run({"quantize", "--model", model(), "--group", "32", "--out", path("int4")}).code, 0);
  const auto int4 = run({"inspect", path("int4"), "--program", "--generate", "8"});
  EXPECT_EQ(int4.code, 0) << int4.err;
  EXPECT_NE(int4.out.find("int4_linear"), std::string::npos) << int4.out;
}

TEST_F(Cli, inspect_refuses_ranks_and_meshes_that_are_none) {
  for (const auto& [words, part] :
       {std::pair<std::vector<std::string>, const char*>{{"--mesh", "dp=2,tp=2", "--rank", "4"},
                                                         "expected 0 to 3, because the mesh has 4 ranks, got 4"},
        {{"--rank", "1"}, "expected 0 to 0, because the mesh has 1 rank, got 1"},
        {{"--rank", "-1"}, "got -1"},
        {{"--mesh", "pp=2"}, "such as dp=8,tp=4, got \"pp=2\""},
        {{"--mesh", "dp"}, "such as dp=8,tp=4, got \"dp\""},
        {{"--mesh", "dp=0"}, "such as dp=8,tp=4, got \"dp=0\""},
        {{"--mesh", "tp=2.5"}, "such as dp=8,tp=4, got \"tp=2.5\""},
        {{"--mesh", "dp=2,tp"}, "such as dp=8,tp=4, got \"dp=2,tp\""},
        {{"--mesh", "dp=2,dp=4"}, "dp is given twice"},
        {{"--mesh", "tp=7"}, "are not divisible by tp 7"},
        {{"--generate", "0"}, "above 0"}}) {
    auto all = words;
    all.insert(all.begin(), {"inspect", path("run.toml"), "--program"});
    expect_error(run(all), 2, part);
  }
  expect_error(run({"inspect", path("run.toml"), "--program", "--generate", "99999"}), 70, "do not fit into");
  expect_error(run({"inspect", path("run"), "--mesh", "dp=2"}), 2, "--mesh is only for --program");
  expect_error(run({"inspect", "-c", path("run.toml")}), 2, "-c is only for --program");
  expect_error(run({"inspect", path("run"), "--program", "-c", path("run.toml")}), 2, "found both");
  expect_error(run({"inspect", path("run"), "--generate", "2"}), 2, "--generate is only for --program");
}

TEST_F(Cli, inspect_knows_image_classifiers_by_name_and_by_folder) {
  const auto parameters = [](const std::vector<std::string>& arguments) {
    return run(arguments).json().at("parameters");
  };
  EXPECT_EQ(parameters({"inspect", "--arch", "simple_cnn", "--json"}), 2'474'506);
  EXPECT_EQ(parameters({"inspect", "--arch", "resnet18", "--stem", "imagenet", "--classes", "1000", "--json"}),
            11'689'512);
  const auto r = run({"inspect", "--arch", "resnet18", "--json"}).json();
  EXPECT_EQ(r.at("parameters"), 11'173'962);
  EXPECT_EQ(r.at("tensors").size(), 122u);
  EXPECT_EQ(r.at("tensors")[0].at("name"), "conv1.weight");
  EXPECT_EQ(r.at("tensors")[0].at("shape"), (std::vector<int>{64, 3, 3, 3}));
  const auto saved =
      run({"inspect", (std::filesystem::path(HPCDL_SOURCE_DIR) / "hpcdl/models/golden/resnet18_cifar").string(),
           "--json"})
          .json();
  EXPECT_EQ(saved.at("parameters"), 44'622);
  EXPECT_EQ(saved.at("tensors").size(), 122u);
  const auto programs = [](const std::string& name) {
    return run({"inspect", "--program", HPCDL_SOURCE_DIR "/hpcdl/models/golden/" + name, "--json"});
  };
  const auto step = programs("resnet18_cifar");
  ASSERT_EQ(step.code, 0) << step.err;
  EXPECT_EQ(step.json().at("programs").size(), 2u);
  EXPECT_EQ(run({"inspect"}).code, 2);
  EXPECT_EQ(run({"inspect", "--arch", "vgg"}).code, 2);
  for (const auto& [words, part] :
       {std::pair<std::vector<std::string>, const char*>{{"--arch", "resnet18", "--program"}, "--program needs a path"},
        {{"--arch", "resnet18", "--check"}, "--check needs a path"},
        {{path("run"), "--classes", "7"}, "--classes is only for --arch"},
        {{path("run"), "--stem", "imagenet"}, "--stem is only for --arch"},
        {{path("run"), "--program", "--check"}, "give only one of the two"}}) {
    auto all = words;
    all.insert(all.begin(), "inspect");
    expect_error(run(all), 2, part);
  }
}

TEST_F(Cli, help_is_everywhere_and_lists_every_key) {
  for (const char* verb : {"demo", "train", "eval", "generate", "tokenize", "quantize", "inspect", "convert", "logits",
                           "doctor", "probe", "bench", "profile", "verify"}) {
    const auto r = run({verb, "--help"});
    EXPECT_EQ(r.code, 0);
    EXPECT_NE(r.out.find("--json"), std::string::npos) << verb;
  }
  EXPECT_NE(run({"--help"}).out.find("Exit codes"), std::string::npos);
  EXPECT_EQ(run({"inspect", "--help"}).out.find("VERB"), std::string::npos) << "a verb with the program's last words";
  const auto help = run({"train", "--help"}).out;
  for (const char* key :
       {"model.family", "data.text", "train.steps", "checkpoint.every", "checkpoint.keep", "checkpoint.resume"})
    EXPECT_NE(help.find(key), std::string::npos) << key;
  EXPECT_TRUE(run({"--version"}).out.starts_with("hpcdl "));
  EXPECT_EQ(run({"-v"}).out, run({"--version"}).out);
  EXPECT_EQ(run({"help", "train"}).out, help);
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
}

std::size_t widest(const std::string& text) {
  std::size_t most = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) most = std::max(most, line.size());
  return most;
}

std::string without_white(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c); });
  return text;
}

/// Standard output of the program on a terminal with this number of columns.
std::string on_a_terminal(const std::vector<std::string>& words, std::size_t columns) {
  const io::Fd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  require(terminal && ::grantpt(terminal.get()) == 0 && ::unlockpt(terminal.get()) == 0 &&
              ::ioctl(terminal.get(), TIOCSWINSZ, &size) == 0,
          "test", "no terminal to be had");
  Program program(words, "/dev/null", ::ptsname(terminal.get()));
  std::string text;
  char block[4096];
  for (ssize_t n; (n = ::read(terminal.get(), block, sizeof block)) > 0;)
    text.append(block, static_cast<std::size_t>(n));
  EXPECT_EQ(program.wait().code, 0);
  std::erase(text, '\r');
  return text;
}

TEST_F(Cli, help_fits_the_terminal) {
  for (const char* verb :
       {"demo", "train", "eval", "generate", "tokenize", "quantize", "inspect", "convert", "logits", "doctor", "probe",
        "bench", "profile", "verify", "roofline", "pipe", "tune", "launch", "slurm"})
    EXPECT_LE(widest(run({verb, "--help"}).out), 80u) << verb;
  for (const char* part : {"comm", "compose", "ddp", "tp", "zero"})
    EXPECT_LE(widest(run({"bench", part, "--help"}).out), 80u) << part;
  const std::string beside = "\n" + std::string(30, ' ');
  EXPECT_NE(run({"slurm", "--help"}).out.find("=300 Seconds before the time limit at which the run" + beside + "saves"),
            std::string::npos)
      << "an option whose name fills the columns before its description";
  const auto plain = run({"train", "--help"}).out;
  EXPECT_LE(widest(run({"--help"}).out), 80u);
  for (const std::size_t columns : {132u, 60u, 40u}) {
    const auto text = on_a_terminal({"train", "--help"}, columns);
    EXPECT_LE(widest(text), columns);
    EXPECT_GT(widest(text), columns - 20);
    EXPECT_EQ(without_white(text), without_white(plain));
  }
}

TEST_F(Cli, the_configs_among_the_examples_are_read) {
  int found = 0;
  for (const auto& file : fs::directory_iterator(HPCDL_SOURCE_DIR "/examples")) {
    if (file.path().extension() != ".toml" || file.path().filename() == "small.toml") continue;  // a part of one
    const auto r = run({"train", "-c", file.path().string(), "--print-config"});
    EXPECT_EQ(r.code, 0) << file.path() << "\n" << r.err;
    ++found;
  }
  EXPECT_GE(found, 2);
}

}  // namespace
}  // namespace hpcdl::cli_test
