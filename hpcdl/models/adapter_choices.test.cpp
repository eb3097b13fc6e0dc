// What adapters may be beside others, and what their biases do; hpcdl/infer/adapters.test.cpp has the texts.

#include "hpcdl/models/adapter_choices.h"

#include <gtest/gtest.h>

#include <functional>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/adapters_for_tests.h"
#include "hpcdl/io/atomic_file.h"

namespace hpcdl::models {
namespace {

AdapterOptions options() { return {.method = AdapterMethod::lora, .r = 2, .alpha = 3}; }

struct Choices : ::testing::Test {
  void save_base(io::Family family, const char* name = "base", std::uint64_t seed = 3) {
    infer::with_clear_logits(family, {}, seed).save(tmp / name);
  }
  void save(const char* name, const AdapterOptions& o, std::uint64_t seed = 5) {
    infer::write_adapter(tmp / "base", tmp / name, o, seed);
  }
  LanguageModel open(const std::vector<std::string>& names, const char* base = "base", Device device = {}) const {
    io::LoadOptions load{.device = device};
    for (const auto& n : names) load.choices.push_back({n, tmp / n});
    return LanguageModel::open(tmp / base, {}, load);
  }
  std::string refusal(const std::function<void()>& f) const {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  void expect_refusal(const std::string& part, const std::vector<std::string>& names, const char* base = "base",
                      Device device = {}) const {
    const auto said = refusal([&] { open(names, base, device); });
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
  io::TempFolder tmp;
};

TEST_F(Choices, have_names_and_memory) {
  save_base(io::Family::llama);
  save("a", options()), save("b", options());
  const auto both = open({"a", "b"});
  EXPECT_EQ(both.adapters(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(LanguageModel::open(tmp / "base").adapters().empty());
  EXPECT_GT(both.bytes(), LanguageModel::open(tmp / "base").bytes());
}

/// Of layers with an adapter, and of layers without one: gpt2's and qwen2's.
TEST_F(Choices, biases_are_those_of_the_adapter_within_rounding) {
  Pool pool(2);
  const auto generated = [&](const LanguageModel& m, std::int32_t adapter) {
    infer::Engine engine(m, pool);
    infer::Heard heard;
    infer::submit(engine,
                  {.prompt = infer::ids_from(3, 20),
                   .tokens = 12,
                   .sampling = {.temperature = 0, .logprobs = 0},
                   .adapter = adapter},
                  heard);
    engine.run();
    return heard;
  };
  for (const auto family : {io::Family::gpt2, io::Family::qwen2}) {
    SCOPED_TRACE(io::enum_name(family));
    save_base(family);
    auto o = options();
    if (family == io::Family::gpt2) o.bias = AdapterBias::lora_only, o.targets = {"c_attn", "c_fc"};
    else o.bias = AdapterBias::all, o.targets = {"gate_proj"};
    save("biased", o), save("plain", options(), 6);
    const auto model = open({"plain", "biased"}),
               alone = LanguageModel::open(tmp / "base", {}, {.adapter = tmp / "biased"});
    const auto found = generated(model, 1), want = generated(alone, -1), other = generated(model, 0);
    EXPECT_EQ(found.ids, want.ids);
    ASSERT_EQ(found.logprobs.size(), want.logprobs.size());
    for (std::size_t i = 0; i < want.logprobs.size(); ++i) EXPECT_NEAR(found.logprobs[i], want.logprobs[i], 1e-4) << i;
    EXPECT_NE(found.logprobs, other.logprobs);
  }
}

TEST_F(Choices, what_all_texts_share_is_refused_by_name) {
  save_base(io::Family::gpt2);
  auto o = options();
  save("plain", o);
  o.keep = {"wte"};
  save("whole", o);
  expect_refusal(
      "trains transformer.wte.weight whole, which the texts of a batch share: use it for all texts "
      "(--adapter DIR, without a name), or merge it into the model (hpcdl adapter merge)",
      {"plain", "whole"});
  o.keep = {}, o.bias = AdapterBias::all;
  save("norms", o);
  expect_refusal("trains transformer.h.0.ln_1.bias whole", {"norms"});
}

TEST_F(Choices, adapters_of_another_model_are_refused) {
  save_base(io::Family::llama);
  save("a", options());
  save_base(io::Family::llama, "sister", 4);
  save_base(io::Family::gpt2, "gpt2");
  expect_refusal("use the model that the adapter was trained on", {"a"}, "sister");
  io::fs::remove(tmp / "a" / kAdapterBase);
  EXPECT_EQ(refusal([&] { open({"a"}, "sister"); }), "no error") << "adapters of peft do not say whose they are";
  expect_refusal("belongs to no layer of this model", {"a"}, "gpt2");
  expect_refusal("expected an adapter (adapter_config.json", {"a", "nothing"});
}

/// Tensor cores multiply matrices of one type.
TEST_F(Choices, matrices_have_the_type_of_activations_on_a_gpu) {
  save_base(io::Family::llama);
  save("a", options());
  Pool pool(2);
  const auto bytes_of = [&](Device device, DType dtype) {
    io::LoadOptions load{.device = device};
    const auto base = LanguageModel::open(tmp / "base", {}, load, {dtype, &pool}).bytes();
    load.choices.push_back({"a", tmp / "a"});
    return LanguageModel::open(tmp / "base", {}, load, {dtype, &pool}).bytes() - base;
  };
  const auto whole = bytes_of(Device::cpu(), DType::none);
  EXPECT_EQ(bytes_of(Device::cuda(0), DType::none), whole) << "weights are F32";
  EXPECT_EQ(bytes_of(Device::cpu(), DType::bf16), whole);
  EXPECT_LT(bytes_of(Device::cuda(0), DType::bf16), whole * 6 / 10);
}

}  // namespace
}  // namespace hpcdl::models
