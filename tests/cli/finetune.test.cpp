// hpcdl finetune and hpcdl adapter, as users run them.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "hpcdl/data/chat_for_tests.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

class Finetune : public testing::Test {
 protected:
  void SetUp() override {
    io::ModelConfig c;
    c.family = io::Family::qwen2;
    c.layers = 2, c.heads = 4, c.kv_heads = 2, c.width = 64, c.context = 96, c.vocab = 259, c.ffn = 128;
    models::resolve(c);
    models::LanguageModel::create(c, 3, false).save(tmp / "base");
    data::chat_tokenizer().save_folder(tmp / "base", 96);
    io::write_file_atomic(tmp / "base" / "chat_template.jinja", data::kChatTemplate);
    std::string text, chats;
    for (int i = 0; i < 200; ++i) text += "A sentence that is said again.\n";
    for (int i = 0; i < 40; ++i)
      chats += "{\"messages\": [{\"role\": \"user\", \"content\": \"" + std::to_string(i) +
               "\"}, {\"role\": \"assistant\", \"content\": \"yes\"}]}\n";
    io::write_file_atomic(tmp / "text.txt", text);
    io::write_file_atomic(tmp / "chats.jsonl", chats);
  }
  Result tune(const std::string& data, const std::string& out, std::vector<std::string> more = {}) {
    std::vector<std::string> list = {"finetune",
                                     "--model",
                                     tmp / "base",
                                     "--data",
                                     tmp / data,
                                     "--out",
                                     tmp / out,
                                     "--threads",
                                     "2",
                                     "--json",
                                     "--data.cache=" + (tmp / "cache").string(),
                                     "--train.lr=1e-2",
                                     "--train.epochs=4"};
    list.insert(list.end(), more.begin(), more.end());
    return run(list);
  }
  io::Json evaluated(const std::string& model, const std::vector<std::string>& more = {}) {
    std::vector<std::string> list = {"eval", "--model", tmp / model, "--text", tmp / "text.txt", "--json"};
    list.insert(list.end(), more.begin(), more.end());
    const auto r = run(list);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.json();
  }
  io::TempFolder tmp;
};

TEST_F(Finetune, an_adapter_is_trained_used_inspected_and_merged) {
  const auto crc = io::crc32c(io::read_file(tmp / "base" / "model.safetensors"));
  const auto tuned = tune("text.txt", "run", {"--lora", "r=4,alpha=8"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_NE(tuned.err.find("memory that the run takes"), std::string::npos) << tuned.err;
  EXPECT_NE(tuned.err.find("trained of"), std::string::npos) << tuned.err;

  const std::vector<std::string> use = {"--adapter", "mine=" + (tmp / "run").string()};
  const double before = evaluated("base").at("loss"), after = evaluated("base", use).at("loss");
  EXPECT_LT(after, 0.95 * before);

  const auto shown = run({"adapter", "inspect", "--adapter", tmp / "run", "--json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.json().at("r"), 4);
  EXPECT_EQ(shown.json().at("scale"), 2);
  EXPECT_EQ(shown.json().at("layers"), 14);
  EXPECT_EQ(run({"adapter", "inspect", "--adapter", tmp / "run"}).code, 0);

  const auto merged =
      run({"adapter", "merge", "--model", tmp / "base", "--adapter", tmp / "run", "--out", tmp / "merged"});
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_NEAR(evaluated("merged").at("loss").get<double>(), after, 1e-5 * after);
  EXPECT_EQ(run({"adapter", "merge", "--model", tmp / "base", "--adapter", tmp / "run", "--out", tmp / "merged"}).code,
            2);
  EXPECT_EQ(run({"adapter"}).code, 2);
  EXPECT_EQ(io::crc32c(io::read_file(tmp / "base" / "model.safetensors")), crc);
}

TEST_F(Finetune, a_base_in_few_bits_trains_an_adapter_of_the_model) {
  const auto crc = io::crc32c(io::read_file(tmp / "base" / "model.safetensors"));
  const auto tuned = tune("text.txt", "run", {"--lora", "r=4,alpha=8", "--quantize", "nf4", "--model.double=true"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const double before = evaluated("base").at("loss");
  EXPECT_LT(evaluated("base", {"--adapter", tmp / "run"}).at("loss"), 0.95 * before);
  EXPECT_EQ(io::crc32c(io::read_file(tmp / "base" / "model.safetensors")), crc);
  const auto other = tune("text.txt", "run", {"--lora", "r=4,alpha=8", "--quantize", "int8"});
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_NE(other.err.find("in nf4 double"), std::string::npos) << other.err;
  const auto both = tune("text.txt", "other", {"--full", "--quantize", "nf4"});
  EXPECT_EQ(both.code, 2) << both.err;
}

TEST_F(Finetune, conversations_and_whole_models_are_trained) {
  const auto chats = tune("chats.jsonl", "chats");
  ASSERT_EQ(chats.code, 0) << chats.err;
  EXPECT_NE(chats.err.find("40 conversations"), std::string::npos) << chats.err;
  const auto answer = run({"generate", "--model", tmp / "base", "--adapter", tmp / "chats", "--chat", "--prompt", "7",
                           "--temperature", "0", "--tokens", "3"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_TRUE(answer.out.starts_with("y")) << answer.out;

  const auto full = tune("text.txt", "full", {"--full"});
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_LT(evaluated("full").at("loss").get<double>(), 0.8 * evaluated("base").at("loss").get<double>());
}

TEST_F(Finetune, a_number_of_steps_replaces_the_epoch) {
  const auto r = run({"finetune", "--model", tmp / "base", "--data", tmp / "text.txt", "--out", tmp / "short",
                      "--threads", "1", "--json", "--data.cache=" + (tmp / "cache").string(), "--train.steps=2"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.json().at("step"), 2);
}

TEST_F(Finetune, mistakes_are_named) {
  EXPECT_EQ(tune("text.txt", "run", {"--lora", "r"}).code, 2);
  EXPECT_EQ(tune("text.txt", "run", {"--lora", "rank=3"}).code, 2);
  EXPECT_EQ(tune("text.txt", "run", {"--full", "--lora", "r=4"}).code, 2);
  const auto large = tune("text.txt", "run", {"--lora", "r=65"});
  EXPECT_EQ(large.code, 2);
  EXPECT_NE(large.err.find("choose at most"), std::string::npos) << large.err;
  const auto none = run({"eval", "--model", tmp / "base", "--text", tmp / "text.txt", "--adapter", tmp / "base"});
  EXPECT_EQ(none.code, 70);
  EXPECT_NE(none.err.find("expected an adapter"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace hpcdl::cli_test
