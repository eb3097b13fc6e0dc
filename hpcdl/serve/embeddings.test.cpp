// /v1/embeddings over real sockets, with the golden encoder of hpcdl/models/golden.

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <thread>

#include "hpcdl/infer/embedder.h"
#include "hpcdl/serve/running_for_tests.h"

namespace hpcdl::serve {
namespace {

using nlohmann::json;

class EmbeddingServer : public testing::Test {
 protected:
  static ServerConfig config() {
    ServerConfig c;
    c.engine.model = std::string(HPCDL_SOURCE_DIR) + "/hpcdl/models/golden/bert", c.engine.threads = 2;
    c.serve.port = 0, c.serve.drain = 60;
    return c;
  }
  static void SetUpTestSuite() { server_ = std::make_unique<RunningServer>(config()); }
  static void TearDownTestSuite() { server_.reset(); }
  static json post(const json& body, int status = 200, const std::string& path = "/v1/embeddings") {
    const auto r = server_->ask("POST", path, body.dump());
    EXPECT_EQ(r.status, status) << body << "\n" << r.body;
    return r.json();
  }
  static std::string error(const json& body, int status = 400, const std::string& path = "/v1/embeddings") {
    return post(body, status, path)["error"]["message"];
  }
  static std::vector<float> vector_of(const json& answer, std::size_t i = 0) {
    EXPECT_EQ(answer["data"][i]["index"], i);
    return answer["data"][i]["embedding"];
  }
  /// Without a server.
  static std::vector<float> embedded(const std::string& text) {
    LoadedEncoder encoder({.model = config().engine.model, .threads = 2});
    const std::vector<std::vector<std::int32_t>> ids{encoder.ids(text, false)};
    return encoder.embed(ids)[0];
  }
  static void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6) << i;
  }
  static inline std::unique_ptr<RunningServer> server_;
};

std::vector<float> from_base64(const std::string& text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0, held = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(kDigits.find(c)), held += 6;
    if (held >= 8) bytes += static_cast<char>(bits >> (held -= 8) & 255);
  }
  std::vector<float> v(bytes.size() / 4);
  std::memcpy(v.data(), bytes.data(), v.size() * 4);
  return v;
}

TEST_F(EmbeddingServer, answers_all_forms_of_input) {
  const std::string fox = "The fox sees!", dog = "a lazy dog";
  const auto one = post({{"input", fox}, {"model", "bert"}});
  EXPECT_EQ(one["object"], "list");
  EXPECT_EQ(one["model"], "bert");
  EXPECT_EQ(one["data"][0]["object"], "embedding");
  EXPECT_EQ(one["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(one["usage"]["total_tokens"], 6);
  const auto vector = vector_of(one);
  EXPECT_EQ(vector, embedded(fox)) << "the numbers of an answer are those of the encoder";
  const auto two = post({{"input", {dog, fox}}, {"user", "somebody"}});
  expect_near(vector_of(two, 0), embedded(dog)), expect_near(vector_of(two, 1), vector);
  EXPECT_EQ(two["usage"]["prompt_tokens"], 11);
  const auto ids = post({{"prompt", fox}}, 200, "/tokenize")["tokens"];
  EXPECT_EQ(ids.size(), 6u);
  expect_near(vector_of(post({{"input", ids}})), vector);
  expect_near(vector_of(post({{"input", {ids, ids}}}), 1), vector);
  EXPECT_EQ(post({{"input", ""}})["usage"]["prompt_tokens"], 2) << "the special tokens";
}

TEST_F(EmbeddingServer, answers_in_base64_and_in_fewer_dimensions) {
  const auto vector = vector_of(post({{"input", "the river"}}));
  const auto coded = post({{"input", "the river"}, {"encoding_format", "base64"}});
  EXPECT_EQ(from_base64(coded["data"][0]["embedding"]), vector);
  for (const int n : {1, 2, 3, 23, 24}) {
    const auto part = vector_of(post({{"input", "the river"}, {"dimensions", n}}));
    expect_near(part, infer::shortened(vector, n));
    const auto b64 = post({{"input", "the river"}, {"dimensions", n}, {"encoding_format", "base64"}});
    EXPECT_EQ(from_base64(b64["data"][0]["embedding"]), part) << n;
  }
}

TEST_F(EmbeddingServer, refuses_what_it_cannot_honour) {
  EXPECT_EQ(error({{"model", "bert"}}), "the request has no \"input\"");
  EXPECT_NE(error({{"input", json::array()}}).find("expected a string, token ids, or a list of these"),
            std::string::npos);
  EXPECT_NE(error({{"input", {1, 31}}}).find("token ids from 0 to 30"), std::string::npos);
  EXPECT_NE(error({{"input", {1, "a"}}}).find("token ids"), std::string::npos);
  EXPECT_NE(error({{"input", "a"}, {"dimensions", 25}}).find("1 to 24"), std::string::npos);
  EXPECT_NE(error({{"input", "a"}, {"encoding_format", "hex"}}).find("\"float\" or \"base64\""), std::string::npos);
  EXPECT_NE(error({{"input", "a"}, {"dimension", 3}}).find("dimensions"), std::string::npos);
  EXPECT_NE(error({{"input", "a"}, {"model", "other"}}, 404).find("does not exist"), std::string::npos);
  std::string longer;
  for (int i = 0; i < 100; ++i) longer += "fox ";
  EXPECT_NE(error({{"input", longer}}).find("102 tokens, and the model takes 40"), std::string::npos);
  EXPECT_EQ(post({{"input", longer}, {"truncate", true}})["usage"]["prompt_tokens"], 40);
  EXPECT_EQ(error({{"prompt", "a"}}, 400, "/v1/completions"), "bert is an encoder: use /v1/embeddings");
  EXPECT_EQ(error({{"messages", {{{"role", "user"}, {"content", "a"}}}}}, 400, "/v1/chat/completions"),
            "bert is an encoder: use /v1/embeddings");
  EXPECT_EQ(server_->ask("GET", "/v1/embeddings").status, 405);
}

TEST_F(EmbeddingServer, says_what_it_has) {
  EXPECT_EQ(server_->ask("GET", "/health").json(), (json{{"status", "ok"}}));
  const auto models = server_->ask("GET", "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "bert");
  EXPECT_EQ(models["data"][0]["max_model_len"], 40);
  const auto before = server_->metrics();
  post({{"input", {"a", "the fox"}}});
  auto after = server_->metrics();
  EXPECT_EQ(after["prompt_tokens_total"], before.at("prompt_tokens_total") + 7);
  EXPECT_EQ(after["texts_total"], before.at("texts_total") + 2);
  EXPECT_EQ(after["texts_waiting"], 0);
}

TEST_F(EmbeddingServer, many_clients_have_their_own_vectors) {
  const std::vector<std::string> texts{"a", "the fox", "over the lazy dog", "maps, texts", "river stone", "un"};
  std::vector<std::vector<float>> want;
  for (const auto& t : texts) want.push_back(embedded(t));
  std::vector<std::thread> clients;
  for (std::size_t c = 0; c < 8; ++c)
    clients.emplace_back([&, c] {
      for (std::size_t round = 0; round < 12; ++round) {
        json input = json::array();
        const auto count = 1 + (c * 7 + round) % 40;
        for (std::size_t i = 0; i < count; ++i) input.push_back(texts[(c + i) % texts.size()]);
        const auto r = post({{"input", input}});
        for (std::size_t i = 0; i < count; ++i) expect_near(vector_of(r, i), want[(c + i) % texts.size()]);
      }
    });
  for (auto& c : clients) c.join();
}

TEST_F(EmbeddingServer, clients_that_leave_and_a_server_that_ends) {
  auto server = std::make_unique<RunningServer>(config());
  json input = json::array();
  for (int i = 0; i < 2000; ++i) input.push_back("a lazy dog is over the stone, the fox sees the river");
  const auto body = json{{"input", input}}.dump();
  for (int i = 0; i < 5; ++i) {
    TestClient leaves(server->port());
    leaves.send(TestClient::request("POST", "/v1/embeddings", body));
  }
  EXPECT_TRUE(server->wait_for([](auto m) { return m["texts_waiting"] == 0; }));
  TestClient stays(server->port());
  stays.send(TestClient::request("POST", "/v1/embeddings", json{{"input", "a"}}.dump()));
  EXPECT_EQ(stays.read().status, 200);
  server->stop();
}

TEST(Embeddings, a_model_that_continues_texts_has_none) {
  const RunningServer server;
  const auto r = server.ask("POST", "/v1/embeddings", R"({"input": "a"})");
  EXPECT_EQ(r.status, 400);
  EXPECT_NE(r.body.find("needs an encoder"), std::string::npos) << r.body;
}

}  // namespace
}  // namespace hpcdl::serve
