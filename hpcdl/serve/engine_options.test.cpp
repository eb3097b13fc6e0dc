// What [engine] says about speculation, deadlines and programs, in a running server.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"
#include "hpcdl/serve/running_for_tests.h"
#include "hpcdl/serve/served_model.h"

namespace hpcdl::serve {
namespace {

constexpr const char* kAsk =
    R"({"prompt":"the sea the sea the sea","max_tokens":60,"ignore_eos":true,"repetition_penalty":1.01,"n":3,"seed":5,"temperature":)";

std::string texts(const RunningServer& server, const std::string& temperature) {
  const auto r = server.ask("POST", "/v1/completions", kAsk + temperature + "}");
  EXPECT_EQ(r.status, 200) << r.body;
  return r.json()["choices"].dump();
}

TEST(engine_options, leave_texts_as_they_are) {
  const RunningServer plain;
  for (const auto& spec : {std::string("ngram"), RunningServer::model_folder().string()}) {
    auto config = RunningServer::config();
    config.engine.spec = spec, config.engine.slo_ttft = 200, config.engine.slo_itl = 20, config.engine.warm = true;
    const RunningServer server(config);
    for (const std::string temperature : {"0", "0.8"})
      EXPECT_EQ(texts(server, temperature), texts(plain, temperature)) << spec;
    const auto m = server.metrics();
    EXPECT_GT(m.at("proposed_tokens_total"), 0);
    EXPECT_GT(m.at("accepted_tokens_total"), 0);
    EXPECT_TRUE(server.wait_until_idle());
  }
  EXPECT_EQ(plain.metrics().at("proposed_tokens_total"), 0);
}

TEST(engine_options, a_window_lets_texts_be_longer_than_the_context) {
  auto config = RunningServer::config();
  config.engine.context = 512;
  const auto ask = [](const RunningServer& server, std::size_t prompt, int tokens) {
    const nlohmann::json body{{"prompt", std::string(prompt, 'a')}, {"max_tokens", tokens}, {"ignore_eos", true}};
    return server.ask("POST", "/v1/completions", body.dump());
  };
  {
    const RunningServer without(config);
    EXPECT_EQ(ask(without, 100, 1500).status, 400);
  }
  config.engine.kv_window = {.tokens = 100, .sink = 4};
  const RunningServer server(config);
  EXPECT_EQ(server.metrics().at("kv_pages"), 8 * 4) << "of the sinks, of the window, and the one that grows";
  for (const std::size_t prompt : {100u, 2000u}) {
    const auto r = ask(server, prompt, 1500);
    ASSERT_EQ(r.status, 200) << r.body;
    EXPECT_EQ(r.json()["usage"]["completion_tokens"], 1500);
    EXPECT_EQ(r.json()["usage"]["prompt_tokens"], prompt);
  }
  EXPECT_GT(server.metrics().at("kv_window_pages_left_total"), 20);
  expect_unharmed(server);
  config.engine.kv_window.tokens = 400;
  EXPECT_THROW(ServedModel{config}, UsageError) << "with the sinks it fills the context";
}

TEST(engine_options, warm_programs_are_not_recorded_again) {
  auto config = RunningServer::config();
  config.engine.warm = true, config.engine.batch = 4;
  const RunningServer server(config);
  const auto before = server.metrics().at("programs_total");
  EXPECT_GT(before, 4);
  texts(server, "0");
  EXPECT_LE(server.metrics().at("programs_total"), before + 2);
}

TEST(engine_options, a_draft_model_needs_the_same_tokens) {
  const io::TempFolder other;
  write_test_model(other.path());
  auto config = RunningServer::config();
  config.engine.spec = other.path().string();
  EXPECT_NO_THROW(ServedModel{config});
  auto tokenizer = io::read_file(other / "tokenizer.json");
  const auto at = tokenizer.find("\"a\"");
  ASSERT_NE(at, tokenizer.npos);
  const auto b = tokenizer.find("\"b\"");
  std::swap(tokenizer[at + 1], tokenizer[b + 1]);
  io::write_file_atomic(other / "tokenizer.json", tokenizer);
  try {
    const ServedModel model(config);
    FAIL() << "tokens differ";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("same vocabulary"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace hpcdl::serve
