// hpcdl generate --prompts: every text is what it is alone, whatever is beside it, and mistakes name their line.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/infer/adapters_for_tests.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

class GenerateMany : public testing::Test {
 protected:
  void SetUp() override {
    io::ModelConfig c;
    c.family = io::Family::llama;
    c.layers = 2, c.heads = 4, c.kv_heads = 2, c.width = 64, c.context = 96, c.vocab = 300, c.ffn = 128;
    models::resolve(c);
    models::LanguageModel::create(c, 3, false).save(tmp / "model");
  }
  /// The words of a run with these lines as prompts.
  std::vector<std::string> words(const std::string& lines, const std::vector<std::string>& more = {}) {
    io::write_file_atomic(tmp / "prompts.jsonl", lines);
    std::vector<std::string> list = {"generate", "--model", tmp / "model", "--prompts", tmp / "prompts.jsonl"};
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }
  static std::vector<io::Json> parsed(const std::string& lines) {
    std::vector<io::Json> list;
    for (std::size_t at = 0; at < lines.size();) {
      const auto end = lines.find('\n', at);
      list.push_back(io::parse_json(lines.substr(at, end - at), "a result"));
      at = end + 1;
    }
    return list;
  }
  io::TempFolder tmp;
};

TEST_F(GenerateMany, speculation_leaves_every_token_as_it_is) {
  std::string lines;
  for (const char* ids : {"7, 8, 9, 7, 8, 9, 7, 8", "1", "30, 31, 30, 31, 30"})
    lines += "{\"prompt_ids\": [" + std::string(ids) + "], \"tokens\": 60}\n";
  const auto texts = [&](const std::string& spec) {
    const auto out = (tmp / "out").string();
    const auto r = run(words(lines, {"--spec", spec, "--out", out, "--ignore-eos", "--json"}));
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.json().at("proposed_tokens") > 0, spec != "none");
    return io::read_file(out);
  };
  const auto want = texts("none");
  EXPECT_EQ(texts("ngram"), want);
  EXPECT_EQ(texts((tmp / "model").string()), want);
  const auto one = run({"generate", "--model", tmp / "model", "--prompt-ids", "7,8,9,7,8,9,7,8", "--tokens", "60",
                        "--ignore-eos", "--spec", "ngram", "--json"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_GT(one.json().at("proposed_tokens"), 0);
  EXPECT_EQ(one.json().at("token_ids"), parsed(want)[0].at("token_ids"));
}

TEST_F(GenerateMany, a_draft_model_needs_the_same_vocabulary) {
  io::ModelConfig c;
  c.family = io::Family::llama;
  c.layers = 1, c.heads = 2, c.width = 32, c.context = 96, c.vocab = 200, c.ffn = 64;
  models::resolve(c);
  models::LanguageModel::create(c, 3, false).save(tmp / "draft");
  const auto r = run(words("{\"prompt_ids\": [1]}", {"--spec", tmp / "draft"}));
  EXPECT_EQ(r.code, 70);
  EXPECT_NE(r.err.find("the draft model has 200 tokens, the model 300"), std::string::npos) << r.err;
}

TEST_F(GenerateMany, texts_are_what_they_are_alone_and_in_order) {
  std::string lines;
  std::vector<std::string> prompts;
  for (int i = 0; i < 11; ++i) {
    std::string ids;
    for (int t = 0; t <= i * 5; ++t) ids += (t ? "," : "") + std::to_string((i * 37 + t * 11) % 300);
    prompts.push_back(ids);
    lines += "{\"prompt_ids\": [" + ids + "], \"tokens\": " + std::to_string(3 + i) + "}\n" + (i == 4 ? "\n" : "");
  }
  for (const std::string batch : {"1", "3", "16"}) {
    const auto out = (tmp / ("out" + batch)).string();
    const auto r = run(words(lines, {"--batch", batch, "--out", out, "--ignore-eos", "--json"}));
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.json().at("texts"), 11);
    const auto results = parsed(io::read_file(out));
    ASSERT_EQ(results.size(), 11u);
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].at("index"), i);
      EXPECT_EQ(results[i].at("end"), "length");
      const auto alone = run({"generate", "--model", tmp / "model", "--prompt-ids", prompts[i], "--tokens",
                              std::to_string(3 + i), "--ignore-eos", "--json"});
      ASSERT_EQ(alone.code, 0) << alone.err;
      EXPECT_EQ(results[i].at("token_ids"), alone.json().at("token_ids")) << batch << " at a time, text " << i;
    }
  }
  const auto printed = run(words(lines, {"--ignore-eos"}));
  EXPECT_EQ(printed.out, io::read_file(tmp / "out16"));
}

TEST_F(GenerateMany, lines_choose_among_adapters) {
  using models::AdapterMethod;
  infer::write_adapter(tmp / "model", tmp / "a", {.method = AdapterMethod::lora, .r = 3, .alpha = 30}, 4);
  infer::write_adapter(tmp / "model", tmp / "b", {.method = AdapterMethod::lora, .r = 2, .alpha = 20}, 5);
  const std::string a = "a=" + (tmp / "a").string(), b = "b=" + (tmp / "b").string();
  const auto line = [](const std::string& more) { return R"({"prompt_ids": [7, 11], "tokens": 20)" + more + "}\n"; };
  const auto r = run(words(line(R"(, "adapter": "a")") + line("") + line(R"(, "adapter": "b")"),
                           {"--adapter", a, "--adapter", b, "--ignore-eos", "--invariant"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const auto results = parsed(r.out);
  ASSERT_EQ(results.size(), 3u);
  const auto alone = [&](const std::vector<std::string>& more) {
    std::vector<std::string> list = {"generate", "--model", tmp / "model",  "--prompt-ids", "7,11",
                                     "--tokens", "20",      "--ignore-eos", "--invariant",  "--json"};
    list.insert(list.end(), more.begin(), more.end());
    const auto one = run(list);
    EXPECT_EQ(one.code, 0) << one.err;
    return one.json().at("token_ids");
  };
  EXPECT_EQ(results[0].at("token_ids"), alone({"--adapter", a})) << "the only text uses the only adapter";
  EXPECT_EQ(results[1].at("token_ids"), alone({}));
  EXPECT_EQ(results[2].at("token_ids"), alone({"--adapter", tmp / "b"}));
  EXPECT_NE(results[0].at("token_ids"), results[1].at("token_ids"));
  EXPECT_NE(results[0].at("token_ids"), results[2].at("token_ids"));

  const auto said = [&](const std::string& lines, const std::vector<std::string>& more) {
    return run(words(lines, more)).err;
  };
  EXPECT_NE(said(line(R"(, "adapter": "c")"), {"--adapter", a})
                .find("line 1: adapter: there is none called \"c\"; there are a"),
            std::string::npos);
  EXPECT_NE(said(line(R"(, "adapter": "c")"), {}).find("there is none called \"c\": give --adapter NAME=DIR"),
            std::string::npos);
  EXPECT_NE(said(line(""), {"--adapter", a}).find("no line asks for the adapter a"), std::string::npos);
  EXPECT_EQ(run(words(line(""), {"--adapter", tmp / "a"})).code, 0) << "without a name it is for all texts";
  const auto two = run({"generate", "--model", tmp / "model", "--prompt-ids", "7", "--adapter", a, "--adapter", b});
  EXPECT_NE(two.err.find("2 adapters are given, but a text can use only one"), std::string::npos) << two.err;
}

TEST_F(GenerateMany, pages_of_8_bits_give_the_same_texts_together_and_alone) {
  const std::string lines = "{\"prompt_ids\": [1, 2, 3]}\n{\"prompt_ids\": [7, 11]}\n";
  for (const std::string kv : {"i8", "f8"}) {
    const auto r = run(words(lines, {"--kv", kv, "--tokens", "30", "--ignore-eos", "--invariant"}));
    ASSERT_EQ(r.code, 0) << r.err;
    const auto alone = run({"generate", "--model", tmp / "model", "--prompt-ids", "7,11", "--tokens", "30",
                            "--ignore-eos", "--invariant", "--kv", kv, "--json"});
    ASSERT_EQ(alone.code, 0) << alone.err;
    EXPECT_EQ(parsed(r.out)[1].at("token_ids"), alone.json().at("token_ids")) << kv;
  }
  EXPECT_EQ(run(words(lines, {"--kv", "int8"})).code, 2);
}

TEST_F(GenerateMany, a_window_lets_texts_be_longer_than_the_context) {
  const std::string lines = "{\"prompt_ids\": [1, 2, 3]}\n{\"prompt_ids\": [7, 11]}\n";
  const std::vector<std::string> window{"--kv-window", "64", "--tokens", "700", "--ignore-eos", "--invariant"};
  const auto r = run(words(lines, window));
  ASSERT_EQ(r.code, 0) << r.err;
  std::vector<std::string> one{"generate", "--model", tmp / "model", "--prompt-ids", "7,11", "--json"};
  one.insert(one.end(), window.begin(), window.end());
  const auto alone = run(one);
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.json().at("token_ids").size(), 700u);
  EXPECT_EQ(parsed(r.out)[1].at("token_ids"), alone.json().at("token_ids"));
  const auto refused = run(words(lines, {"--kv-window", "1000000"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("kv-window 1000000"), std::string::npos) << refused.err;
}

TEST_F(GenerateMany, equal_prompts_are_sampled_differently_and_repeatably) {
  const std::string lines = "{\"prompt_ids\": [1, 2]}\n{\"prompt_ids\": [1, 2]}\n";
  const auto a = run(words(lines, {"--temperature", "2", "--tokens", "20"})),
             b = run(words(lines, {"--temperature", "2", "--tokens", "20", "--batch", "1"}));
  ASSERT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
  const auto texts = parsed(a.out);
  EXPECT_NE(texts[0].at("token_ids"), texts[1].at("token_ids"));
}

TEST_F(GenerateMany, mistakes_name_their_line) {
  const auto error = [&](const std::string& lines, const std::vector<std::string>& more = {}) {
    const auto r = run(words(lines, more));
    EXPECT_NE(r.code, 0) << lines;
    EXPECT_EQ(r.out, "") << lines;
    return r.err;
  };
  const std::string good = "{\"prompt_ids\": [1]}\n";
  EXPECT_NE(error(good + "{\"prompt_ids\": [1, -2]}").find("line 2: expected \"prompt_ids\": [1, 2, 3], found -2"),
            std::string::npos);
  EXPECT_NE(error(good + "\n{\"prompt\": \"a\"}").find("line 3: the model has no tokenizer"), std::string::npos);
  EXPECT_NE(error("{\"promt\": \"a\"}")
                .find("line 1: expected the keys prompt, prompt_ids, tokens, adapter and priority, found \"promt\""),
            std::string::npos);
  EXPECT_NE(error("{\"prompt\": \"a\", \"prompt_ids\": [1]}").find("expected either"), std::string::npos);
  EXPECT_NE(error("{\"prompt_ids\": [1], \"tokens\": 0}").find("tokens = 0: expected 1 to 96"), std::string::npos);
  EXPECT_NE(error("{\"prompt_ids\": [1], \"tokens\": 96}").find("1 prompt tokens and 96 new ones do not fit"),
            std::string::npos);
  EXPECT_NE(error("{\"prompt_ids\": [300]}").find("token 300 is not in the model's vocabulary of 300"),
            std::string::npos);
  EXPECT_NE(error("[1]").find("line 1"), std::string::npos);
  EXPECT_NE(error("{").find("line 1"), std::string::npos);
  EXPECT_NE(error("\n \n").find("holds no prompt"), std::string::npos);
  EXPECT_NE(error(good, {"--prompt-ids", "1"}).find("exclude each other"), std::string::npos);
  EXPECT_NE(error(good, {"--json"}).find("give --out"), std::string::npos);
  EXPECT_NE(run({"generate", "--model", tmp / "model", "--prompt-ids", "1", "--batch", "2"}).err.find("give --prompts"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::cli_test
