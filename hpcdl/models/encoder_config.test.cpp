#include "hpcdl/models/encoder_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::models {
namespace {

using io::Json;

Json bert() {
  return {{"model_type", "bert"},          {"hidden_size", 24},    {"intermediate_size", 40},
          {"num_hidden_layers", 2},        {"vocab_size", 99},     {"num_attention_heads", 3},
          {"max_position_embeddings", 48}, {"hidden_act", "relu"}, {"layer_norm_eps", 1e-9}};
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void expect_error(const char* key, const Json& value, const std::string& says) {
  auto json = bert();
  json[key] = value;
  const auto error = error_of([&] { parse_encoder_config(json, "config.json"); });
  EXPECT_NE(error.find(says), std::string::npos) << error;
}

TEST(encoder_config, reads_the_keys_of_bert) {
  const EncoderConfig want{.layers = 2,
                           .heads = 3,
                           .width = 24,
                           .ffn = 40,
                           .context = 48,
                           .vocab = 99,
                           .norm_eps = 1e-9,
                           .activation = io::Activation::relu};
  EXPECT_EQ(parse_encoder_config(bert(), "config.json"), want);
  EXPECT_EQ(parse_encoder_config({{"model_type", "bert"}}, "config.json"), EncoderConfig()) << "BERT base";
}

TEST(encoder_config, what_we_cannot_compute_is_an_error) {
  expect_error("model_type", "roberta", "expected bert, found \"roberta\"");
  expect_error("position_embedding_type", "relative_key", "expected absolute, found \"relative_key\"");
  expect_error("is_decoder", true, "is_decoder: expected false");
  expect_error("add_cross_attention", true, "add_cross_attention: expected false");
  expect_error("quantization_config", {{"bits", 4}}, "encoders are not quantised");
  expect_error("num_attention_heads", 5, "24 is not divisible by 5 heads");
  expect_error("hidden_act", "silu", "expected gelu, gelu_new or relu, found silu");
  expect_error("hidden_act", "mish", "mish");
  expect_error("layer_norm_eps", -1, "expected 0 to 1, found -1");
  expect_error("num_hidden_layers", 5000, "at most 4096 layers");
  expect_error("hidden_size", "x", "expected a whole number");
}

class EmbeddingFolder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((tmp / name).parent_path());
    io::write_file_atomic(tmp / name, text);
  }
  EmbeddingConfig read() const {
    return read_embedding_config(tmp.path(), parse_encoder_config(bert(), "config.json"));
  }
  std::string error() const {
    return error_of([&] { read(); });
  }
  void write_modules(const std::vector<std::string>& names) const {
    auto list = Json::array();
    for (const auto& n : names) list.push_back({{"path", n}, {"type", "sentence_transformers.models." + n}});
    write("modules.json", list.dump());
  }
  io::TempFolder tmp;
};

TEST_F(EmbeddingFolder, is_the_mean_unless_files_say_otherwise) {
  EXPECT_EQ(read(), (EmbeddingConfig{.pooling = Pooling::mean, .normalise = false, .longest = 48}));
  write_modules({"Transformer", "Pooling", "Normalize"});
  write("Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})");
  write("sentence_bert_config.json", R"({"max_seq_length": 20, "do_lower_case": false})");
  write("config_sentence_transformers.json", R"({"prompts": {"query": "query: "}, "default_prompt_name": "query"})");
  EXPECT_EQ(read(), (EmbeddingConfig{.pooling = Pooling::cls, .normalise = true, .longest = 20, .prompt = "query: "}));
  write("Pooling/config.json", R"({"pooling_mode": "max"})");
  write("sentence_bert_config.json", R"({"max_seq_length": 512})");
  write("config_sentence_transformers.json", R"({"prompts": {}, "default_prompt_name": null})");
  EXPECT_EQ(read(), (EmbeddingConfig{.pooling = Pooling::max, .normalise = true, .longest = 48}));
}

TEST_F(EmbeddingFolder, refuses_modules_that_compute_something_else) {
  write("Pooling/config.json", R"({"pooling_mode": "mean"})");
  write_modules({"Transformer", "Pooling", "Dense"});
  EXPECT_NE(error().find("found \"sentence_transformers.models.Dense\": not supported here"), std::string::npos);
  write_modules({"CLIPModel", "Pooling"});
  EXPECT_NE(error().find("expected Transformer as the first module"), std::string::npos);
  write_modules({"Transformer"});
  EXPECT_NE(error().find("expected a module Pooling"), std::string::npos);
  write_modules({"Transformer", "Pooling"});
  EXPECT_EQ(error(), "no error");
  write("Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})");
  EXPECT_NE(error().find("found cls_token and mean_tokens"), std::string::npos) << error();
  write("Pooling/config.json", R"({"pooling_mode": "lasttoken"})");
  EXPECT_NE(error().find("found lasttoken"), std::string::npos);
  write("Pooling/config.json", R"({"pooling_mode": "mean"})");
  write("sentence_bert_config.json", R"({"do_lower_case": true})");
  EXPECT_NE(error().find("do_lower_case: expected false"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::models
