#include "hpcdl/infer/generation_config.h"

#include <gtest/gtest.h>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::infer {
namespace {

GenerationConfig read(const std::string& text) {
  const io::TempFolder tmp;
  io::write_file_atomic(tmp / "generation_config.json", text);
  return read_generation_config(tmp.path());
}

SamplingOptions completed(const std::string& text, std::string_view said = "") {
  SamplingOptions o;
  read(text).complete(o, [&](auto key) { return key == said; });
  return o;
}

TEST(generation_config, sets_the_rules_that_nobody_else_says) {
  const auto* const text = R"({"do_sample": true, "temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.05,
      "typical_p": 0.8, "repetition_penalty": 1.1, "min_new_tokens": 3, "max_new_tokens": 7})";
  const auto o = completed(text);
  EXPECT_EQ(o.temperature, 0.6F);
  EXPECT_EQ(o.top_k, 40);
  EXPECT_EQ(o.top_p, 0.9F);
  EXPECT_EQ(o.min_p, 0.05F);
  EXPECT_EQ(o.typical_p, 0.8F);
  EXPECT_EQ(o.repetition_penalty, 1.1F);
  EXPECT_EQ(o.min_tokens, 3);
  EXPECT_EQ(read(text).max_tokens, 7);
  EXPECT_EQ(completed(text, "temperature").temperature, 0);
  EXPECT_EQ(completed(text, "temperature").top_k, 40);
}

TEST(generation_config, do_sample_decides_about_the_temperature) {
  EXPECT_EQ(completed(R"({"do_sample": true})").temperature, 1);
  const auto greedy = completed(R"({"do_sample": false, "temperature": 0.6, "top_k": 40, "repetition_penalty": 2})");
  EXPECT_TRUE(greedy.is_greedy());
  EXPECT_EQ(greedy.top_k, 0);
  EXPECT_EQ(greedy.repetition_penalty, 2);
  EXPECT_EQ(read(R"({"do_sample": false})").temperature, 0);
  EXPECT_FALSE(read(R"({"top_k": 5})").temperature) << "the file says nothing about it";
}

TEST(generation_config, names_what_it_does_not_support) {
  EXPECT_TRUE(read(R"({"eos_token_id": [1], "transformers_version": "5", "num_beams": 1, "suppress_tokens": null,
      "bad_words_ids": [], "no_repeat_ngram_size": 0, "renormalize_logits": false})")
                  .unused.empty());
  const auto c = read(R"({"num_beams": 4, "suppress_tokens": [1], "invented": "x"})");
  EXPECT_EQ(c.unused, (std::vector<std::string>{"invented", "num_beams", "suppress_tokens"}));
  EXPECT_NE(c.warning().find("generation_config.json: invented, num_beams, suppress_tokens are not supported"),
            std::string::npos);
  EXPECT_EQ(GenerationConfig().warning(), "");
}

TEST(generation_config, refuses_values_out_of_range) {
  for (const char* text : {R"({"temperature": -1})", R"({"top_p": 0})", R"({"top_k": -5})", R"({"top_k": "x"})",
                           R"({"max_new_tokens": 0})", R"({"repetition_penalty": 0})", "[]", "{"})
    EXPECT_THROW(read(text), Error) << text;
  try {
    read(R"({"top_p": 2})");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("generation_config.json: "), std::string::npos) << e.what();
  }
  const io::TempFolder empty;
  EXPECT_EQ(read_generation_config(empty.path()).file, "");
}

}  // namespace
}  // namespace hpcdl::infer
