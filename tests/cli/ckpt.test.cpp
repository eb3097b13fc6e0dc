// hpcdl ckpt, on the checkpoints of a real run.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/train/train_for_tests.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

const std::string kConfig = R"([model]
family = "llama"
layers = 2
heads = 2
width = 32
context = 32
[data]
vocab_size = 300
[train]
steps = 4
batch = 2
lr = 3e-3
seed = 3
[checkpoint]
every = 2
keep = 2
)";

/// One run with checkpoints of steps 2 and 4, which the tests only read.
class Ckpt : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tmp_ = new io::TempFolder;
    ::setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
    io::write_file_atomic(path("toy.txt"), train::toy_text());
    io::write_file_atomic(path("run.toml"), kConfig);
    const auto trained =
        run({"train", "-c", path("run.toml"), "--data.text=" + path("toy.txt"), "--out", path("run"), "--json"});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() { delete tmp_; }
  static std::string path(const std::string& name) { return (*tmp_ / name).string(); }
  static std::string step(int n) { return path("run/checkpoints/step_0000000" + std::to_string(n)); }

  static Result ckpt(std::vector<std::string> words) {
    words.insert(words.begin(), "ckpt");
    return run(words);
  }
  static void expect_code(const Result& r, int code) { EXPECT_EQ(r.code, code) << r.out << r.err; }
  static void expect_error(const Result& r, int code, const std::string& part) {
    expect_code(r, code);
    EXPECT_NE(r.err.find(part), std::string::npos) << "expected: " << part << "\nfound: " << r.err;
  }
  /// Continues from the checkpoint in `out` without learning, so that the model stays what it is.
  static Result train_on(const std::string& out) {
    return run({"train", "-c", out + "/checkpoints/step_00000000/config.toml", "--data.text=" + path("toy.txt"),
                "--out", out, "--train.steps=1", "--train.lr=0", "--train.batch=2", "--json"});
  }

  static io::TempFolder* tmp_;
};
io::TempFolder* Ckpt::tmp_ = nullptr;

TEST_F(Ckpt, show_tells_what_a_run_has_kept) {
  const auto j = ckpt({"show", path("run"), "--json"}).json();
  EXPECT_EQ(j.at("step"), 4);
  EXPECT_EQ(j.at("tokens"), 4 * 2 * 32);
  EXPECT_EQ(j.at("mesh"), (nlohmann::json{{"pp", 1}, {"dp", 1}, {"cp", 1}, {"tp", 1}}));
  ASSERT_EQ(j.at("kept").size(), 2u);
  EXPECT_EQ(j["kept"][1].at("step"), 2);
  EXPECT_EQ(j.at("config").at("train.steps"), "4");
  std::int64_t model = 0, optimizer = 0;
  for (const auto& t : j.at("tensors")) {
    (t.at("role") == "model" ? model : optimizer) += t.at("bytes").get<std::int64_t>();
    EXPECT_EQ(t.at("shards").size(), 1u);
  }
  EXPECT_EQ(j.at("totals").at("model").at("bytes"), model);
  EXPECT_EQ(j.at("totals").at("optimizer").at("bytes"), optimizer);
  EXPECT_EQ(optimizer, 2 * model) << "AdamW has two moments";
  EXPECT_GT(j.at("totals").at("file_bytes"), model + optimizer);

  const auto text = ckpt({"show", step(2)});
  expect_code(text, 0);
  for (const char* part :
       {"step 2, ", "saved by 1 rank (pp 1, dp 1, cp 1, tp 1)", "model.embed_tokens.weight", "model.safetensors"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  expect_error(ckpt({"show", path("cache")}), 70, "expected a checkpoint");
}

TEST_F(Ckpt, show_knows_the_ranks_of_a_mesh) {
  const auto r = run({"launch", "-n", "2", "--", "train", "-c", path("run.toml"), "--data.text=" + path("toy.txt"),
                      "--out", path("two"), "--parallel.tp=2"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = ckpt({"show", path("two"), "--json"}).json();
  EXPECT_EQ(j.at("mesh"), (nlohmann::json{{"pp", 1}, {"dp", 1}, {"cp", 1}, {"tp", 2}}));
  const auto& tensors = j.at("tensors");
  EXPECT_TRUE(std::ranges::any_of(tensors, [](const auto& t) { return t["shards"].size() == 2; }));
  expect_code(ckpt({"verify", path("two")}), 0);
  // Weights of another mesh, compared whatever the shards.
  const auto d = ckpt({"diff", path("two"), path("run"), "--json"}).json();
  EXPECT_EQ(d.at("compared"), tensors.size());
  for (const auto& t : d.at("tensors")) {
    if (t.at("role") != "model") continue;
    EXPECT_LT(t.at("relative").get<double>(), 1e-3) << t;  // the ranks add up in another order
  }
}

TEST_F(Ckpt, verify_names_what_is_damaged) {
  expect_code(ckpt({"verify", path("run")}), 0);
  EXPECT_EQ(ckpt({"verify", path("run"), "--all", "--json"}).json().at("checkpoints").size(), 2u);
  fs::copy(path("run/checkpoints"), path("damaged"), fs::copy_options::recursive);
  const auto file = path("damaged/step_00000004/optim-rank0.safetensors");
  io::write_file_atomic(file, io::read_file(step(2) + "/optim-rank0.safetensors"));
  const auto j = ckpt({"verify", path("damaged"), "--json"});
  expect_code(j, 1);
  EXPECT_FALSE(j.json().at("whole"));
  ASSERT_EQ(j.json().at("checkpoints")[0].at("flaws").size(), 1u);
  const auto text = ckpt({"verify", path("damaged")});
  expect_code(text, 1);
  EXPECT_NE(text.out.find("it is optim-rank0.safetensors of the checkpoint step_00000002"), std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("step_00000004: 1 flaw"), std::string::npos) << text.out;
  fs::remove(path("damaged/step_00000004/DONE"));
  expect_code(ckpt({"verify", path("damaged/step_00000004")}), 1);
  expect_code(ckpt({"verify", path("damaged/step_00000002")}), 0);
}

TEST_F(Ckpt, diff_compares_configs_and_tensors) {
  expect_code(ckpt({"diff", path("run"), step(4)}), 0);
  expect_code(ckpt({"diff", path("run/model"), path("run/model")}), 0);
  const auto same_model = ckpt({"diff", step(4), path("run/model")});
  expect_code(same_model, 0);
  const auto r = ckpt({"diff", step(2), step(4), "--json"});
  expect_code(r, 1);
  const auto j = r.json();
  EXPECT_FALSE(j.at("equal"));
  ASSERT_EQ(j.at("config").size(), 2u) << "step and tokens";
  EXPECT_EQ(j["config"][0].at("key"), "step");
  EXPECT_EQ(j.at("tensors").size(), j.at("compared"));
  double before = 1e9;
  for (const auto& t : j["tensors"]) {
    EXPECT_LE(t.at("relative").get<double>(), before);
    before = t["relative"];
    EXPECT_GT(t.at("largest").get<double>(), 0);
  }
  EXPECT_TRUE(ckpt({"diff", step(2), step(4), "--tolerance", "1", "--json"}).json().at("tensors").size() <
              j["tensors"].size());
  const auto text = ckpt({"diff", step(2), step(4)});
  EXPECT_NE(text.out.find("step: 2 in A, 4 in B"), std::string::npos) << text.out;
}

TEST_F(Ckpt, moments_of_8_bits_are_tensors_like_others) {
  const auto trained = run({"train", "-c", path("run.toml"), "--data.text=" + path("toy.txt"), "--out", path("coded"),
                            "--train.moments=8bit", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  expect_code(ckpt({"verify", path("coded"), "--all"}), 0);
  const auto shown = ckpt({"show", path("coded")});
  for (const char* part : {"model.embed_tokens.weight.m.scale", "I8", "U8"})
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  expect_code(ckpt({"diff", path("coded"), path("coded")}), 0);
  const auto other = ckpt({"diff", path("coded"), path("run")});
  expect_code(other, 1);
  EXPECT_NE(other.out.find("train.moments: \"8bit\" in A, \"f32\" in B"), std::string::npos) << other.out;
  expect_code(ckpt({"export", path("coded"), "--out", path("coded_hf")}), 0);
  expect_code(ckpt({"diff", path("coded_hf"), path("coded/model")}), 0);
  expect_error(run({"train", "-c", path("run.toml"), "--data.text=" + path("toy.txt"), "--out", path("coded"),
                    "--train.steps=6"}),
               70, "resume with the configuration that it was saved with");
}

TEST_F(Ckpt, an_export_is_the_model_of_the_run) {
  const auto r = ckpt({"export", path("run"), "--to", "hf", "--out", path("hf"), "--json"});
  expect_code(r, 0);
  EXPECT_EQ(r.json().at("step"), 4);
  expect_code(ckpt({"diff", path("hf"), path("run/model")}), 0);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) EXPECT_TRUE(fs::exists(path("hf") + "/" + name));
  expect_error(ckpt({"export", path("run"), "--out", path("hf")}), 2, "give --force");
  expect_code(ckpt({"export", step(2), "--out", path("hf"), "--force", "--dtype", "bf16"}), 0);
  EXPECT_EQ(io::TensorFolder::open(path("hf")).at("model.norm.weight").dtype(), DType::bf16);
  expect_code(ckpt({"diff", path("hf"), step(2), "--tolerance", "0.005"}), 0);
  expect_code(ckpt({"diff", path("hf"), step(2)}), 1);
  expect_code(run({"generate", "--model", path("hf"), "--prompt", "the", "--tokens", "4"}), 0);
}

TEST_F(Ckpt, what_is_exported_for_pytorch_comes_back_the_same) {
  const auto r = ckpt({"export", path("run"), "--to", "dcp", "--out", path("dcp"), "--json"});
  expect_code(r, 0);
  EXPECT_TRUE(fs::exists(path("dcp/.metadata")) && fs::exists(path("dcp/tokenizer.json")));
  EXPECT_FALSE(fs::exists(path("dcp/model.safetensors")));
  expect_code(ckpt({"import", path("dcp"), "--from", "dcp", "--model", path("run/model"), "--out", path("back")}), 0);
  expect_code(ckpt({"diff", path("back/checkpoints/step_00000000"), path("run/model")}), 0);
}

TEST_F(Ckpt, an_export_loads_in_transformers) {
  const auto python = io::find_python("transformers, torch, safetensors");
  if (!python) GTEST_SKIP() << "no Python with transformers and torch; set HPCDL_PYTHON";
  expect_code(ckpt({"export", path("run"), "--out", path("for_hf")}), 0);
  bool ok = false;
  const auto said = io::run_python(*python, R"(
import sys, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
files = load_file(sys.argv[1] + "/model.safetensors")
for name, p in model.named_parameters():
    assert torch.equal(p, files[name]), name
print("loaded")
)",
                                   path("for_hf"), ok);
  EXPECT_TRUE(ok && said.find("loaded") != std::string::npos) << said;
}

TEST_F(Ckpt, a_run_starts_from_an_imported_folder) {
  const auto r =
      ckpt({"import", path("run/model"), "--from", "hf", "--out", path("imported"), "--train.seed=8", "--json"});
  expect_code(r, 0);
  EXPECT_EQ(r.json().at("unused").size(), 0u);
  const auto made = path("imported/checkpoints/step_00000000");
  EXPECT_EQ(r.json().at("checkpoint"), made);
  expect_code(ckpt({"verify", made}), 0);
  expect_code(ckpt({"diff", made, path("run/model")}), 0);
  EXPECT_EQ(ckpt({"show", made, "--json"}).json().at("seed"), 8);
  expect_error(ckpt({"import", path("run/model"), "--out", path("imported")}), 70, "has checkpoints, which a run");
  const auto trained = train_on(path("imported"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(trained.json().at("step"), 1);
  expect_code(ckpt({"diff", path("imported/model"), path("run/model")}), 0);
}

TEST_F(Ckpt, imports_that_cannot_be_right_are_refused) {
  const auto refused = [](std::vector<std::string> more, int code, const std::string& part) {
    more.insert(more.begin(), {"import", path("run/model"), "--out", path("refused")});
    expect_error(ckpt(more), code, part);
    EXPECT_FALSE(fs::exists(path("refused/checkpoints/step_00000000")));
  };
  refused({"--model.layers=3"}, 2, "contradicts model.layers = 3, where it has 2");
  refused({"--from", "dcp"}, 70, "expected a distributed checkpoint of PyTorch");
  refused({"--prefix", "other."}, 70, "tensor \"other.model.embed_tokens.weight\" of the model is not there");
  fs::copy(path("run/model"), path("shapes"));
  auto config = io::read_file(path("shapes/config.json"));
  const auto at = config.find("\"num_hidden_layers\": 2");
  ASSERT_NE(at, std::string::npos) << config;
  config.replace(at, 22, "\"num_hidden_layers\": 3");
  io::write_file_atomic(path("shapes/config.json"), config);
  expect_error(ckpt({"import", path("shapes"), "--out", path("refused")}), 70, "is not there");
  expect_error(ckpt({}), 2, "ckpt: expected show, verify, diff, export, import, found nothing; see hpcdl ckpt --help");
  expect_error(ckpt({"verfy", path("run")}), 2, "found \"verfy\"; did you mean 'verify'?");
}

TEST_F(Ckpt, a_distributed_checkpoint_of_torch_is_imported) {
  const auto python = io::find_python("torch.distributed.checkpoint, safetensors.torch");
  if (!python) GTEST_SKIP() << "no Python with torch; set HPCDL_PYTHON";
  bool ok = false;
  const auto said = io::run_python(*python, R"(
import sys
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
weights = load_file(sys.argv[1])
state = {"step": 3, "moments": {"exp_avg": {k: v * 0 for k, v in weights.items()}}}
dcp.save({"app": {"net": weights, "optimizer": state}}, checkpoint_id=sys.argv[2])
)",
                                   path("run/model/model.safetensors") + " " + path("dcp"), ok);
  ASSERT_TRUE(ok) << said;
  const auto r =
      ckpt({"import", path("dcp"), "--from", "dcp", "--model", path("run/model"), "--out", path("from_dcp"), "--json"});
  expect_error(r, 2, "choose one with --prefix");
  const auto chosen = ckpt({"import", path("dcp"), "--from", "dcp", "--model", path("run/model"), "--out",
                            path("from_dcp"), "--prefix", "app.net.", "--json"});
  expect_code(chosen, 0);
  EXPECT_GT(chosen.json().at("unused").size(), 0u);
  expect_code(ckpt({"diff", path("from_dcp"), path("run/model")}), 0);
  const auto trained = train_on(path("from_dcp"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  expect_code(ckpt({"diff", path("from_dcp/model"), path("run/model")}), 0);
}

}  // namespace
}  // namespace hpcdl::cli_test
