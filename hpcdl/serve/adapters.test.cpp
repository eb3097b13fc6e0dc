// A server with several adapters: a request names the one that it wants.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/adapters_for_tests.h"
#include "hpcdl/serve/running_for_tests.h"

namespace hpcdl::serve {
namespace {

using nlohmann::json;

class AdaptersTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folders_ = std::make_unique<io::TempFolder>();
    using models::AdapterMethod;
    infer::write_adapter(RunningServer::model_folder(), *folders_ / "legal",
                         {.method = AdapterMethod::lora, .r = 4, .alpha = 4}, 3);
    infer::write_adapter(RunningServer::model_folder(), *folders_ / "poems",
                         {.method = AdapterMethod::lora, .r = 2, .alpha = 5, .targets = {"q_proj", "up_proj"}}, 4);
    server_ = std::make_unique<RunningServer>(config({"legal=" + folder("legal"), "poems=" + folder("poems")}));
  }
  static void TearDownTestSuite() { server_.reset(), folders_.reset(); }
  static std::string folder(const char* name) { return (*folders_ / name).string(); }
  static ServerConfig config(std::vector<std::string> adapters) {
    auto c = RunningServer::config();
    c.engine.adapter = std::move(adapters), c.engine.invariant = true;
    return c;
  }
  static json ask(const RunningServer& server, const std::string& model, int tokens = 40) {
    json body{{"prompt", "Once upon a time"}, {"max_tokens", tokens}, {"ignore_eos", true}};
    if (!model.empty()) body["model"] = model;
    const auto r = server.ask("POST", "/v1/completions", body.dump());
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json();
  }
  static std::string text(const RunningServer& server, const std::string& model, int tokens = 40) {
    return ask(server, model, tokens)["choices"][0]["text"];
  }
  static inline std::unique_ptr<io::TempFolder> folders_;
  static inline std::unique_ptr<RunningServer> server_;
};

TEST_F(AdaptersTest, are_listed_beside_the_model) {
  const auto models = server_->ask("GET", "/v1/models").json()["data"];
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0]["id"], "tiny");
  EXPECT_FALSE(models[0].contains("parent"));
  EXPECT_EQ(models[1]["id"], "legal");
  EXPECT_EQ(models[2]["id"], "poems");
  EXPECT_EQ(models[2]["parent"], "tiny");
  EXPECT_EQ(models[2]["max_model_len"], kTestContext);
}

TEST_F(AdaptersTest, are_described_one_by_one) {
  const auto models = server_->ask("GET", "/v1/models").json()["data"];
  for (const auto& m : models) EXPECT_EQ(server_->ask("GET", "/v1/models/" + m["id"].get<std::string>()).json(), m);
  EXPECT_EQ(server_->ask("GET", "/v1/models/p%6Fe%6ds").json(), models[2]);
  for (const char* other : {"/v1/models/prose", "/v1/models/", "/v1/models/poems%", "/v1/models/poems%6"}) {
    const auto r = server_->ask("GET", other);
    EXPECT_EQ(r.status, 404) << other;
    EXPECT_EQ(r.json()["error"]["code"], "model_not_found") << other;
  }
  EXPECT_EQ(server_->ask("POST", "/v1/models/poems").status, 405);
}

TEST_F(AdaptersTest, answer_as_servers_with_one_each) {
  std::map<std::string, std::string> alone{{"tiny", text(RunningServer(config({})), "tiny")}};
  for (const char* name : {"legal", "poems"}) {
    const RunningServer one(config({folder(name)}));
    alone[name] = text(one, "tiny");
    EXPECT_EQ(one.ask("GET", "/v1/models").json()["data"].size(), 1u) << "it has no name";
  }
  EXPECT_NE(alone["tiny"], alone["legal"]);
  EXPECT_NE(alone["tiny"], alone["poems"]);
  EXPECT_NE(alone["legal"], alone["poems"]);
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    for (const auto& one : alone)
      clients.emplace_back([&one] { EXPECT_EQ(text(*server_, one.first), one.second) << one.first; });
  for (auto& c : clients) c.join();
  EXPECT_EQ(text(*server_, ""), alone["tiny"]) << "without a name the model itself answers";
  expect_unharmed(*server_);
}

TEST_F(AdaptersTest, answers_and_streams_say_who_answers) {
  EXPECT_EQ(ask(*server_, "poems", 3)["model"], "poems");
  EXPECT_EQ(ask(*server_, "", 3)["model"], "tiny");
  const json body{{"model", "legal"},
                  {"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                  {"max_tokens", 4},
                  {"stream", true}};
  const auto r = server_->ask("POST", "/v1/chat/completions", body.dump());
  ASSERT_EQ(r.status, 200) << r.body;
  for (const auto& e : events_of(r.body)) EXPECT_EQ(e["model"], "legal");
}

TEST_F(AdaptersTest, unknown_names_are_refused_with_those_that_there_are) {
  const auto r = server_->ask("POST", "/v1/completions", R"({"prompt":"a","model":"prose"})");
  EXPECT_EQ(r.status, 404);
  const auto error = r.json()["error"];
  EXPECT_EQ(error["message"], "the model \"prose\" does not exist; this server has tiny, legal, poems");
  EXPECT_EQ(error["code"], "model_not_found");
}

TEST_F(AdaptersTest, prefixes_are_shared_among_texts_of_one_adapter_only) {
  const auto cached = [](const char* model) {
    const json body{{"prompt", std::string(200, 'q')}, {"max_tokens", 2}, {"model", model}};
    return server_->ask("POST", "/v1/completions", body.dump())
        .json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int>();
  };
  for (const char* model : {"tiny", "legal", "poems"}) EXPECT_EQ(cached(model), 0) << model;
  for (const char* model : {"tiny", "legal", "poems"}) EXPECT_EQ(cached(model), 199) << model;
}

TEST_F(AdaptersTest, names_and_folders_are_checked) {
  const auto said = [](const std::vector<std::string>& adapters) {
    try {
      ServedModel model(config(adapters));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto legal = folder("legal"), poems = folder("poems");
  EXPECT_EQ(said({"legal=" + legal}), "no error");
  EXPECT_EQ(said({"=" + legal}), "no error");
  EXPECT_EQ(said({"a=" + legal, "a=" + poems}),
            fmt::format("[serve] --adapter: {} and {} are both called a: give each a name of its own", legal, poems));
  EXPECT_EQ(said({"a=" + legal, poems}),
            fmt::format("[serve] --adapter {0}: one of several adapters needs a name, by which texts choose it: "
                        "NAME={0}",
                        poems));
  EXPECT_EQ(said({"a="}), "[serve] --adapter a=: expected a folder after the name: NAME=DIR");
  EXPECT_EQ(said({"tiny=" + legal}),
            "[serve] an adapter is called tiny, as the model itself is: give it another name, or the model (--name)");
}

}  // namespace
}  // namespace hpcdl::serve
