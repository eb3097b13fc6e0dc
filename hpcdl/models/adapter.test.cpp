// Adapters of every family: against the same model with the products added to its weights, and their files.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/fingerprint.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/merge_adapter.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/rng.h"

namespace hpcdl::models {
namespace {

namespace fs = std::filesystem;

using Values = std::map<std::string, std::vector<float>>;

constexpr std::int64_t kRank = 3;

AdapterOptions options() { return {.method = AdapterMethod::lora, .r = kRank, .alpha = 5}; }

/// An odd model of the family in tmp/base.
void save_base(const io::TempFolder& tmp, io::Family family, DType dtype = DType::f32) {
  LanguageModel::create(tiny(family), 7, false).save(tmp / "base", dtype);
}

LanguageModel adapted(const io::TempFolder& tmp, const AdapterOptions& o, DType compute = DType::f32) {
  static Pool pool(2);
  return LanguageModel::open_for_adapting(tmp / "base", o, 11, {compute, &pool});
}

std::vector<float> floats(const View& v) {
  std::vector<float> out(static_cast<std::size_t>(v.size()));
  std::memcpy(out.data(), v.data(), out.size() * sizeof(float));
  return out;
}

/// Loss and gradients of the tiny batch.
float pass(LanguageModel& m, bool backward, nn::ForwardOptions o = {}) {
  Pool pool(2);
  StepParams params;
  Stream stream(pool, &params);
  Graph g;
  const Var tokens = g.input("tokens", {{2, 16}, DType::i32}), targets = g.input("targets", {{2, 16}, DType::i32});
  const Var loss = g.keep(m.loss(g, tokens, targets, o));
  if (backward) g.backward(loss);
  const Instance exe(g.finish());
  std::memcpy(exe.tensor(tokens).data(), tiny_ids(1).data(), 32 * 4);
  std::memcpy(exe.tensor(targets).data(), tiny_ids(2).data(), 32 * 4);
  exe.run(stream);
  return *exe.tensor(loss).ptr<float>();
}

/// Draws both matrices of every adapter, so that none is zero.
void fill(const LanguageModel& m) {
  std::uint64_t stream = 0;
  for (const auto& p : m.parameters()) {
    const Rng rng{5, ++stream};
    for (std::int64_t i = 0; i < p.memory.size(); ++i)
      p.memory.ptr<float>()[i] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i))) * 0.1f;
  }
}

Values values_of(const LanguageModel& m, bool gradients) {
  Values all;
  for (const auto& p : m.parameters()) all[p.name] = floats(gradients ? p.gradient->memory : p.memory);
  return all;
}

double largest(const std::vector<float>& v) {
  double top = 0;
  for (const float x : v) top = std::max(top, std::fabs(double{x}));
  return top;
}

std::vector<float> logits_of(const LanguageModel& m, const View& tokens) {
  Pool pool(2);
  Stream stream(pool);
  Graph g({.inference = true});
  const Var in = g.input("tokens", tokens.spec());
  const Var out = g.keep(m.logits(g, in));
  const Instance exe(g.finish());
  std::memcpy(exe.tensor(in).data(), tokens.data(), static_cast<std::size_t>(tokens.bytes()));
  exe.run(stream);
  return floats(exe.tensor(out));
}

/// For every layer: f(name, a, b, its matrix of shape (out, in) or, if `conv1d`, (in, out)).
void for_each_layer(
    const Values& adapter,
    const std::function<void(const std::string&, const std::vector<float>&, const std::vector<float>&)>& f) {
  const std::string ending = ".lora_A.weight";
  for (const auto& [name, a] : adapter) {
    if (!name.ends_with(ending)) continue;
    const auto layer = name.substr(0, name.size() - ending.size());
    f(layer, a, adapter.at(layer + ".lora_B.weight"));
  }
}

struct Families : ::testing::TestWithParam<io::Family> {
  Families() { save_base(tmp, GetParam()); }
  bool conv1d() const { return GetParam() == io::Family::gpt2; }
  io::TempFolder tmp;
};

TEST_P(Families, a_fresh_adapter_changes_no_bit) {
  auto base = LanguageModel::open_for_training(tmp / "base");
  auto with = adapted(tmp, options());
  EXPECT_EQ(pass(with, false), pass(base, false));
  EXPECT_EQ(pass(with, true), pass(base, true));
}

/// loss(W + s b a), and by the chain rule: db = s dW a^T, da = s b^T dW.
TEST_P(Families, products_and_gradients_are_those_of_merged_weights) {
  auto with = adapted(tmp, options());
  fill(with);
  const auto adapter = values_of(with, false);
  auto merged = LanguageModel::open_for_training(tmp / "base");
  const double s = options().scale();
  std::map<std::string, StateEntry> entries;
  for (const auto& p : merged.parameters()) entries.emplace(p.name, p);
  const auto at = [&](std::int64_t out, std::int64_t in, std::int64_t outs, std::int64_t ins) {
    return static_cast<std::size_t>(conv1d() ? in * outs + out : out * ins + in);
  };
  int layers = 0;
  for_each_layer(adapter, [&](const std::string& layer, const auto& a, const auto& b) {
    const auto outs = std::ssize(b) / kRank, ins = std::ssize(a) / kRank;
    float* w = entries.at(layer + ".weight").memory.template ptr<float>();
    for (std::int64_t o = 0; o < outs; ++o)
      for (std::int64_t i = 0; i < ins; ++i)
        for (std::int64_t r = 0; r < kRank; ++r)
          w[at(o, i, outs, ins)] += static_cast<float>(s * b[static_cast<std::size_t>(o * kRank + r)] *
                                                       a[static_cast<std::size_t>(r * ins + i)]);
    ++layers;
  });
  EXPECT_GE(layers, 8);
  const double want = pass(merged, true), got = pass(with, true);
  EXPECT_NEAR(got, want, 1e-5 * want);
  const auto dense = values_of(merged, true), mine = values_of(with, true);
  for_each_layer(adapter, [&](const std::string& layer, const auto& a, const auto& b) {
    const auto outs = std::ssize(b) / kRank, ins = std::ssize(a) / kRank;
    const auto& dw = dense.at(layer + ".weight");
    std::vector<float> da(a.size()), db(b.size());
    for (std::int64_t r = 0; r < kRank; ++r)
      for (std::int64_t o = 0; o < outs; ++o)
        for (std::int64_t i = 0; i < ins; ++i) {
          const double d = s * dw[at(o, i, outs, ins)];
          da[static_cast<std::size_t>(r * ins + i)] +=
              static_cast<float>(d * b[static_cast<std::size_t>(o * kRank + r)]);
          db[static_cast<std::size_t>(o * kRank + r)] +=
              static_cast<float>(d * a[static_cast<std::size_t>(r * ins + i)]);
        }
    const auto check = [&](const std::vector<float>& expected, const std::vector<float>& found, const char* of) {
      const double top = largest(expected);
      ASSERT_GT(top, 0) << layer << of;
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 2e-4 * top) << layer << of;
    };
    check(da, mine.at(layer + ".lora_A.weight"), " a");
    check(db, mine.at(layer + ".lora_B.weight"), " b");
  });
}

/// Nothing of the base has a gradient, and no record computes one.
TEST_P(Families, the_base_is_frozen) {
  auto with = adapted(tmp, options());
  std::int64_t frozen = 0;
  with.state().for_each([&](const StateEntry& e) { frozen += e.role == StateRole::frozen; });
  EXPECT_GT(frozen, 10);
  for (const auto& p : with.parameters()) EXPECT_TRUE(p.name.find(".lora_") != std::string::npos) << p.name;
  Graph g;
  const Var tokens = g.input("tokens", {{2, 16}, DType::i32}), targets = g.input("targets", {{2, 16}, DType::i32});
  g.backward(with.loss(g, tokens, targets));
  for (const auto& slot : g.finish().program.slots)
    EXPECT_TRUE(!slot.name.ends_with(".weight.grad") || slot.name.find(".lora_") != std::string::npos) << slot.name;
}

TEST_P(Families, a_saved_adapter_gives_the_logits_that_were_trained) {
  auto with = adapted(tmp, options());
  fill(with);
  with.save(tmp / "adapter");
  const auto ids = tiny_ids(1);
  const auto logits = [&](const LanguageModel& m) { return logits_of(m, View(ids.data(), {{2, 16}, DType::i32})); };
  auto opened = LanguageModel::open(tmp / "base", {}, {.adapter = tmp / "adapter"});
  auto base = LanguageModel::open(tmp / "base");
  EXPECT_EQ(logits(opened), logits(with));
  EXPECT_NE(logits(opened), logits(base));
}

INSTANTIATE_TEST_SUITE_P(all, Families, ::testing::ValuesIn(text_families()),
                         [](const auto& p) { return std::string(io::enum_name(p.param)); });

TEST(adapter, matrices_of_the_base_are_held_in_the_type_of_products) {
  const io::TempFolder tmp;
  save_base(tmp, io::Family::llama);
  auto base = LanguageModel::open_for_training(tmp / "base");
  auto with = adapted(tmp, options(), DType::bf16);
  EXPECT_EQ(pass(with, true, {.compute = DType::bf16}), pass(base, true, {.compute = DType::bf16}));
  with.state().for_each([&](const StateEntry& e) {
    const bool matrix = e.role == StateRole::frozen && e.param->multiplied;
    EXPECT_TRUE(!matrix || e.memory.dtype() == DType::bf16) << e.name;
  });
}

TEST(adapter, dropout_is_of_training_only_and_is_drawn_again_by_backward) {
  const io::TempFolder tmp;
  save_base(tmp, io::Family::qwen3);
  auto o = options();
  auto plain = adapted(tmp, o);
  o.dropout = 0.5;
  auto with = adapted(tmp, o);
  fill(plain), fill(with);
  EXPECT_EQ(pass(with, false), pass(plain, false));
  EXPECT_NE(pass(with, false, {.training = true}), pass(plain, false, {.training = true}));
  pass(with, true, {.training = true});
  const auto kept = values_of(with, true);
  pass(with, true, {.recompute = true, .training = true});
  EXPECT_EQ(values_of(with, true), kept);
}

/// Adapters that peft has written (golden/make_adapters.py), beside the model and merged into it.
TEST(adapter, files_of_peft_give_its_logits) {
  const fs::path golden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/models/golden";
  Pool pool(2);
  for (const char* base : {"llama", "gpt2"}) {
    const auto folder = golden / (std::string(base) + "_lora");
    const auto want = io::SafeTensors::open(folder / "golden.safetensors");
    const auto expected = floats(want.at("logits"));
    const io::TempFolder tmp;
    merge_adapter(pool, golden / base, AdapterFolder::open(folder), tmp.path());
    const auto beside = LanguageModel::open(golden / base, {}, {.adapter = folder});
    const auto merged = LanguageModel::open(tmp.path());
    for (const auto* model : {&beside, &merged}) {
      const auto found = logits_of(*model, want.at("tokens"));
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 1e-5 * largest(expected)) << base;
    }
    EXPECT_NE(logits_of(LanguageModel::open(golden / base), want.at("tokens")), expected);
  }
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(adapter, targets_biases_and_whole_modules_are_chosen_by_name) {
  const io::TempFolder tmp;
  save_base(tmp, io::Family::gpt2);
  auto o = options();
  o.targets = {"c_attn", "h\\.1\\.mlp\\..*"};
  o.bias = AdapterBias::lora_only, o.keep = {"ln_f", "wte"};
  auto with = adapted(tmp, o);
  std::vector<std::string> names;
  for (const auto& p : with.parameters()) names.push_back(p.name);
  const std::vector<std::string> expected = {
      "transformer.wte.weight",
      "transformer.h.0.attn.c_attn.bias",
      "transformer.h.0.attn.c_attn.lora_A.weight",
      "transformer.h.0.attn.c_attn.lora_B.weight",
      "transformer.h.1.attn.c_attn.bias",
      "transformer.h.1.attn.c_attn.lora_A.weight",
      "transformer.h.1.attn.c_attn.lora_B.weight",
      "transformer.h.1.mlp.c_fc.bias",
      "transformer.h.1.mlp.c_fc.lora_A.weight",
      "transformer.h.1.mlp.c_fc.lora_B.weight",
      "transformer.h.1.mlp.c_proj.bias",
      "transformer.h.1.mlp.c_proj.lora_A.weight",
      "transformer.h.1.mlp.c_proj.lora_B.weight",
      "transformer.ln_f.weight",
      "transformer.ln_f.bias",
  };
  EXPECT_EQ(names, expected);
  auto base = LanguageModel::open_for_training(tmp / "base");
  EXPECT_EQ(pass(with, true), pass(base, true));
  fill(with);
  with.save(tmp / "adapter");
  const auto json = io::read_json(tmp / "adapter" / kAdapterConfig);
  EXPECT_EQ(json.at("target_modules").dump(),
            "[\"c_attn\",\"transformer.h.1.mlp.c_fc\",\"transformer.h.1.mlp.c_proj\"]");
  EXPECT_EQ(json.at("fan_in_fan_out"), true);
  const auto file = io::TensorFolder::open(tmp / "adapter" / kAdapterTensors);
  EXPECT_TRUE(file.contains("base_model.model.transformer.h.1.mlp.c_fc.base_layer.bias"));
  EXPECT_TRUE(file.contains("base_model.model.transformer.ln_f.weight"));
  auto opened = LanguageModel::open(tmp / "base", {}, {.adapter = tmp / "adapter"});
  EXPECT_EQ(pass(opened, false), pass(with, false));
}

TEST(adapter, what_does_not_fit_is_refused_by_name) {
  const io::TempFolder tmp;
  save_base(tmp, io::Family::llama);
  const auto with = [&](const std::function<void(AdapterOptions&)>& change) {
    return refusal([&] {
      auto o = options();
      change(o);
      adapted(tmp, o);
    });
  };
  EXPECT_EQ(with([](auto& o) { o.targets = {"q_prj"}; }),
            "[adapter] adapter.targets: \"q_prj\" matches no module of the model; did you mean 'q_proj'?; it has "
            "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj");
  EXPECT_NE(with([](auto& o) { o.targets = {"("}; }).find("expected a regular expression, found \"(\""),
            std::string::npos);
  EXPECT_NE(with([](auto& o) { o.targets = {}; }).find("adapter.targets is empty"), std::string::npos);
  EXPECT_NE(with([](auto& o) { o.keep = {"head"}; }).find("adapter.keep: \"head\" matches no module"),
            std::string::npos);
  EXPECT_NE(with([](auto& o) { o.r = 33; }).find("adapter.r = 33 is larger than the layer model.layers.0."),
            std::string::npos);
}

/// The files of an adapter of llama, changed.
struct Hostile : ::testing::Test {
  Hostile() {
    save_base(tmp, io::Family::llama);
    adapted(tmp, options()).save(tmp / "adapter");
    config = io::read_json(tmp / "adapter" / kAdapterConfig);
  }
  std::string opened(const std::string& base = "base") {
    io::write_file_atomic(tmp / "adapter" / kAdapterConfig, config.dump());
    return refusal([&] { LanguageModel::open(tmp / base, {}, {.adapter = tmp / "adapter"}); });
  }
  void expect(const std::string& part, const std::string& base = "base") {
    const auto said = opened(base);
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
  io::TempFolder tmp;
  io::Json config;
};

TEST_F(Hostile, configs_are_refused_by_key) {
  EXPECT_EQ(opened(), "no error");
  const auto original = config;
  const std::pair<const char*, std::pair<io::Json, const char*>> cases[] = {
      {"peft_type", {"IA3", "peft_type: expected LORA, found \"IA3\""}},
      {"r", {0, "r: expected 1 to 65536, found 0"}},
      {"r", {2, "by adapter_config.json it has 2 rows, found"}},
      {"r", {"many", "r"}},
      {"lora_alpha", {1e300, "lora_alpha: expected 0 to 1000000"}},
      {"lora_dropout", {1.5, "lora_dropout: expected a probability below 1"}},
      {"bias", {"some", "bias: expected none, all or lora_only, found \"some\""}},
      {"use_dora", {true, "use_dora = true"}},
      {"rank_pattern", {{{"q_proj", 8}}, "rank_pattern"}},
      {"modules_to_save", {"lm_head", "modules_to_save: expected a list of names"}},
  };
  for (const auto& [key, change] : cases) {
    config = original;
    config[key] = change.first;
    expect(change.second);
  }
  config = io::Json::array();
  EXPECT_NE(opened(), "no error");
  io::write_file_atomic(tmp / "adapter" / kAdapterConfig, "{");
  EXPECT_NE(refusal([&] { AdapterFolder::open(tmp / "adapter"); }), "no error");
}

TEST_F(Hostile, tensors_of_another_model_are_refused_by_name) {
  auto other = tiny(io::Family::llama);
  other.width = 48, other.head_dim = 0;
  resolve(other);
  LanguageModel::create(other, 7, false).save(tmp / "wide");
  expect("belongs to another model: expected", "wide");
  LanguageModel::create(tiny(io::Family::gpt2), 7, false).save(tmp / "gpt2");
  expect("belongs to no layer of this model", "gpt2");
  LanguageModel::create(tiny(io::Family::llama), 8, false).save(tmp / "sister");
  expect("use the model that the adapter was trained on", "sister");
  fs::remove(tmp / "adapter" / kAdapterBase);
  EXPECT_EQ(opened("sister"), "no error") << "adapters of peft do not say which weights they belong to";

  std::vector<io::NamedSpec> specs{{"lora_A.weight", {{3, 32}, DType::f32}}};
  const auto rewrite = [&] {
    io::SafeTensorsWriter writer(tmp / "adapter" / kAdapterTensors, specs);
    for (const auto& s : specs) {
      const OwnedTensor zeros(s.spec);
      std::memset(zeros.tensor.data(), 0, static_cast<std::size_t>(s.spec.bytes()));
      writer.write(s.name, zeros.tensor);
    }
    writer.commit();
  };
  rewrite();
  expect("expected a name that begins with base_model.model.");
  const std::string layer = "base_model.model.model.layers.0.self_attn.q_proj.";
  specs = {{layer + "lora_A.weight", {{3, 32}, DType::f32}}};
  rewrite();
  expect("lora_B.weight, found no tensor of this name");
  specs = {{layer + "lora_A.weight", {{3, 32}, DType::i32}}};
  rewrite();
  expect("expected floating-point numbers");
  io::write_file_atomic(tmp / "adapter" / kAdapterTensors, "not a safetensors file");
  EXPECT_NE(opened(), "no error");
  fs::remove(tmp / "adapter" / kAdapterTensors);
  EXPECT_NE(opened(), "no error");
  fs::remove_all(tmp / "adapter");
  EXPECT_NE(refusal([&] { AdapterFolder::open(tmp / "adapter"); }).find("expected an adapter"), std::string::npos);
}

TEST(fingerprint, follows_names_specs_and_bytes_and_not_files) {
  const io::TempFolder tmp;
  save_base(tmp, io::Family::qwen2);
  const auto of = [&](const char* name) { return fingerprint(io::TensorFolder::open(tmp / name)); };
  const auto first = of("base");
  LanguageModel::create(tiny(io::Family::qwen2), 7, false).save(tmp / "same");
  EXPECT_EQ(of("same"), first);
  LanguageModel::create(tiny(io::Family::qwen2), 7, false).save(tmp / "bf16", DType::bf16);
  EXPECT_NE(of("bf16"), first);
  LanguageModel::create(tiny(io::Family::qwen2), 8, false).save(tmp / "other");
  EXPECT_NE(of("other"), first);
}

}  // namespace
}  // namespace hpcdl::models
