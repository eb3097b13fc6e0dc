// The server over real sockets: what every route answers, and that streams say what whole answers say.

#include "hpcdl/serve/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <regex>
#include <set>
#include <thread>

#include "hpcdl/serve/running_for_tests.h"

namespace hpcdl::serve {
namespace {

using nlohmann::json;

class ServerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<RunningServer>(); }
  static void TearDownTestSuite() { server_.reset(); }
  static json post(const std::string& path, const json& body, int status = 200) {
    const auto r = server_->ask("POST", path, body.dump());
    EXPECT_EQ(r.status, status) << body << "\n" << r.body;
    return r.json();
  }
  /// The text of all events of a choice.
  static std::string streamed(const std::string& path, json body, std::size_t choice = 0) {
    body["stream"] = true;
    const auto r = server_->ask("POST", path, body.dump());
    EXPECT_NE(r.head.find("text/event-stream"), std::string::npos) << r.head << r.body;
    std::string text, finish;
    for (const auto& e : events_of(r.body))
      for (const auto& c : e["choices"]) {
        if (c["index"] != choice) continue;
        EXPECT_EQ(finish, "") << "an event after the end of the choice";
        text += c.contains("text") ? c["text"].get<std::string>() : c["delta"].value("content", "");
        if (c["finish_reason"].is_string()) finish = c["finish_reason"];
      }
    EXPECT_NE(finish, "") << r.body;
    return text;
  }
  static inline std::unique_ptr<RunningServer> server_;
};

/// The text that an engine makes of a prompt, without a server.
std::string generated(const std::string& prompt, int tokens, const infer::SamplingOptions& sampling = {}) {
  Pool pool(2);
  const auto model = models::LanguageModel::open(RunningServer::model_folder());
  const auto tokenizer = io::Tokenizer::load(RunningServer::model_folder());
  infer::Engine engine(model, pool, {.context = 1024, .vocab = tokenizer.vocab_size()});
  io::StreamDecoder decoder(tokenizer);
  std::string text;
  engine.generate(encode_prompt(tokenizer, prompt), tokens, sampling,
                  [&](std::int32_t id) { return text += decoder.push(id), true; });
  return text + decoder.finish();
}

TEST_F(ServerTest, says_what_it_has) {
  EXPECT_EQ(server_->ask("GET", "/health").json(), (json{{"status", "ok"}}));
  const auto models = server_->ask("GET", "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], kTestContext);
  const auto m = server_->metrics();
  for (const char* name : {"texts_waiting", "texts_running", "kv_pages", "kv_pages_free", "new_tokens_total",
                           "time_to_first_token_seconds_count", "time_between_tokens_seconds_sum"})
    EXPECT_TRUE(m.contains(name)) << name;
  EXPECT_GT(m.at("kv_pages"), 0);
  EXPECT_EQ(server_->server().facts().name, "tiny");
}

TEST_F(ServerTest, completes_as_generate_does) {
  const auto want = generated("Once upon", 40);
  const json body{{"model", "tiny"}, {"prompt", "Once upon"}, {"max_tokens", 40}};
  const auto whole = post("/v1/completions", body);
  EXPECT_EQ(whole["choices"][0]["text"], want);
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(whole["usage"]["total_tokens"], 9 + whole["usage"]["completion_tokens"].get<int>());
  EXPECT_EQ(streamed("/v1/completions", body), want);
}

TEST_F(ServerTest, takes_all_forms_of_prompts) {
  const auto want = generated("abc", 8), other = generated("xy", 8);
  const auto text = [&](const json& prompt, std::size_t choice = 0) {
    return post("/v1/completions", {{"prompt", prompt}, {"max_tokens", 8}})["choices"][choice]["text"];
  };
  const auto ids = post("/tokenize", {{"prompt", "abc"}})["tokens"];
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(text("abc"), want);
  EXPECT_EQ(text(ids), want);
  EXPECT_EQ(text(json::array({"abc", "xy"}), 1), other);
  EXPECT_EQ(text(json::array({ids, ids}), 1), want);
  EXPECT_EQ(post("/detokenize", {{"tokens", ids}})["prompt"], "abc");
  EXPECT_EQ(post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 8}, {"echo", true}})["choices"][0]["text"],
            "abc" + want);
}

TEST_F(ServerTest, seeds_choose_texts) {
  const json body{{"prompt", "x"}, {"max_tokens", 24}, {"temperature", 1.5}, {"seed", 7}, {"n", 3}};
  const auto a = post("/v1/completions", body), b = post("/v1/completions", body);
  ASSERT_EQ(a["choices"].size(), 3u);
  std::set<std::string> texts;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a["choices"][i]["text"], b["choices"][i]["text"]);
    EXPECT_EQ(a["choices"][i]["text"], generated("x", 24, {.temperature = 1.5F, .seed = 7 + i}));
    EXPECT_EQ(streamed("/v1/completions", body, i), a["choices"][i]["text"]);
    texts.insert(a["choices"][i]["text"]);
  }
  EXPECT_EQ(texts.size(), 3u);
  auto unseeded = body;
  unseeded.erase("seed");
  EXPECT_NE(post("/v1/completions", unseeded)["choices"], post("/v1/completions", unseeded)["choices"]);
}

TEST_F(ServerTest, stops_before_a_stop_string) {
  const auto all = generated("Once upon", 60);
  ASSERT_GT(all.size(), 20u);
  std::size_t at = 10;
  while ((static_cast<unsigned char>(all[at]) & 0xC0) == 0x80) ++at;
  auto stop = all.substr(at, 6);
  while (!stop.empty() && (static_cast<unsigned char>(all[at + stop.size()]) & 0xC0) == 0x80) stop.pop_back();
  const auto want = all.substr(0, all.find(stop));
  const json body{{"prompt", "Once upon"}, {"max_tokens", 60}, {"stop", {"never in it, really", stop}}};
  const auto r = post("/v1/completions", body);
  EXPECT_EQ(r["choices"][0]["text"], want);
  EXPECT_EQ(r["choices"][0]["finish_reason"], "stop");
  EXPECT_LT(r["usage"]["completion_tokens"], 60);
  EXPECT_EQ(streamed("/v1/completions", body), want);
}

TEST_F(ServerTest, tells_logprobs) {
  json body{{"prompt", "Once"}, {"max_tokens", 5}, {"logprobs", 3}, {"ignore_eos", true}};
  const auto choice = post("/v1/completions", body)["choices"][0];
  const auto& l = choice["logprobs"];
  ASSERT_EQ(l["tokens"].size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_LE(l["token_logprobs"][i], 0);
    EXPECT_LE(l["top_logprobs"][i].size(), 3u);
    EXPECT_GE(l["top_logprobs"][i].size(), 1u);
    double best = -1e9;
    for (const auto& [_, p] : l["top_logprobs"][i].items()) best = std::max(best, p.get<double>());
    EXPECT_EQ(l["token_logprobs"][i], best) << "without sampling the best one is taken";
  }
  EXPECT_EQ(l["text_offset"][0], 0);
  body["stream"] = true;
  std::vector<json> streamed;
  for (const auto& e : events_of(server_->ask("POST", "/v1/completions", body.dump()).body))
    for (const auto& p : e["choices"][0]["logprobs"]["token_logprobs"]) streamed.push_back(p);
  EXPECT_EQ(json(streamed), l["token_logprobs"]);

  const auto chat = post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                                                  {"max_tokens", 3},
                                                  {"ignore_eos", true},
                                                  {"logprobs", true},
                                                  {"top_logprobs", 2}});
  const auto& entries = chat["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(entries[0]["bytes"].size(), 1u);
  EXPECT_EQ(entries[0]["top_logprobs"][0]["logprob"], entries[0]["logprob"]);
}

TEST_F(ServerTest, logprobs_of_a_prompt_are_those_of_the_text) {
  const auto made =
      post("/v1/completions", {{"prompt", "Once"}, {"max_tokens", 6}, {"logprobs", 0}, {"ignore_eos", true}});
  auto ids = post("/tokenize", {{"prompt", "Once"}})["tokens"];
  const auto prompt = ids.size();
  Pool pool(2);
  const auto model = models::LanguageModel::open(RunningServer::model_folder());
  infer::Engine engine(model, pool, {.context = 64, .vocab = 257});
  engine.generate(ids.get<std::vector<std::int32_t>>(), 6, {.ignore_eos = true},
                  [&](std::int32_t id) { return ids.push_back(id), true; });
  const auto scored = post("/v1/completions", {{"prompt", ids}, {"max_tokens", 1}, {"prompt_logprobs", 0}});
  const auto& list = scored["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(list.size(), ids.size());
  EXPECT_TRUE(list[0].is_null());
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_NEAR(list[prompt + i]["logprob"].get<double>(),
                made["choices"][0]["logprobs"]["token_logprobs"][i].get<double>(), 1e-4);
}

TEST_F(ServerTest, chats_with_the_template) {
  const auto want = generated("<system>be brief\n<user>hi there\n<assistant>", 20);
  const json body{
      {"messages",
       {{{"role", "system"}, {"content", "be brief"}},
        {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "hi "}}, {{"type", "text"}, {"text", "there"}}}}}}},
      {"max_completion_tokens", 20}};
  const auto r = post("/v1/chat/completions", body);
  EXPECT_EQ(r["object"], "chat.completion");
  EXPECT_EQ(r["choices"][0]["message"], (json{{"role", "assistant"}, {"content", want}}));
  EXPECT_EQ(streamed("/v1/chat/completions", body), want);
  // Without max_tokens: up to the end of the context.
  auto open = body;
  open.erase("max_completion_tokens"), open["ignore_eos"] = true;
  const auto usage = post("/v1/chat/completions", open)["usage"];
  EXPECT_EQ(usage["total_tokens"], kTestContext);

  const json tool{{"type", "function"}, {"function", {{"name", "f"}}}};
  const auto with_tools = [&](json more) {
    json call{{"messages", {{{"role", "user"}, {"content", "q"}}}}};
    call.update(more);
    const auto ids = post("/tokenize", call)["tokens"];
    return post("/detokenize", {{"tokens", ids}})["prompt"].get<std::string>();
  };
  EXPECT_EQ(with_tools(json::object()), "<user>q\n<assistant>");
  EXPECT_EQ(with_tools({{"add_generation_prompt", false}}), "<user>q\n");
  EXPECT_EQ(with_tools({{"chat_template_kwargs", {{"mood", "good"}}}}), "<user>q\nmood:good\n<assistant>");
  EXPECT_EQ(with_tools({{"tools", {tool}}, {"tool_choice", "none"}}), "<user>q\n<assistant>");
  EXPECT_NE(with_tools({{"tools", {tool}}}).find("\"name\": \"f\""), std::string::npos);
}

TEST_F(ServerTest, texts_have_the_form_that_is_asked_for) {
  const auto text = [&](const std::string& field, const json& value) {
    const auto r = post("/v1/completions",
                        {{"prompt", "x"}, {"max_tokens", 400}, {"temperature", 1}, {"seed", 5}, {field, value}});
    EXPECT_EQ(r["choices"][0]["finish_reason"], "stop") << r;
    return r["choices"][0]["text"].get<std::string>();
  };
  EXPECT_TRUE(std::regex_match(text("regex", "[a-c]{3}(x|yz)"), std::regex("[a-c]{3}(x|yz)")));
  const auto word = text("grammar", "root ::= \"yes\" | \"no\"");
  EXPECT_TRUE(word == "yes" || word == "no") << word;
  const json schema{{"type", "object"},
                    {"properties", {{"kind", {{"enum", {"cat", "dog"}}}}, {"legs", {{"enum", {3, 4}}}}}},
                    {"required", {"kind", "legs"}},
                    {"additionalProperties", false}};
  const json format{{"type", "json_schema"}, {"json_schema", {{"name", "pet"}, {"strict", true}, {"schema", schema}}}};
  for (int round = 0; round < 2; ++round) {  // the second one uses the grammar of the first
    const auto pet = json::parse(text("response_format", format));
    EXPECT_EQ(pet.size(), 2u);
    EXPECT_TRUE(pet["kind"] == "cat" || pet["kind"] == "dog") << pet;
    EXPECT_TRUE(pet["legs"] == 3 || pet["legs"] == 4) << pet;
  }
  const json chat{{"messages", {{{"role", "user"}, {"content", "q"}}}}, {"response_format", format}, {"n", 3}};
  const auto answer = post("/v1/chat/completions", chat);
  for (const auto& c : answer["choices"])
    EXPECT_TRUE(json::parse(c["message"]["content"].get<std::string>()).is_object());
  EXPECT_EQ(
      post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}, {"response_format", {{"type", "text"}}}})["object"],
      "text_completion");
}

TEST_F(ServerTest, streams_have_the_form_that_clients_expect) {
  const json body{{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                  {"max_tokens", 6},
                  {"ignore_eos", true},
                  {"stream", true},
                  {"stream_options", {{"include_usage", true}}}};
  const auto r = server_->ask("POST", "/v1/chat/completions", body.dump());
  EXPECT_TRUE(r.body.ends_with("data: [DONE]\n\n"));
  const auto events = events_of(r.body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  for (std::size_t i = 1; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["id"], events[0]["id"]);
    EXPECT_FALSE(events[i]["choices"][0]["delta"].contains("role"));
    EXPECT_TRUE(events[i]["usage"].is_null());
  }
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 6);
}

TEST_F(ServerTest, connections_are_kept) {
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.ask("GET", "/health").status, 200);
  // Several requests before the first answer.
  const auto body = json{{"prompt", "a"}, {"max_tokens", 4}}.dump();
  client.send(TestClient::request("POST", "/v1/completions", body) + TestClient::request("GET", "/health") +
              TestClient::request("POST", "/v1/completions", body));
  const auto first = client.read();
  EXPECT_EQ(client.read().json(), (json{{"status", "ok"}}));
  EXPECT_EQ(client.read().json()["choices"], first.json()["choices"]);
  // In parts, and a body in chunks.
  const auto text = TestClient::request("POST", "/v1/completions", body);
  for (const char c : text) client.send({&c, 1});
  EXPECT_EQ(client.read().json()["choices"], first.json()["choices"]);
  client.send(fmt::format("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                          body.size(), body));
  EXPECT_EQ(client.read().json()["choices"], first.json()["choices"]);
  client.send(
      fmt::format("POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.size()));
  EXPECT_TRUE(client.read_until("100 Continue"));
  client.send(body);
  EXPECT_EQ(client.read().json()["choices"], first.json()["choices"]);
  const auto last = client.ask("GET", "/health", "", "Connection: close\r\n");
  EXPECT_NE(last.head.find("Connection: close"), std::string::npos);
  EXPECT_FALSE(client.more());
  // HTTP/1.0 has no chunks.
  TestClient old(server_->port());
  const auto stream = json{{"prompt", "a"}, {"max_tokens", 4}, {"stream", true}}.dump();
  old.send(fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", stream.size(), stream));
  EXPECT_TRUE(old.read().body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServerTest, takes_every_field_of_sampling) {
  const json body{{"prompt", "Once upon"}, {"max_tokens", 12}, {"ignore_eos", true}};
  const auto answer = [&](const json& fields) {
    auto call = body;
    call.update(fields);
    return post("/v1/completions", call)["choices"][0]["text"].get<std::string>();
  };
  const auto plain = answer(json::object());
  for (const json& same :
       {json{{"top_k", 5}}, json{{"min_p", 0.1}}, json{{"typical_p", 0.9}}, json{{"top_p", 0.5}}, json{{"priority", 3}},
        json{{"cache_salt", "x"}}, json{{"user", "me"}, {"safety_identifier", "a"}, {"prompt_cache_key", "b"}},
        json{{"metadata", {{"a", "b"}}}, {"store", false}, {"service_tier", "auto"}, {"best_of", 1}}})
    EXPECT_EQ(answer(same), plain) << same << ": the most likely tokens are taken anyway";
  EXPECT_EQ(answer({{"allowed_token_ids", {'z'}}}), std::string(12, 'z'));
  const auto first = post("/tokenize", {{"prompt", plain}})["tokens"][0];
  const auto without = answer({{"banned_token_ids", {first}}, {"logprobs", 0}});
  EXPECT_NE(without, plain);
  EXPECT_EQ(without.find(plain[0]), std::string::npos);
  EXPECT_NE(answer({{"repetition_penalty", 50}}), answer({{"allowed_token_ids", {'z'}}}));
  EXPECT_EQ(answer({{"stop_token_ids", {first}}, {"min_tokens", 0}}).size(), 1u);
  EXPECT_GT(answer({{"stop_token_ids", {first}}, {"min_tokens", 3}}).size(), 1u);
}

TEST_F(ServerTest, counts_the_tokens_of_a_prompt_that_it_remembers) {
  const auto cached = [&](const std::string& salt) {
    const auto r = post("/v1/completions",
                        {{"prompt", "counted: " + std::string(200, 'q')}, {"max_tokens", 2}, {"cache_salt", salt}});
    return r["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_GE(cached("a"), 192) << "whole pages";
  EXPECT_EQ(cached("b"), 0);
}

TEST_F(ServerTest, scores_the_prompt_of_a_chat) {
  const json body{{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 1}, {"prompt_logprobs", 1}};
  const auto r = post("/v1/chat/completions", body);
  const auto& list = r["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(list.size(), r["usage"]["prompt_tokens"].get<std::size_t>());
  EXPECT_TRUE(list[0].is_null());
  for (std::size_t i = 1; i < list.size(); ++i) {
    EXPECT_LT(list[i]["logprob"].get<double>(), 0);
    EXPECT_LE(list[i]["top_logprobs"].size(), 1u) << "none if the tokenizer lacks the best id";
  }
}

TEST(Server, says_that_it_loads) {
  std::promise<void> go, ready;
  Server server(RunningServer::config(), {.prepare = [&](auto&, auto&) { go.get_future().wait(); },
                                          .ready = [&](const Server&) { ready.set_value(); }});
  std::thread thread([&] { server.run(); });
  const auto& address = server.address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const auto ask = [&](const char* method, const char* path) { return TestClient(port).ask(method, path, "{}"); };
  auto r = ask("GET", "/health");
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json(), (json{{"status", "loading"}}));
  r = ask("POST", "/v1/completions");
  EXPECT_EQ(r.status, 503);
  EXPECT_NE(r.head.find("Retry-After"), std::string::npos) << r.head;
  go.set_value();
  ready.get_future().wait();
  EXPECT_EQ(ask("GET", "/health").json(), (json{{"status", "ok"}}));
  server.drain();
  thread.join();
}

// The embedding of one letter is not a number: texts with it fail, and those beside them do not notice.
TEST(Server, logits_that_are_not_numbers_harm_one_call) {
  const io::TempFolder folder;
  auto untied = test_model();
  untied.tied = false;
  write_test_model(folder / "tiny", untied, [](models::LanguageModel& model) {
    for (auto& p : model.parameters())
      if (p.name == "model.embed_tokens.weight")
        std::fill_n(p.memory.ptr<float>() + 'N' * p.memory.shape()[1], p.memory.shape()[1], NAN);
  });
  auto config = RunningServer::config();
  config.engine.model = (folder / "tiny").string();
  const RunningServer server(config);
  const json banned = json::array({'N'});
  const auto body = [&](const std::string& prompt, int tokens) {
    return json{{"prompt", prompt}, {"max_tokens", tokens}, {"ignore_eos", true}, {"banned_token_ids", banned}}.dump();
  };
  const auto alone = server.ask("POST", "/v1/completions", body("good", 200)).json()["choices"];
  TestClient good(server.port());
  good.send(TestClient::request("POST", "/v1/completions", body("good", 200)));
  for (int i = 0; i < 3; ++i) {
    const auto r = server.ask("POST", "/v1/completions", body("NaN", 4));
    EXPECT_EQ(r.status, 500);
    EXPECT_TRUE(r.json()["error"]["message"].is_string()) << r.body;
  }
  const auto r = good.read();
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["choices"], alone);
  expect_unharmed(server);
}

TEST_F(ServerTest, refuses_what_it_does_not_understand) {
  const std::string completions = "/v1/completions", chat = "/v1/chat/completions";
  struct Row {
    std::string path, body;
    int status;
    std::string says;
  };
  const std::string message = R"("messages":[{"role":"user","content":"q"}])";
  const std::vector<Row> rows = {
      {completions, "", 400, ""},
      {completions, "{", 400, ""},
      {completions, "[]", 400, "expected an object, found array"},
      {completions, "{}", 400, "prompt"},
      {completions, R"({"prompt":null})", 400, "no \\\"prompt\\\""},
      {completions, R"({"prompt":3})", 400, "a string, token ids"},
      {completions, R"({"prompt":[]})", 400, "a string, token ids"},
      {completions, R"({"prompt":[[]]})", 400, "at least one token"},
      {completions, R"({"prompt":[1,"a"]})", 400, "token ids from 0 to 256"},
      {completions, R"({"prompt":[257]})", 400, "token ids from 0 to 256"},
      {completions, R"({"prompt":[-1]})", 400, "token ids from 0 to 256"},
      {completions, R"({"prompt":[1.5]})", 400, "token ids from 0 to 256"},
      {completions, R"({"prompt":["a",3]})", 400, "a string, token ids"},
      {completions, R"({"prompt":"a","max_tokens":0})", 400, "an integer from 1"},
      {completions, R"({"prompt":"a","max_tokens":"5"})", 400, "found \\\"5\\\""},
      {completions, R"({"prompt":"a","max_tokens":1e9})", 400, "an integer"},
      {completions, R"({"prompt":"a","max_tokens":99999})", 400, "do not fit into the context of 4096"},
      {completions, R"({"prompt":"a","max_token":5})", 400, "did you mean 'max_tokens'"},
      {completions, R"({"prompt":"a","temprature":1})", 400, "did you mean 'temperature'"},
      {completions, R"({"prompt":"a","temperature":-1})", 400, "a number from 0 to 100"},
      {completions, R"({"prompt":"a","top_p":2})", 400, "a number from 0 to 1"},
      {completions, R"({"prompt":"a","top_k":-2})", 400, "an integer from -1"},
      {completions, R"({"prompt":"a","n":0})", 400, "an integer from 1 to 128"},
      {completions, R"({"prompt":["a","b"],"n":100})", 400, "more than 128 choices"},
      {completions, R"({"prompt":"a","stop":""})", 400, "of 1 to"},
      {completions, R"({"prompt":"a","stop":[1]})", 400, "a string, or a list"},
      {completions, R"({"prompt":"a","stream":"yes"})", 400, "true or false"},
      {completions, R"({"prompt":"a","stream_options":{"include_usage":true}})", 400, "stream"},
      {completions, R"({"prompt":"a","stream":true,"stream_options":{"usage":true}})", 400, "unknown field"},
      {completions, R"({"prompt":"a","logit_bias":{"a":1}})", 400, "token ids with numbers"},
      {completions, R"({"prompt":"a","logit_bias":{"300":1}})", 400, "token ids with numbers"},
      {completions, R"({"prompt":"a","logit_bias":{"3":101}})", 400, "token ids with numbers"},
      {completions, R"({"prompt":"a","logprobs":21})", 400, "an integer from 0 to 20"},
      {completions, R"({"prompt":"a","stop_token_ids":[260]})", 400, "token ids from 0 to 259"},
      {completions, R"({"prompt":"a","seed":1.5})", 400, "an integer"},
      {completions, R"({"prompt":"a","model":"other"})", 404, "this server has tiny"},
      {completions, R"({"prompt":"a","suffix":"b"})", 400, "unknown field"},
      {completions, R"({"prompt":"a","store":true})", 400, "keeps no answers"},
      {completions, R"({"prompt":"a","metadata":"b"})", 400, "an object"},
      {completions, R"({"prompt":"a","service_tier":"priority"})", 400, "auto or default"},
      {completions, R"({"prompt":"a","best_of":3})", 400, "n, which is 1"},
      {completions, R"({"prompt":"a","banned_token_ids":[260]})", 400, "token ids from 0 to 259"},
      {completions, R"({"prompt":"a","prompt_logprobs":1,"stream":true})", 400, "not for"},
      {completions, R"({"prompt":"a","echo":true,"stream":true})", 400, "echo"},
      {completions, "{\"prompt\":\"\xff\"}", 400, ""},
      {completions, "{\"prompt\":\"" + std::string(5000, 'a') + "\"}", 400, "context"},
      {completions, "{\"prompt\":" + std::string(100, '[') + std::string(100, ']') + "}", 400, ""},
      {chat, "{}", 400, "messages"},
      {chat, R"({"messages":[]})", 400, "at least one message"},
      {chat, R"({"messages":["a"]})", 400, "objects with a"},
      {chat, R"({"messages":[{"content":"a"}]})", 400, "objects with a"},
      {chat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", 400, "text only"},
      {chat, "{" + message + R"(,"tools":3})", 400, "a list"},
      {chat, "{" + message + R"(,"tool_choice":"required"})", 400, "needs"},
      {chat, "{" + message + R"(,"chat_template_kwargs":[]})", 400, "an object"},
      {chat, "{" + message + R"(,"top_logprobs":2})", 400, "needs"},
      {chat, "{" + message + R"(,"max_tokens":2,"max_completion_tokens":3})", 400, "differ"},
      {chat, "{" + message + R"(,"functions":[]})", 400, "unknown field"},
      {completions, R"({"prompt":"a","regex":"("})", 400, ""},
      {completions, R"({"prompt":"a","grammar":"x ::= y"})", 400, ""},
      {completions, R"({"prompt":"a","regex":"a","grammar":"root ::= \"a\""})", 400, "exclude each other"},
      {completions, R"({"prompt":"a","regex":"a","ignore_eos":true})", 400, "ignore_eos"},
      {completions, R"({"prompt":"a","response_format":{"type":"xml"}})", 400, "json_schema"},
      {completions, R"({"prompt":"a","response_format":{"type":"json_schema"}})", 400, "schema"},
      {completions, R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":{"type":"x"}}}})",
       400, ""},
      {"/tokenize", R"({"text":"a"})", 400, ""},
      {"/detokenize", R"({"tokens":[999]})", 400, "token ids from 0 to 256"},
      {"/v1/images", "{}", 404, "there is no /v1/images"},
  };
  for (const auto& row : rows) {
    const auto r = server_->ask("POST", row.path, row.body);
    EXPECT_EQ(r.status, row.status) << row.body << "\n" << r.body;
    EXPECT_NE(r.body.find(row.says), std::string::npos) << row.body << "\n" << r.body;
    EXPECT_TRUE(r.json()["error"]["message"].is_string()) << r.body;
    EXPECT_EQ(r.body.find("[io]"), std::string::npos) << r.body;
  }
  EXPECT_EQ(post(completions, json::parse(R"({"prompt":"a","max_tokens":1,"suffix":null,"functions":null})"))["object"],
            "text_completion")
      << "null counts as absent";
  EXPECT_EQ(server_->ask("GET", completions).status, 405);
  EXPECT_EQ(server_->ask("POST", "/metrics").status, 405);
  EXPECT_EQ(server_->ask("GET", "/nothing").status, 404);
  EXPECT_TRUE(server_->wait_until_idle());
}

}  // namespace
}  // namespace hpcdl::serve
