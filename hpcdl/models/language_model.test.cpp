// Every family against the transformers library (golden files of golden/make_models.py) and for self-consistency.

#include "hpcdl/models/language_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/infer/evaluate.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/models/tiny_for_tests.h"

namespace hpcdl::models {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/models/golden";

std::vector<float> floats(const View& v) {
  std::vector<float> out(static_cast<std::size_t>(v.size()));
  std::memcpy(out.data(), v.data(), static_cast<std::size_t>(v.bytes()));
  return out;
}
std::vector<std::int32_t> ids(const View& v) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(v.size()));
  std::memcpy(out.data(), v.data(), static_cast<std::size_t>(v.bytes()));
  return out;
}

/// Largest difference relative to the largest magnitude of `want`.
double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double worst = 0, top = 0;
  if (got.size() != want.size()) return HUGE_VAL;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return HUGE_VAL;
    worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
    top = std::max(top, std::fabs(static_cast<double>(want[i])));
  }
  return top > 0 ? worst / top : worst;
}

// Two blocks are about 20 dependent rounding errors, each amplified by norms and softmax; both sides round differently.
constexpr double kF32 = 1e-5, kBf16 = 0.06;

struct Runner {
  Pool pool{2};
  StepParams params;
  Stream stream{pool, &params};

  std::vector<float> logits(const LanguageModel& m, const std::vector<std::int32_t>& tokens, std::int64_t rows,
                            nn::ForwardOptions o = {}) {
    Graph g({.inference = true});
    const Var in = g.input("tokens", {{rows, static_cast<std::int64_t>(tokens.size()) / rows}, DType::i32});
    const Var out = g.keep(m.logits(g, in, o));
    EXPECT_EQ(out.spec().dtype, DType::f32);
    Instance exe(g.finish());
    std::memcpy(exe.tensor(in).data(), tokens.data(), tokens.size() * 4);
    exe.run(stream);
    return floats(exe.tensor(out));
  }

  /// Mean loss of predicting each row's next token; gradients (of the sum) are stored in the model.
  double loss_and_gradients(LanguageModel& m, const std::vector<std::int32_t>& tokens, std::int64_t rows,
                            nn::ForwardOptions o = {}) {
    const auto cols = static_cast<std::int64_t>(tokens.size()) / rows, T = cols - 1;
    Graph g;
    const Var in = g.input("tokens", {{rows, T}, DType::i32}), targets = g.input("targets", {{rows, T}, DType::i32});
    const Var loss = g.keep(m.loss(g, in, targets, o));
    g.backward(loss);
    Instance exe(g.finish());
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(exe.tensor(in).ptr<std::int32_t>() + r * T, tokens.data() + r * cols,
                  static_cast<std::size_t>(T) * 4);
      std::memcpy(exe.tensor(targets).ptr<std::int32_t>() + r * T, tokens.data() + r * cols + 1,
                  static_cast<std::size_t>(T) * 4);
    }
    exe.run(stream);
    return static_cast<double>(exe.tensor(loss).ptr<float>()[0]) / static_cast<double>(rows * T);
  }
};

class Golden : public testing::TestWithParam<const char*> {
 protected:
  fs::path folder() const { return kGolden / GetParam(); }
  io::SafeTensors golden() const { return io::SafeTensors::open(folder() / "golden.safetensors"); }
  /// The engine generates `want`, up to a token that ends the text.
  void expect_continuation(const LanguageModel& model, const std::vector<std::int32_t>& prompt,
                           std::vector<std::int32_t> want) {
    const auto& eos = model.config().eos;
    const auto end = std::ranges::find_first_of(want, eos);
    if (end != want.end()) want.erase(end + 1, want.end());
    std::vector<std::int32_t> got;
    infer::Engine engine(model, run.pool, {.context = 24});
    engine.generate(prompt, static_cast<std::int64_t>(want.size()), {},
                    [&](std::int32_t id) { return got.push_back(id), true; });
    EXPECT_EQ(got, want);
  }
  Runner run;
};

TEST_P(Golden, LogitsAgreeWithTransformers) {
  const auto model = LanguageModel::open(folder());
  const auto g = golden();
  EXPECT_LT(distance(run.logits(model, ids(g.at("tokens")), 2), floats(g.at("logits"))), kF32);
}

TEST_P(Golden, LossAgreesWithTransformers) {
  auto model = LanguageModel::open_for_training(folder());
  const auto g = golden();
  const double want = static_cast<double>(floats(g.at("loss"))[0]);
  EXPECT_NEAR(run.loss_and_gradients(model, ids(g.at("tokens")), 2), want, kF32 * want);
}

TEST_P(Golden, GradientsAgreeWithTransformers) {
  const auto g = golden();
  if (!g.find("grad." + LanguageModel::open(folder()).parameters()[0].name))
    GTEST_SKIP() << "this golden file has no gradients";
  for (bool recompute : {false, true}) {
    auto model = LanguageModel::open_for_training(folder());
    const auto tokens = ids(g.at("tokens"));
    run.loss_and_gradients(model, tokens, 2, {.recompute = recompute});
    for (auto& p : model.parameters()) {
      auto got = floats(p.gradient->memory);
      for (auto& v : got) v /= static_cast<float>(tokens.size() - 2);
      EXPECT_LT(distance(got, floats(g.at("grad." + p.name))), 4 * kF32) << p.name;
    }
  }
}

TEST_P(Golden, Bf16ComputeStaysClose) {
  const auto model = LanguageModel::open(folder());
  const auto g = golden();
  EXPECT_LT(distance(run.logits(model, ids(g.at("tokens")), 2, {.compute = DType::bf16}), floats(g.at("logits"))),
            kBf16);
}

TEST_P(Golden, GenerationThroughPagesIsTheFullForward) {
  const auto model = LanguageModel::open(folder());
  auto tokens = ids(golden().at("tokens"));
  tokens.resize(11);  // programs of 8, 2 and 1 tokens
  std::vector<std::int32_t> got;
  infer::Engine engine(model, run.pool, {.context = 24});
  for (int round = 0; round < 2; ++round) {  // a second prompt does not see the first
    got.clear();
    engine.generate(tokens, 8, {}, [&](std::int32_t id) { return got.push_back(id), true; });
    auto text = tokens;
    for (auto id : got) {
      const auto all = run.logits(model, text, 1);
      const auto vocab = static_cast<std::size_t>(model.config().vocab);
      const auto* last = all.data() + all.size() - vocab;
      EXPECT_EQ(id, std::max_element(last, last + vocab) - last);
      text.push_back(id);
    }
  }
}

TEST_P(Golden, EngineContinuesLikeTransformers) {
  const auto g = golden();
  if (!g.find("greedy")) GTEST_SKIP() << "this golden file has no continuation";
  const auto model = LanguageModel::open(folder());
  auto prompt = ids(g.at("tokens"));
  prompt.resize(11);
  expect_continuation(model, prompt, ids(g.at("greedy")));
}

TEST_P(Golden, SavedFolderHoldsTheSameModel) {
  const io::TempFolder temp;
  const auto model = LanguageModel::open_for_training(folder());
  model.save(temp.path());
  const auto again = LanguageModel::open(temp.path());
  EXPECT_EQ(again.config(), LanguageModel::open(temp.path()).config());
  const auto tokens = ids(golden().at("tokens"));
  EXPECT_EQ(run.logits(model, tokens, 2), run.logits(again, tokens, 2));
  model.save(temp.path(), DType::bf16);
  EXPECT_LT(distance(run.logits(LanguageModel::open(temp.path()), tokens, 2), run.logits(model, tokens, 2)), kBf16);
}

TEST_P(Golden, HalvesOfAFileLoseNothing) {
  const io::TempFolder temp;
  LanguageModel::open_for_training(folder()).save(temp.path(), DType::f16);
  const auto tokens = ids(golden().at("tokens"));
  EXPECT_LT(distance(run.logits(LanguageModel::open(temp.path()), tokens, 2),
                     run.logits(LanguageModel::open_for_training(temp.path()), tokens, 2)),
            kF32);
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Values("gpt2", "gpt2_untied_gelu_wide", "llama", "llama_tied_bias_sharded",
                                         "llama_head_dim_bf16", "gpt2_relu", "llama_rope_llama3", "llama_rope_linear",
                                         "mistral", "phi3", "qwen2", "qwen3", "mistral_window", "qwen2_window",
                                         "qwen3_window", "phi3_window", "gemma2", "gemma2_wide_heads", "gemma3_text",
                                         "llama_rope_yarn", "llama_rope_dynamic", "phi3_longrope_short",
                                         "phi3_longrope_long"),
                         [](const auto& p) { return std::string(p.param); });

/// Experts, among which rounded activations choose otherwise.
class Mixture : public Golden {};

TEST_P(Mixture, LogitsAgreeWithTransformers) {
  const auto model = LanguageModel::open(folder());
  const auto g = golden();
  EXPECT_LT(distance(run.logits(model, ids(g.at("tokens")), 2), floats(g.at("logits"))), kF32);
  EXPECT_LT(distance(run.logits(model, ids(g.at("tokens")), 2, {.compute = DType::bf16}), floats(g.at("logits"))), 0.3)
      << "a token near a boundary may go through another expert";
}

TEST_P(Mixture, EngineContinuesLikeTransformers) {
  const auto model = LanguageModel::open(folder());
  auto prompt = ids(golden().at("tokens"));
  prompt.resize(11);
  expect_continuation(model, prompt, ids(golden().at("greedy")));
}

TEST_P(Mixture, SavedFolderHoldsTheSameModel) {
  const io::TempFolder temp;
  const auto model = LanguageModel::open(folder());
  model.save(temp.path());
  const auto tokens = ids(golden().at("tokens"));
  EXPECT_EQ(run.logits(model, tokens, 2), run.logits(LanguageModel::open(temp.path()), tokens, 2));
}

INSTANTIATE_TEST_SUITE_P(Families, Mixture, testing::Values("mixtral", "qwen3_moe", "qwen3_moe_sum_to_one"),
                         [](const auto& p) { return std::string(p.param); });

io::ModelConfig small(io::Family family) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 2, c.heads = 4, c.width = 32, c.context = 16, c.vocab = 50;
  if (family != io::Family::gpt2) c.kv_heads = 2;
  if (row_of(family).mixture) c.experts = 5, c.chosen_experts = 2;
  resolve(c);
  return c;
}

TEST(LanguageModel, FreshWeightsPredictNothing) {
  for (auto family : all_text_families()) {
    auto model = LanguageModel::create(small(family), 1, true);
    Runner run;
    std::vector<std::int32_t> tokens(2 * 17);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 7 % 50);
    EXPECT_NEAR(run.loss_and_gradients(model, tokens, 2), std::log(50.0), 0.1);
    auto same = LanguageModel::create(small(family), 1, false), other = LanguageModel::create(small(family), 2, false);
    EXPECT_EQ(floats(same.parameters()[0].memory), floats(model.parameters()[0].memory));
    EXPECT_NE(floats(other.parameters()[0].memory), floats(model.parameters()[0].memory));
  }
}

TEST(LanguageModel, RecomputeIsBitwiseNeutral) {
  for (auto family : all_text_families())
    for (float dropout : {0.0f, 0.2f}) {
      Runner run;
      std::vector<std::int32_t> tokens(2 * 13);
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 11 % 50);
      auto plain = LanguageModel::create(small(family), 1, true),
           thrifty = LanguageModel::create(small(family), 1, true);
      const auto a = run.loss_and_gradients(plain, tokens, 2, {.dropout = dropout, .training = true});
      const auto b =
          run.loss_and_gradients(thrifty, tokens, 2, {.recompute = true, .dropout = dropout, .training = true});
      EXPECT_EQ(a, b);
      for (std::size_t i = 0; i < plain.parameters().size(); ++i)
        EXPECT_EQ(floats(plain.parameters()[i].gradient->memory), floats(thrifty.parameters()[i].gradient->memory))
            << plain.parameters()[i].name;
    }
}

TEST(LanguageModel, LogitsKeptOrComputedTwiceAreTheSame) {
  Runner run;
  std::vector<std::int32_t> tokens(2 * 13);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 11 % 50);
  auto keep = LanguageModel::create(small(io::Family::gpt2), 1, true),
       twice = LanguageModel::create(small(io::Family::gpt2), 1, true);
  EXPECT_EQ(run.loss_and_gradients(keep, tokens, 2),
            run.loss_and_gradients(twice, tokens, 2, {.keep_logits_bytes = 0}));
  for (std::size_t i = 0; i < keep.parameters().size(); ++i)
    EXPECT_EQ(floats(keep.parameters()[i].gradient->memory), floats(twice.parameters()[i].gradient->memory))
        << keep.parameters()[i].name;
}

/// A model of 4 bits against the same model with its weights widened again. The two differ only by the 8-bit
/// activations.
TEST(LanguageModel, QuantisedFolderGivesTheLogitsOfItsWeights) {
  Runner run;
  for (auto family : all_text_families())
    for (bool symmetric : {true, false}) {
      const io::TempFolder temp;
      auto c = small(family);
      c.width = 64, c.ffn = 128, c.head_dim = 0;
      if (c.experts > 0) c.chosen_experts = c.experts;  // otherwise rounding sends tokens to other experts
      resolve(c);
      auto model = LanguageModel::create(c, 3, false);
      for (auto& p : model.parameters())  // larger than fresh weights, so that attention is not uniform
        for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 6;
      model.save(temp / "full");
      const auto report =
          quantize_folder(run.pool, temp / "full", temp / "int4", {.options = {.group = 32, .symmetric = symmetric}});
      EXPECT_LT(report.bits_per_weight(), 8);
      const auto small = LanguageModel::open(temp / "int4");
      EXPECT_TRUE(small.config().quant.has_value());
      std::vector<std::int32_t> tokens(16);
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 11 % 50);
      const auto want = run.logits(model, tokens, 1), got = run.logits(small, tokens, 1);
      EXPECT_LT(distance(got, want), 0.5);   // 4 bits are coarse; a wrong matrix would differ by more than the logits
      EXPECT_GT(distance(got, want), 1e-4);  // but the 4-bit weights are used
      EXPECT_LT(distance(run.logits(small, tokens, 1, {.compute = DType::bf16}), got), 0.1);
      EXPECT_THROW(LanguageModel::open_for_training(temp / "int4"), Error);
      infer::Engine engine(small, run.pool, {.context = 16});
      std::vector<std::int32_t> text(tokens.begin(), tokens.begin() + 5);
      engine.generate(text, 6, {}, [&](std::int32_t id) { return text.push_back(id), true; });
      const auto vocab = static_cast<std::ptrdiff_t>(c.vocab);
      const auto all = run.logits(small, {text.begin(), text.end() - 1}, 1);
      for (std::size_t t = 4; t + 1 < text.size(); ++t) {
        const auto* row = all.data() + static_cast<std::ptrdiff_t>(t) * vocab;
        EXPECT_EQ(text[t + 1], std::max_element(row, row + vocab) - row);
      }
      auto wrong = small.config();
      wrong.quant->options.symmetric = !symmetric;
      write_hf_config(temp / "int4", wrong);
      EXPECT_THROW(LanguageModel::open(temp / "int4"), Error) << "expected an error for surplus or missing offsets";
      wrong = small.config();
      wrong.vocab *= 2;
      write_hf_config(temp / "int4", wrong);
      EXPECT_THROW(LanguageModel::open(temp / "int4"), Error) << "expected an error for missing rows";
    }
}

TEST(LanguageModel, RandomWeightsAreThoseOfAFolder) {
  Runner run;
  Pool& pool = run.pool;
  for (const auto family : text_families()) {
    auto config = tiny(family);
    config.dtype = DType::bf16;
    const io::TempFolder folder;
    LanguageModel::create(config, 7, false).save(folder.path() / "bf16", DType::bf16);
    quantize_folder(pool, folder.path() / "bf16", folder.path() / "int4", {.options = {.group = 32, .search = false}});
    for (const char* name : {"bf16", "int4"}) {
      const auto want = LanguageModel::open(folder.path() / name);
      if (want.config().quant) config.quant = want.config().quant, config.quant->options.search = false;
      const auto got = LanguageModel::random(pool, config, 7);
      EXPECT_EQ(got.matrix_type(), want.matrix_type());
      EXPECT_EQ(got.bytes(), want.bytes());
      EXPECT_EQ(run.logits(got, tiny_ids(1), 2), run.logits(want, tiny_ids(1), 2)) << name;
    }
  }
}

TEST(LanguageModel, TrainingProgramsArePlannedTightly) {
  for (auto family : all_text_families())
    for (bool recompute : {false, true}) {
      const auto model = LanguageModel::create(small(family), 1, true);
      Graph g;
      const Spec ids{{4, 16}, DType::i32};
      g.backward(model.loss(g, g.input("tokens", ids), g.input("targets", ids), {.recompute = recompute}));
      const auto plan = hpcdl::plan(g.program());
      EXPECT_LE(static_cast<double>(plan.arena_bytes), 1.1 * static_cast<double>(plan.live_bytes));
    }
}

TEST(LanguageModel, TransformersLoadsWhatWeSave) {
  const auto python = io::find_python("transformers, torch, safetensors");
  if (!python) GTEST_SKIP() << "no python with transformers and torch";
  const io::TempFolder temp;
  for (auto family : all_text_families()) {
    const auto model = LanguageModel::create(small(family), 3, false);
    model.save(temp.path());
    const std::string script = fmt::format(
        "import sys,torch,transformers\n"
        "m,info=transformers.AutoModelForCausalLM.from_pretrained('{0}',output_loading_info=True)\n"
        "assert not info['missing_keys'] and not info['unexpected_keys'], info\n"
        "from safetensors.torch import save_file\n"
        "t=torch.arange(12).reshape(1,12)\n"
        "save_file({{'logits':m(t).logits.detach().contiguous()}},'{0}/theirs.st')\n",
        temp.path().string());
    bool ok = false;
    const std::string said = io::run_python(*python, script, "", ok);
    ASSERT_TRUE(ok) << said;
    Runner run;
    std::vector<std::int32_t> tokens(12);
    for (int i = 0; i < 12; ++i) tokens[static_cast<std::size_t>(i)] = i;
    EXPECT_LT(
        distance(run.logits(model, tokens, 1), floats(io::SafeTensors::open(temp.path() / "theirs.st").at("logits"))),
        kF32);
  }
}

// The rotary angles of all positions would take 1 GB.
TEST(LanguageModel, AContextCostsWhatIsUsedOfIt) {
  const auto resident = [] {
    std::ifstream in("/proc/self/statm");
    std::int64_t total = 0, pages = 0;
    in >> total >> pages;
    return pages * 4096;
  };
  auto config = small(io::Family::llama);
  config.context = 1 << 22, config.head_dim = 64;
  const auto before = resident();
  const auto model = LanguageModel::create(config, 1, false);
  Runner run;
  run.logits(model, {1, 2, 3}, 1);
  EXPECT_LT(resident() - before, 64 << 20);
}

TEST(LanguageModel, WeightsOfALayerThatConfigDoesNotKnowAreAnError) {
  const io::TempFolder temp;
  auto with = small(io::Family::llama);
  with.attention_bias = true;
  const auto model = LanguageModel::create(with, 3, false);
  model.save(temp.path());
  EXPECT_NO_THROW(LanguageModel::open(temp.path()));
  auto without = with;
  without.attention_bias = false;
  write_hf_config(temp.path(), without);
  for (const bool training : {false, true}) try {
      training ? LanguageModel::open_for_training(temp.path()) : LanguageModel::open(temp.path());
      FAIL() << "expected an error for unused attention biases";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("_proj.bias"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("attention_bias"), std::string::npos) << e.what();
    }
  // With fewer layers than the files contain, the first ones are used.
  with.layers = 1;
  write_hf_config(temp.path(), with);
  EXPECT_NO_THROW(LanguageModel::open(temp.path()));
}

TEST(LanguageModel, MistakesAreNamed) {
  const io::TempFolder temp;
  EXPECT_THROW(LanguageModel::open(temp.path()), Error);
  const auto model = LanguageModel::create(small(io::Family::gpt2), 3, false);
  model.save(temp.path());
  auto wrong = small(io::Family::gpt2);
  wrong.width = 64;
  wrong.ffn = wrong.head_dim = 0;
  resolve(wrong);
  write_hf_config(temp.path(), wrong);
  try {
    LanguageModel::open(temp.path());
    FAIL() << "expected an error for a folder with an inconsistent config.json";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("wte.weight"), std::string::npos) << e.what();
  }
  Runner run;
  EXPECT_THROW(run.logits(model, std::vector<std::int32_t>(17), 1), Error);  // beyond the context
  infer::Engine g(model, run.pool, {.context = 16});
  const std::vector<std::int32_t> outside{50};
  EXPECT_THROW(g.generate(outside, 1, {}, [](int) { return true; }), Error);
  EXPECT_THROW(g.generate(std::vector<std::int32_t>(10), 7, {}, [](int) { return true; }), Error);
  EXPECT_THROW(infer::evaluate(model, run.pool, std::vector<std::int32_t>{1}), Error);
}

}  // namespace
}  // namespace hpcdl::models
