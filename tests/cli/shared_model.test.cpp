// Verbs that continue texts on ranks that share the model, as users run them.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/serve/client_for_tests.h"
#include "hpcdl/serve/model_for_tests.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

using serve::TestClient;
using Words = std::vector<std::string>;

class SharedModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<io::TempFolder>();
    serve::write_test_model(*folder_ / "tiny");
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string model() { return (*folder_ / "tiny").string(); }
  static Words on_ranks(int n, const Words& verb) {
    Words list{"launch", "-n", std::to_string(n), "--plain", "--"};
    list.insert(list.end(), verb.begin(), verb.end());
    return list;
  }
  static std::string file(const std::string& name, const std::string& text) {
    io::write_file_atomic(*folder_ / name, text);
    return (*folder_ / name).string();
  }
  static Words serve_words(const Words& more = {}) {
    Words list{"serve", "--model", model(), "--port", "0", "--kv-memory", "64M"};
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }
  static int port_of(const Program& server) {
    for (int i = 0; i < 12000; ++i) {
      const auto out = server.printed();
      if (out.find('\n') != std::string::npos) {
        const auto at = io::parse_json(out.substr(0, out.find('\n')), "the first line")["listening"].get<std::string>();
        return std::stoi(at.substr(at.rfind(':') + 1));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << server.said();
    return 0;
  }
  /// The ranks of a launch, in their order.
  static std::vector<pid_t> ranks_of(pid_t launch) {
    std::ifstream in("/proc/" + std::to_string(launch) + "/task/" + std::to_string(launch) + "/children");
    std::vector<pid_t> list;
    for (pid_t pid; in >> pid;) list.push_back(pid);
    return list;
  }
  static inline std::unique_ptr<io::TempFolder> folder_;
};

TEST_F(SharedModel, generate_prints_the_text_of_one_rank) {
  const Words words{"generate", "--model",       model(), "--prompt", "Once upon", "--tokens",
                    "40",       "--temperature", "0.9",   "--seed",   "3",         "--json"};
  const auto one = run(words), two = run(on_ranks(2, words));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.json()["token_ids"], one.json()["token_ids"]);
  EXPECT_EQ(two.json()["text"], one.json()["text"]);
}

TEST_F(SharedModel, many_texts_chat_and_eval_give_what_one_rank_gives) {
  std::string lines;
  for (int i = 0; i < 9; ++i) lines += fmt::format("{{\"prompt\": \"Text {}\", \"tokens\": {}}}\n", i, 5 + 3 * i);
  const auto prompts = file("prompts.jsonl", lines), text = file("text.txt", std::string(3000, 'a') + "bcd\n");
  const Words many{"generate", "--model", model(), "--prompts", prompts, "--batch", "4", "--spec", "ngram"};
  const auto one = run(many), two = run(on_ranks(2, many));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);
  const Words chat{"chat", "--model", model(), "--tokens", "12", "--temperature", "0"};
  const auto messages = file("messages", "Hello\nMore\n");
  const auto talk = run(on_ranks(2, chat), messages);
  ASSERT_EQ(talk.code, 0) << talk.err;
  EXPECT_EQ(talk.out, run(chat, messages).out);
  for (const Words& more : {Words{}, Words{"--kv", "f32"}}) {
    Words eval{"eval", "--model", model(), "--text", text, "--json"};
    eval.insert(eval.end(), more.begin(), more.end());
    const auto shared = run(on_ranks(2, eval));
    ASSERT_EQ(shared.code, 0) << shared.err;
    const double want = run(eval).json()["loss"];
    EXPECT_NEAR(shared.json()["loss"].get<double>(), want, 1e-5 * want);
  }
}

TEST_F(SharedModel, a_server_answers_and_drains_on_all_ranks) {
  Program server(on_ranks(2, serve_words()));
  const auto port = port_of(server);
  const std::string body = R"({"prompt":"Once","max_tokens":30,"temperature":0,"ignore_eos":true})";
  const auto answer = TestClient(port).ask("POST", "/v1/completions", body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  {
    Program alone(serve_words());
    const auto same = TestClient(port_of(alone)).ask("POST", "/v1/completions", body);
    EXPECT_EQ(io::parse_json(answer.body, "")["choices"], io::parse_json(same.body, "")["choices"]);
    kill(alone.pid(), SIGTERM);
    EXPECT_EQ(alone.wait().code, 0);
  }
  TestClient client(port);
  client.send(TestClient::request("POST", "/v1/completions",
                                  R"({"prompt":"Once","max_tokens":400,"ignore_eos":true,"stream":true})"));
  EXPECT_TRUE(client.read_until("data: "));
  kill(server.pid(), SIGTERM);
  EXPECT_TRUE(client.read_until("data: [DONE]")) << "the text was not finished";
  const auto r = server.wait();
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST_F(SharedModel, a_server_ends_when_a_rank_is_lost) {
  for (const bool busy : {true, false}) {
    Program server(on_ranks(2, serve_words()));
    const auto port = port_of(server);
    TestClient streams(port), waits(port);
    if (busy) {
      const auto body = [](bool stream) {
        return io::Json{{"prompt", "Once"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", stream}}.dump();
      };
      waits.send(TestClient::request("POST", "/v1/completions", body(false)));
      streams.send(TestClient::request("POST", "/v1/completions", body(true)));
      EXPECT_TRUE(streams.read_until("data: "));
    }
    const auto ranks = ranks_of(server.pid());
    ASSERT_EQ(ranks.size(), 2u);
    kill(ranks[1], SIGKILL);
    if (busy) {
      const auto answer = waits.read();
      EXPECT_EQ(answer.status, 500);
      EXPECT_NE(answer.body.find("rank 1"), std::string::npos) << answer.body;
      EXPECT_TRUE(streams.read_until("error"));
    }
    const auto r = server.wait();
    EXPECT_EQ(r.code, 71) << r.err;
    EXPECT_NE(r.err.find("rank 1"), std::string::npos) << r.err;
  }
}

TEST_F(SharedModel, ranks_that_differ_and_models_that_do_not_fit_are_named) {
  const auto sh = [](const std::string& script) {
    return run({"launch", "-n", "2", "--program", "/bin/sh", "--", "-c", script});
  };
  const auto r =
      sh(fmt::format("exec {} generate --model {} --prompt a --tokens 2 --kv $([ $RANK = 0 ] && echo f32 || echo bf16)",
                     HPCDL_PROGRAM, model()));
  EXPECT_EQ(r.code, 2) << r.err;
  EXPECT_NE(r.err.find("--kv is f32 on rank 0 and bf16 on rank 1"), std::string::npos) << r.err;
  const auto three = run(on_ranks(3, {"generate", "--model", model(), "--prompt", "a", "--tokens", "2"}));
  EXPECT_EQ(three.code, 2) << three.err;
  EXPECT_NE(three.err.find("4 heads are not divisible by tp 3"), std::string::npos) << three.err;
}

TEST_F(SharedModel, decoding_and_serving_are_measured_on_ranks) {
  const auto config = file("config.json", io::read_file(std::filesystem::path(model()) / "config.json"));
  const auto decode = run(on_ranks(2, {"bench", "decode", "--config", config, "--batch", "1,3", "--depth", "0,70",
                                       "--tokens", "4", "--rounds", "1", "--json"}));
  ASSERT_EQ(decode.code, 0) << decode.err;
  EXPECT_EQ(decode.json()["ranks"], 2);
  EXPECT_EQ(decode.json()["rows"].size(), 4u);
  const auto serve = run(on_ranks(2, {"bench", "serve", "--model", model(), "--requests", "4", "--rate", "0", "--input",
                                      "8", "--output", "6", "--batch", "4", "--json"}));
  ASSERT_EQ(serve.code, 0) << serve.err;
  EXPECT_EQ(serve.json()["failed"], 0);
}

}  // namespace
}  // namespace hpcdl::cli_test
