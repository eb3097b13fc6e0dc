#include "hpcdl/models/hf_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/config_table.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/rng.h"

namespace hpcdl::models {
namespace {

using namespace io;

ModelConfig sample(Family family) {
  ModelConfig c{.family = family, .layers = 2, .heads = 4, .width = 64, .context = 32, .vocab = 99};
  c.bos = 3;
  c.eos = {5};
  if (family != Family::gpt2) {
    c.kv_heads = 2, c.tied = false, c.rope_theta = 5e5, c.head_dim = 24;
    c.dtype = DType::bf16, c.eos = {5, 7};
    c.attention_bias = row_of(family).chooses_attention_bias;
  }
  if (row_of(family).mixture) c.experts = 4, c.chosen_experts = 2;
  resolve(c);
  return c;
}

Json llama_json() { return make_hf_config(sample(Family::llama)); }

std::string error_of(const Json& json) {
  try {
    parse_hf_config(json, "config.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
void expect_error(const std::string& key, const Json& value, const std::string& part, Json json = llama_json()) {
  json[key] = value;
  const std::string text = error_of(json);
  EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\nfound: " << text;
}

TEST(hf_config, round_trips) {
  const TempFolder tmp;
  for (const auto family : all_text_families()) {
    ModelConfig c = sample(family);
    c.quant = io::QuantConfig{&quant::int4_codec, {.group = 128, .symmetric = false}};
    for (const auto kind : {RopeScaling::Kind::none, RopeScaling::Kind::linear, RopeScaling::Kind::llama3}) {
      if (family == Family::llama) c.mlp_bias = true;
      if (family != Family::gpt2) c.rope_scaling = {.kind = kind};
      if (kind == RopeScaling::Kind::llama3 && family != Family::gpt2) c.rope_scaling.low_freq_factor = 2;
      write_hf_config(tmp.path(), c);
      EXPECT_EQ(read_hf_config(tmp.path()), c);
    }
  }
}

TEST(hf_config, reads_what_others_write) {
  // The key sets of gpt2 and of a Llama 3 folder, before and after rope_parameters.
  const auto gpt2 =
      parse_hf_config(Json::parse(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_inner": null,
    "vocab_size": 50257})"),
                      "config.json");
  EXPECT_EQ(gpt2.ffn, 3072);
  EXPECT_EQ(gpt2.head_dim, 64);
  EXPECT_TRUE(gpt2.tied);
  EXPECT_EQ(gpt2.eos, std::vector<std::int64_t>{50256});
  Json llama = Json::parse(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 500000.0, "torch_dtype": "bfloat16", "vocab_size": 128256})");
  const auto old = parse_hf_config(llama, "config.json");
  EXPECT_EQ(old.kv_heads, 8);
  EXPECT_EQ(old.head_dim, 128);
  EXPECT_EQ(old.rope_theta, 5e5);
  EXPECT_FALSE(old.tied);
  llama.erase("rope_theta"), llama.erase("torch_dtype");
  llama["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  llama["dtype"] = "bfloat16";
  EXPECT_EQ(parse_hf_config(llama, "config.json"), old);
}

// The key sets of Qwen2.5-0.5B, Phi-4 and the first Mistral, which has sliding-window attention.
TEST(hf_config, reads_the_descendants_of_llama) {
  const auto qwen = parse_hf_config(Json::parse(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})"),
                                    "config.json");
  EXPECT_EQ(qwen.head_dim, 64);
  EXPECT_EQ(qwen.kv_heads, 2);
  EXPECT_TRUE(qwen.tied);
  Json phi = Json::parse(R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 100265, "hidden_act": "silu", "hidden_size": 5120,
    "intermediate_size": 17920, "max_position_embeddings": 16384, "model_type": "phi3", "num_attention_heads": 40,
    "num_hidden_layers": 40, "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
    "pad_token_id": 100349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 250000,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 100352})");
  EXPECT_EQ(parse_hf_config(phi, "config.json").head_dim, 128);
  EXPECT_FALSE(parse_hf_config(phi, "config.json").tied);
  expect_error("rope_scaling", {{"type", "longrope"}}, "short_factor: expected a list of factors, found none", phi);
  // Three quarters of 128 elements are rotated.
  phi["partial_rotary_factor"] = 0.75, phi["original_max_position_embeddings"] = 4096;
  phi["rope_scaling"] = {{"type", "longrope"},
                         {"short_factor", std::vector<double>(48, 1.5)},
                         {"long_factor", std::vector<double>(48, 4.0)}};
  const auto long_texts = parse_hf_config(phi, "config.json");
  EXPECT_EQ(long_texts.rotated(), 96);
  EXPECT_EQ(long_texts.rope_scaling.factor, 4);
  EXPECT_DOUBLE_EQ(long_texts.rope_scaling.magnitude, std::sqrt(1 + std::log(4.0) / std::log(4096.0)));
  phi["rope_scaling"]["long_factor"].erase(0);
  EXPECT_NE(error_of(phi).find("longrope needs 48 short and long factors, one for each rotary angle, found 48 and 47"),
            std::string::npos)
      << error_of(phi);
  const Json mistral = Json::parse(R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000})");
  EXPECT_EQ(parse_hf_config(mistral, "config.json").window, 4096);
  Json full = mistral;  // from its third version on
  full["sliding_window"] = nullptr;
  EXPECT_EQ(parse_hf_config(full, "config.json").context, 32768);
}

// GPT2Config.attribute_map: with 12 heads instead of 16 and half of the layers every tensor would have a valid shape.
TEST(hf_config, gpt2_takes_the_names_of_other_families) {
  const Json json = {{"model_type", "gpt2"},           {"num_hidden_layers", 24}, {"num_attention_heads", 16},
                     {"max_position_embeddings", 512}, {"hidden_size", 1536},     {"n_layer", 12}};
  const auto c = parse_hf_config(json, "config.json");
  EXPECT_EQ(c.layers, 24);
  EXPECT_EQ(c.heads, 16);
  EXPECT_EQ(c.context, 512);
  EXPECT_EQ(c.width, 1536);
  EXPECT_EQ(c.ffn, 4 * 1536);
  expect_error("num_attention_heads", "16", "key \"num_attention_heads\": expected a whole number", json);
}

TEST(hf_config, the_original_context_may_stand_outside) {
  Json json = llama_json();
  json["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  EXPECT_EQ(parse_hf_config(json, "config.json").rope_scaling.original_context, 32);
  json["original_max_position_embeddings"] = 16;
  EXPECT_EQ(parse_hf_config(json, "config.json").rope_scaling.original_context, 16);
  json["rope_scaling"]["original_max_position_embeddings"] = 8;
  EXPECT_EQ(parse_hf_config(json, "config.json").rope_scaling.original_context, 8);
}

// Like Llama-3-8B-Instruct, whose config.json once named only <|end_of_text|>: answers end with <|eot_id|>.
TEST(hf_config, generation_config_says_what_ends_a_text) {
  const TempFolder tmp;
  write_hf_config(tmp.path(), sample(Family::gpt2));
  const auto ends_with = [&](const char* text) {
    write_file_atomic(tmp / "generation_config.json", text);
    return read_hf_config(tmp.path()).eos;
  };
  using Ids = std::vector<std::int64_t>;
  EXPECT_EQ(read_hf_config(tmp.path()).eos, Ids{5});
  EXPECT_EQ(ends_with(R"({"do_sample": true, "eos_token_id": [7, 9]})"), (Ids{7, 9}));
  EXPECT_EQ(ends_with(R"({"eos_token_id": 98})"), Ids{98});
  EXPECT_EQ(ends_with(R"({"eos_token_id": null})"), Ids{5});
  EXPECT_EQ(ends_with(R"({"temperature": 0.6})"), Ids{5});
  EXPECT_THROW(ends_with(R"({"eos_token_id": "</s>"})"), Error);
  EXPECT_THROW(ends_with("{"), Error);
}

// transformers writes its default, 50256 for GPT-2, for any vocabulary.
TEST(hf_config, ends_outside_the_vocabulary_end_nothing) {
  Json json = llama_json();
  json["eos_token_id"] = json["bos_token_id"] = 50256;
  EXPECT_TRUE(parse_hf_config(json, "config.json").eos.empty());
  json["eos_token_id"] = {-1, 98, 99};
  EXPECT_EQ(parse_hf_config(json, "config.json").eos, std::vector<std::int64_t>{98});
}

TEST(hf_config, what_we_cannot_compute_is_an_error) {
  expect_error("model_type", "gemma",
               "model_type: expected one of gpt2, llama, mistral, phi3, qwen2, qwen3, gemma2, gemma3_text, mixtral, "
               "qwen3_moe, found \"gemma\"");
  expect_error("rope_parameters", {{"rope_type", "proportional"}},
               "found \"proportional\": this scaling is not supported");
  expect_error("model_type", "resnet18", "a classifier of images");
  expect_error("sliding_window", 4096, "sliding_window = 4096 is not supported for this family; expected none");
  expect_error("hidden_act", "relu2", "expected gelu_new, gelu, relu or silu, found \"relu2\"");
  expect_error("hidden_act", "relu", "activation relu is not available for family llama");
  expect_error("hidden_act", "gelu", "activation gelu is not available for family llama");
  expect_error("partial_rotary_factor", 0.5,
               "partial_rotary_factor = 0.5 is not supported for this family; expected 1 or none");
  expect_error("rope_parameters", {{"partial_rotary_factor", 0.5}},
               "rope_parameters: partial_rotary_factor = 0.5 is not supported for this family; expected 1 or none");
  expect_error("torch_dtype", "int8", "expected float32, bfloat16, float16 or float64");
  expect_error("quantization_config", {{"quant_method", "hqq"}, {"bits", 4}, {"group_size", 128}},
               "expected quant_method hpcdl_int4, hpcdl_nf4, hpcdl_fp4, hpcdl_int8, hpcdl_rot3, hpcdl_rot-ternary, "
               "hpcdl_fp8, hpcdl_mxfp4, found \"hqq\"");
  expect_error("quantization_config", {{"quant_method", "gptq"}, {"bits", 5}}, "bits: expected 2, 3, 4 or 8, found 5");
  expect_error("quantization_config", {{"quant_method", "fp8"}}, "weight_block_size: expected the rows and columns");
  expect_error("quantization_config", {{"quant_method", "hpcdl_int4"}, {"bits", 8}, {"group_size", 64}},
               "expected 4 bits, found 8");
  expect_error("scale_attn_by_inverse_layer_idx", true, "is not supported", make_hf_config(sample(Family::gpt2)));
}

// Features of other families, in a config that claims to be one of ours.
TEST(hf_config, other_arithmetic_is_refused_by_name) {
  for (const auto family : all_text_families()) {
    const Json json = make_hf_config(sample(family));
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, Json>>{{"attn_logit_softcapping", 50.0},
                                                             {"embedding_multiplier", 12.0},
                                                             {"num_local_experts", 8},
                                                             {"alibi", true},
                                                             {"logits_scaling", 8},
                                                             {"clip_qkv", 8}})
      if (std::ranges::find(row_of(family).reads, key) == row_of(family).reads.end())
        expect_error(key, value, std::string(key) + " = ", json);
    expect_error("layer_types", {"linear_attention"}, "found \"\\\"linear_attention\\\"\"", json);
    Json same = json;
    same["embedding_multiplier"] = 1, same["alibi"] = nullptr;
    if (family != Family::gemma3_text) same["layer_types"] = {"full_attention", "full_attention"};
    EXPECT_EQ(parse_hf_config(same, "config.json"), sample(family));
  }
  expect_error("attention_bias", true, "attention_bias = ", make_hf_config(sample(Family::mistral)));
}

TEST(hf_config, reads_the_windows_of_each_family) {
  const auto json = [](Family family) { return make_hf_config(sample(family)); };  // two layers, context 32
  using Layers = std::vector<bool>;
  for (const auto family : {Family::mistral, Family::phi3}) {
    Json with = json(family);
    with["sliding_window"] = 31;
    EXPECT_EQ(parse_hf_config(with, "config.json").window, 31);
    EXPECT_EQ(parse_hf_config(with, "config.json").sliding, (Layers{true, true}));
    with["sliding_window"] = 32;  // hides nothing
    EXPECT_EQ(parse_hf_config(with, "config.json"), sample(family));
    for (const int window : {-1, 0})
      expect_error("sliding_window", window, "sliding_window: expected a size", json(family));
  }
  for (const auto family : {Family::qwen2, Family::qwen3}) {
    Json with = json(family);
    with["sliding_window"] = 31;
    EXPECT_EQ(parse_hf_config(with, "config.json"), sample(family)) << "use_sliding_window is false";
    with["use_sliding_window"] = true;
    EXPECT_EQ(parse_hf_config(with, "config.json"), sample(family)) << "28 layers come before the first window";
    with["max_window_layers"] = 1;
    EXPECT_EQ(parse_hf_config(with, "config.json").sliding, (Layers{false, true}));
    with["layer_types"] = {"sliding_attention", "full_attention"};
    EXPECT_EQ(parse_hf_config(with, "config.json").sliding, (Layers{true, false}));
    expect_error("layer_types", {"full_attention"}, "layer_types: expected a list of 2 types, found", with);
  }
  Json unstated = json(Family::mistral);  // 4096, the default of MistralConfig
  unstated.erase("sliding_window");
  EXPECT_EQ(parse_hf_config(unstated, "config.json"), sample(Family::mistral));
  unstated["max_position_embeddings"] = 32768;
  EXPECT_EQ(parse_hf_config(unstated, "config.json").window, 4096);
  expect_error("sliding_window", 31, "sliding_window = 31 is not supported", json(Family::llama));
  ModelConfig none = sample(Family::llama);
  none.window = 8;
  EXPECT_THROW(resolve(none), UsageError);
}

// The key sets of Gemma 2 2B, and of Gemma 3 1B before and after rope_parameters.
TEST(hf_config, reads_gemma) {
  Json two = Json::parse(R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32",
    "vocab_size": 256000})");
  const auto c = parse_hf_config(two, "config.json");
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(c.activation, io::Activation::gelu_new);
  EXPECT_EQ(c.score_cap, 50);
  EXPECT_EQ(c.logit_cap, 30);
  EXPECT_EQ(c.window, 4096);
  EXPECT_TRUE(c.slides(0) && !c.slides(1) && c.slides(24));
  two["query_pre_attn_scalar"] = 144;
  EXPECT_EQ(parse_hf_config(two, "config.json").score_divisor, 144);
  expect_error("query_pre_attn_scalar", 0, "query_pre_attn_scalar: expected a number above 0, found 0", two);
  expect_error("attn_logit_softcapping", -1, "attn_logit_softcapping: expected a number above 0, or null", two);
  expect_error("use_bidirectional_attention", true, "use_bidirectional_attention = true is not supported", two);
  expect_error("hidden_activation", "gelu", "activation gelu is not available for family gemma2", two);
  Json three = Json::parse(R"({"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": null,
    "bos_token_id": 2, "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
    "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16", "vocab_size": 262144})");
  const auto old = parse_hf_config(three, "config.json");
  EXPECT_TRUE(old.slides(0) && old.slides(4) && !old.slides(5) && old.slides(6) && !old.slides(11));
  EXPECT_EQ(old.rope_theta, 1e6);
  EXPECT_EQ(old.rope_local_theta, 1e4);
  three.erase("rope_theta"), three.erase("rope_local_base_freq"), three.erase("rope_scaling");
  three["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  EXPECT_EQ(parse_hf_config(three, "config.json"), old);
  three["rope_parameters"]["full_attention"] = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse_hf_config(three, "config.json").rope_scaling.factor, 8);
  three["rope_parameters"]["sliding_attention"]["rope_type"] = "linear";
  three["rope_parameters"]["sliding_attention"]["factor"] = 2;
  EXPECT_NE(error_of(three).find("sliding_attention: expected rope_type default"), std::string::npos)
      << error_of(three);
}

TEST(hf_config, mixtures_that_differ_are_refused) {
  const Json qwen = make_hf_config(sample(Family::qwen3_moe)), mixtral = make_hf_config(sample(Family::mixtral));
  expect_error("decoder_sparse_step", 2, "expected a mixture of experts in every layer", qwen);
  expect_error("mlp_only_layers", {1}, "expected a mixture of experts in every layer", qwen);
  expect_error("num_experts_per_tok", 5, "found 4 experts, of which a token goes through 5", qwen);
  expect_error("num_local_experts", 1000, "expected 1 to 512 experts", mixtral);
  ModelConfig c = sample(Family::llama);
  c.experts = 4;
  EXPECT_THROW(resolve(c), UsageError);
}

TEST(hf_config, writes_what_it_reads_of_every_feature) {
  const auto there_and_back = [](ModelConfig c) {
    resolve(c);
    EXPECT_EQ(parse_hf_config(make_hf_config(c), "config.json"), c) << make_hf_config(c).dump(2);
  };
  for (const auto family : all_text_families()) {
    if (!row_of(family).has_windows) continue;
    auto c = sample(family);
    c.window = 7, c.sliding = {false, true};
    const bool by_layer = family != Family::mistral && family != Family::phi3 && !row_of(family).mixture;
    if (!by_layer) c.sliding = {true, true};
    there_and_back(c);
  }
  auto gemma = sample(Family::gemma2);
  gemma.score_cap = 5, gemma.logit_cap = 3, gemma.score_divisor = 50;
  there_and_back(gemma);
  auto local = sample(Family::gemma3_text);
  local.rope_local_theta = 77;
  there_and_back(local);
  auto yarn = sample(Family::llama);
  yarn.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .fast_turns = 16, .magnitude = 1.25};
  there_and_back(yarn);
  auto far = sample(Family::phi3);
  far.rotary_part = 0.5;
  far.rope_scaling = {.kind = RopeScaling::Kind::longrope, .factor = 2, .original_context = 16};
  far.rope_scaling.short_factors.assign(6, 1.5), far.rope_scaling.long_factors.assign(6, 2.5);
  there_and_back(far);
  auto mixture = sample(Family::qwen3_moe);
  mixture.experts = 9, mixture.chosen_experts = 3, mixture.weights_sum_to_one = false, mixture.ffn = 40;
  there_and_back(mixture);
  auto dynamic = sample(Family::qwen2);
  dynamic.rope_scaling = {.kind = RopeScaling::Kind::dynamic, .factor = 2};
  there_and_back(dynamic);
}

TEST(family, refuses_what_it_has_no_choice_of) {
  for (const auto family : all_text_families()) {
    auto c = sample(family);
    c.attention_bias = true;
    if (row_of(family).chooses_attention_bias) EXPECT_NO_THROW(resolve(c));
    else EXPECT_THROW(resolve(c), UsageError);
  }
  EXPECT_THROW(row_of(Family::resnet18), UsageError);
}

TEST(hf_config, bad_values_are_errors) {
  expect_error("hidden_size", "64", "key \"hidden_size\": expected a whole number, found string \"64\"");
  expect_error("hidden_size", 64.5, "expected a whole number");
  expect_error("hidden_size", -64, "expected a size from 1 to 1073741824, found -64");
  expect_error("hidden_size", std::uint64_t{1} << 63, "expected a whole number");
  expect_error("hidden_size", 1LL << 40, "expected a size");
  expect_error("num_hidden_layers", 1'000'000, "1000000 layers are too many; at most 4096");
  expect_error("num_hidden_layers", 4097, "4097 layers are too many; at most 4096");
  expect_error("hidden_size", nullptr, "expected key \"hidden_size\", found none");
  expect_error("num_key_value_heads", 3, "heads 4 is not divisible by kv_heads 3");
  expect_error("head_dim", 0, "head_dim: expected a size from 1 to 1073741824, found 0");
  expect_error("head_dim", 320, "heads of 320 elements are not supported; at most 256");
  expect_error("head_dim", 7, "an even number of elements of a head, found 7 of 7");
  expect_error("n_head", 5, "width 64 is not divisible by 5 heads", make_hf_config(sample(Family::gpt2)));
  expect_error("rms_norm_eps", "x", "expected a number");
  expect_error("rms_norm_eps", -1, "epsilon of the norms");
  expect_error("rope_parameters", {{"rope_theta", 0}}, "rope_theta");
  expect_error("rope_scaling", {{"type", "linear"}}, "expected key \"factor\", found none");
  expect_error("rope_scaling", {{"type", "linear"}, {"factor", 0.5}},
               "expected factor >= 1 and below 1000000, found 0.5");
  expect_error("rope_scaling",
               {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
               "found 4 and 4");
  expect_error("eos_token_id", Json::array({"x"}), "expected numbers");
  EXPECT_NE(error_of(Json::array()).find("expected a JSON object"), std::string::npos);
}

TEST(hf_config, bad_json_is_an_error) {
  for (const std::string& text :
       {std::string("{\"model_type\": \"gpt2\", \"model_type\": \"llama\"}"), std::string(100'000, '['),
        std::string("{"), std::string(""), std::string("{\"a\": \"\xff\"}")})
    EXPECT_THROW(parse_json(text, "x"), Error);
}

TEST(hf_config, mutations_never_crash) {
  const std::string good = llama_json().dump();
  const Rng rng{3, 0};
  for (std::uint64_t round = 0; round < 5'000; ++round) {
    std::string bad = good;
    for (std::uint64_t k = 0; k < 3; ++k)
      bad[rng.below(round * 8 + k, bad.size())] = "{}[]\",:0-9e.nt"[rng.below(round * 8 + 4 + k, 14)];
    try {
      parse_hf_config(parse_json(bad, "x"), "x");
    } catch (const Error&) {}
  }
}

TEST(model_config, resolves_from_toml) {
  ModelConfig c;
  ConfigTable(c).apply_toml("family = 'llama'\nwidth = 256\nheads = 8\nkv_heads = 2\n", "run.toml");
  resolve(c);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.ffn, 704);
  EXPECT_EQ(c.activation, io::Activation::silu);
  ModelConfig bad{.heads = 5};
  EXPECT_THROW(resolve(bad), UsageError);
}

TEST(hf_config, finds_cached_models) {
  const TempFolder tmp;
  const fs::path snapshot = tmp.path() / "models--org--name/snapshots/abc";
  make_folder(snapshot);
  make_folder(tmp.path() / "models--org--name/refs");
  write_file_atomic(tmp.path() / "models--org--name/refs/main", "abc\n");
  ::setenv("HF_HUB_CACHE", tmp.path().c_str(), 1);
  EXPECT_EQ(find_model_folder("org/name"), snapshot);
  EXPECT_THROW(find_model_folder("org/other"), Error);
  EXPECT_THROW(find_model_folder("../../etc"), Error);
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_THROW(find_model_folder(tmp.path().string()), Error) << "a folder without config.json must be refused";
  make_folder(tmp / "run/model");
  EXPECT_THROW(find_model_folder(tmp / "run"), Error);
  write_file_atomic(tmp / "run/model/config.json", "{}");
  EXPECT_EQ(find_model_folder(tmp / "run"), tmp / "run/model");
  write_file_atomic(tmp / "run/config.json", "{}");
  EXPECT_EQ(find_model_folder(tmp / "run"), tmp / "run");
}

TEST(hf_config, transformers_reads_what_we_write) {
  const auto python = find_python("transformers");
  if (!python) GTEST_SKIP() << "no Python with transformers; set HPCDL_PYTHON";
  const TempFolder tmp;
  for (const auto family : all_text_families()) {
    write_hf_config(tmp.path(), sample(family));
    const std::string script =
        "import sys, json\nfrom transformers import AutoConfig\nc = AutoConfig.from_pretrained(sys.argv[1])\nd = "
        "c.to_dict()\n"
        "rope = d.get('rope_parameters') or d\n"
        "theta = (rope.get('full_attention') or rope).get('rope_theta')\n"
        "print('found', c.model_type, c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.vocab_size, theta, "
        "d.get('head_dim'),"
        " d.get('num_key_value_heads'), c.tie_word_embeddings, c.eos_token_id, c.dtype if hasattr(c, 'dtype') else "
        "c.torch_dtype)\n";
    bool ok = false;
    const std::string out = run_python(*python, script, tmp.path().string(), ok);
    ASSERT_TRUE(ok) << out;
    const std::string want =
        family == Family::gpt2
            ? "found gpt2 64 2 4 99 None None None True 5 torch.float32"
            : fmt::format("found {} 64 2 4 99 500000.0 24 2 False [5, 7] torch.bfloat16", enum_name(family));
    EXPECT_NE(out.find(want), std::string::npos) << out;
  }
}

}  // namespace
}  // namespace hpcdl::models
