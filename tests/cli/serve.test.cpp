// hpcdl serve, chat and bench serve as users run them.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <regex>
#include <sstream>
#include <thread>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/serve/client_for_tests.h"
#include "hpcdl/serve/model_for_tests.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

using serve::TestClient;

class Serve : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<io::TempFolder>();
    serve::write_test_model(*folder_ / "tiny");
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string model() { return (*folder_ / "tiny").string(); }
  static std::vector<std::string> words(const std::vector<std::string>& more = {}) {
    std::vector<std::string> list = {"serve", "--model", model(), "--port", "0", "--kv-memory", "64M"};
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }
  /// The first line that it prints; empty if it ends before.
  static io::Json first_line(const Program& p) {
    for (int i = 0; i < 6000; ++i) {
      const auto out = p.printed();
      if (out.find('\n') != std::string::npos) return io::parse_json(out.substr(0, out.find('\n')), "the first line");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << p.said();
    return {};
  }
  static int port_of(const io::Json& line) {
    const auto at = line["listening"].get<std::string>();
    return std::stoi(at.substr(at.rfind(':') + 1));
  }
  static inline std::unique_ptr<io::TempFolder> folder_;
};

TEST_F(Serve, says_where_it_listens_and_drains_after_sigterm) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Program server(words());
    const auto line = first_line(server);
    EXPECT_EQ(line["model"], "tiny");
    EXPECT_EQ(line["context"], serve::kTestContext);
    EXPECT_GT(line["pages"], 0);
    TestClient client(port_of(line));
    const std::string body = R"({"prompt":"Once","max_tokens":3000,"ignore_eos":true,"stream":true})";
    client.send(TestClient::request("POST", "/v1/completions", body));
    EXPECT_TRUE(client.read_until("data: "));
    kill(server.pid(), signal);
    EXPECT_TRUE(client.read_until("data: [DONE]")) << "the text was not finished";
    const auto r = server.wait();
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.json()["listening"], line["listening"]) << "one line and no more";
  }
}

TEST_F(Serve, the_second_signal_ends_it) {
  Program server(words({"--drain", "1h", "--batch", "1"}));
  TestClient client(port_of(first_line(server)));
  client.send(TestClient::request("POST", "/v1/completions",
                                  R"({"prompt":"Once","max_tokens":4000,"ignore_eos":true,"n":64,"stream":true})"));
  EXPECT_TRUE(client.read_until("data: "));
  kill(server.pid(), SIGTERM);
  for (int status = 200; status == 200;) status = TestClient(port_of(first_line(server))).ask("GET", "/health").status;
  kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait().code, 128 + SIGTERM);
}

TEST_F(Serve, options_come_from_files_variables_and_words) {
  io::write_file_atomic(*folder_ / "serve.toml", "[serve]\nport = 0\nqueue = 5\n[engine]\nmodel = \"" + model() +
                                                     "\"\nbatch = 3\n[sampling]\ntop_k = 7\n");
  setenv("HPCDL_SERVE_QUEUE", "6", 1), setenv("HPCDL_ENGINE_CONTEXT", "128", 1);
  const auto file = (*folder_ / "serve.toml").string();
  const auto r = run({"serve", "-c", file, "--batch", "4", "--sampling.min_p=0.5", "--print-config"});
  EXPECT_EQ(r.code, 0) << r.err;
  for (const char* part : {"queue = 6", "batch = 4", "top_k = 7", "min_p = 0.5", "context = 128", "HPCDL_SERVE_QUEUE"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << " is not in\n" << r.out;
  Program server({"serve", "-c", file});
  const auto line = first_line(server);
  EXPECT_EQ(line["context"], 128);
  EXPECT_EQ(line["pages"], 6) << "three texts of 128 tokens";
  kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
  unsetenv("HPCDL_SERVE_QUEUE"), unsetenv("HPCDL_ENGINE_CONTEXT");
}

TEST_F(Serve, the_folder_says_what_nobody_else_says) {
  const auto config = std::filesystem::path(model()) / "generation_config.json";
  io::write_file_atomic(config, R"({"do_sample": true, "temperature": 0.5, "top_k": 9, "max_new_tokens": 3,
                                    "no_repeat_ngram_size": 2})");
  const auto lines = [&](const std::vector<std::string>& w, const std::vector<std::string>& parts) {
    const auto r = run(w);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.err.find("no_repeat_ngram_size is not supported"), std::string::npos) << r.err;
    for (const auto& part : parts)
      EXPECT_TRUE(std::regex_search(r.out, std::regex(part))) << part << " is not in\n" << r.out;
  };
  const std::string of_file = " +# .*generation_config.json\n";
  lines(words({"--top-k", "4", "--print-config"}), {"temperature = 0.5" + of_file, "top_k = 4 +# --sampling.top_k",
                                                    "max_tokens = 3" + of_file, "top_p = 1.0 +# default"});
  lines({"generate", "--model", model(), "--top-k", "4", "--print-config"},
        {"temperature = 0.5" + of_file, "top_k = 4 +# --top-k", "top_p = 1 +# default"});
  lines({"chat", "--model", model(), "--temperature", "0", "--print-config"}, {"temperature = 0 +# --temperature"});
  const auto generated = [&](const std::vector<std::string>& more) {
    std::vector<std::string> w{"generate", "--model", model(), "--prompt", "Once", "--ignore-eos", "--json"};
    w.insert(w.end(), more.begin(), more.end());
    return run(w).json()["token_ids"];
  };
  const auto by_file = generated({"--seed", "5"}), greedy = generated({"--temperature", "0"});
  EXPECT_EQ(by_file.size(), 3u);
  io::write_file_atomic(config, R"({"do_sample": false, "temperature": 0.5})");
  EXPECT_EQ(generated({"--tokens", "3"}), greedy);
  std::filesystem::remove(config);
  EXPECT_EQ(generated({"--tokens", "3"}), greedy);
  EXPECT_EQ(generated({"--tokens", "3", "--temperature", "0.5", "--top-k", "9", "--seed", "5"}), by_file);
  EXPECT_EQ(generated({}).size(), 100u);
}

TEST_F(Serve, verbs_compute_in_the_type_that_is_asked_for) {
  const std::string text = (*folder_ / "text.txt").string();
  io::write_file_atomic(text, std::string(300, 'a') + " few words");
  const auto loss = [&](const std::string& dtype) {
    const auto r = run({"eval", "--model", model(), "--text", text, "--dtype", dtype, "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err.find("weights converted to") != std::string::npos, dtype == "bf16" || dtype == "f16") << r.err;
    return r.json()["loss"].get<double>();
  };
  const double exact = loss("f32");
  EXPECT_EQ(loss("auto"), exact);
  EXPECT_NE(loss("bf16"), exact);
  EXPECT_NEAR(loss("bf16"), exact, 0.1);
  EXPECT_NEAR(loss("f16"), exact, 0.02);
  const auto tokens = [&](const std::string& dtype) {
    const auto r =
        run({"generate", "--model", model(), "--prompt", "Once", "--tokens", "9", "--dtype", dtype, "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.json()["token_ids"];
  };
  EXPECT_EQ(tokens("f32"), tokens("auto"));
  EXPECT_FALSE(tokens("bf16").empty());
  Program server(words({"--dtype", "bf16"}));
  EXPECT_EQ(first_line(server)["model"], "tiny");
  EXPECT_NE(server.said().find("weights converted to BF16"), std::string::npos) << server.said();
  kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
}

TEST_F(Serve, an_encoder_embeds) {
  const std::string folder = std::string(HPCDL_SOURCE_DIR) + "/hpcdl/models/golden/bert";
  const auto vectors = [](const std::string& lines) {
    std::vector<std::vector<float>> list;
    for (std::size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) {
      const auto line = io::parse_json(lines.substr(at, lines.find('\n', at) - at), "a line");
      EXPECT_EQ(line["index"], list.size());
      list.push_back(line["embedding"]);
    }
    return list;
  };
  const auto embed = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"embed", "--model", folder});
    return run(more);
  };
  const auto direct = embed({"The fox sees!", "a"});
  ASSERT_EQ(direct.code, 0) << direct.err;
  const auto want = vectors(direct.out);
  ASSERT_EQ(want.size(), 2u);
  ASSERT_EQ(want[0].size(), 24u);
  const auto in = (*folder_ / "texts.jsonl").string(), out = (*folder_ / "vectors.jsonl").string();
  io::write_file_atomic(in, "{\"text\": \"The fox sees!\"}\n\n\"a\"\n");
  const auto r = embed({"--input", in, "--out", out, "--json"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.json()["tokens"], 9);
  EXPECT_EQ(vectors(io::read_file(out)), want);
  EXPECT_EQ(vectors(embed({"a", "--dimensions", "5"}).out)[0].size(), 5u);
  const auto error = [&](const std::vector<std::string>& more, int code, const std::string& says) {
    const auto failed = embed(more);
    EXPECT_EQ(failed.code, code) << failed.err;
    EXPECT_NE(failed.err.find(says), std::string::npos) << failed.err;
    EXPECT_EQ(failed.out, "");
  };
  error({}, 2, "give either texts, or --input");
  error({"a", "--dimensions", "25"}, 2, "expected 1 to 24");
  error({"a", "--json"}, 2, "give --out");
  std::string longer;
  for (int i = 0; i < 100; ++i) longer += "fox ";
  error({longer}, 70, "102 tokens, and the model takes 40");
  EXPECT_EQ(embed({longer, "--truncate"}).code, 0);
  io::write_file_atomic(in, "{\"text\": \"a\"}\n{\"txt\": 1}\n");
  error({"--input", in}, 70, "line 2");
  Program server({"serve", "--model", folder, "--port", "0"});
  const auto line = first_line(server);
  EXPECT_EQ(line["context"], 40);
  EXPECT_EQ(line["pages"], 0);
  const auto answer = TestClient(port_of(line)).ask("POST", "/v1/embeddings", R"({"input": ["a", "The fox sees!"]})");
  EXPECT_EQ(answer.json()["data"].size(), 2u) << answer.body;
  kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
}

TEST_F(Serve, wrong_options_are_named) {
  const auto expect = [](const std::vector<std::string>& w, int code, const std::string& says) {
    const auto r = run(w);
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_NE(r.err.find(says), std::string::npos) << r.err;
    EXPECT_EQ(r.out, "");
  };
  expect({"serve"}, 2, "--model");
  expect({"serve", "--model", model(), "--port", "70000"}, 2, "65535");
  expect(words({"--quene", "3"}), 2, "--queue");
  expect(words({"--serve.prot=1"}), 2, "serve.port");
  expect(words({"--context", "100000"}), 2, "4096");
  expect(words({"--budget", "100"}), 2, "budget");
  expect({"serve", "--model", model(), "--port", "0", "--kv-memory", "much"}, 2, "auto or a size");
  expect({"serve", "--model", model(), "--port", "0", "--kv", "int8"}, 2, "kv: expected auto, bf16, f32, f16, i8, f8");
  expect(words({"--kv-window", "4096"}), 2, "kv-window 4096");
  expect(words({"--kv-sink", "4"}), 2, "give kv-window, too");
  expect({"serve", "--model", model(), "--port", "0", "--kv-memory", "1K"}, 70, "--kv-memory");
  expect(words({"--host", "no.such.host.invalid"}), 70, "no such address");
  expect({"serve", "--model", "/nonexistent", "--port", "0"}, 70, "/nonexistent");
  Program first(words());
  const auto port = std::to_string(port_of(first_line(first)));
  expect({"serve", "--model", model(), "--port", port}, 70, "choose another");
  kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.wait().code, 0);
}

TEST_F(Serve, the_documented_client_prints_what_generate_prints) {
  Program server(words({"--temperature", "0"}));
  const auto port = std::to_string(port_of(first_line(server)));
  const auto out = (*folder_ / "client.out").string();
  EXPECT_EQ(std::system(("'" HPCDL_CLIENT "' 127.0.0.1 " + port + " 'Once upon a time' >'" + out + "'").c_str()), 0);
  const auto want = run({"generate", "--model", model(), "--prompt", "Once upon a time", "--tokens", "64", "--json"});
  EXPECT_EQ(io::read_file(out), want.json()["text"].get<std::string>() + "\n");
  const auto bench = run({"bench", "serve", "--url", "http://127.0.0.1:" + port, "--rate", "100", "--requests", "12",
                          "--input", "20", "--output", "8", "--slo-ttft", "60000", "--json"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(bench.json()["failed"], 0);
  EXPECT_EQ(bench.json()["goodput"]["requests"], 12);
  EXPECT_GT(bench.json()["first_token_ms"]["p50"], 0);
  kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
}

/// The part of docs/serving.md between two texts, for a server on another port.
std::string documented(const std::string& from, const std::string& to, const std::string& port) {
  const auto page = io::read_file(std::string(HPCDL_SOURCE_DIR) + "/docs/serving.md");
  const auto begin = page.find(from) + from.size();
  return std::regex_replace(page.substr(begin, page.find(to, begin) - begin), std::regex("8080"), port);
}

TEST_F(Serve, the_documented_calls_of_curl_are_answered) {
  if (std::system("curl --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no curl";
  Program server(words({"--temperature", "0"}));
  const auto port = std::to_string(port_of(first_line(server)));
  const auto calls = documented("With curl:\n", "With the Python", port);
  io::write_file_atomic(*folder_ / "calls.sh", "set -e\n" + calls);
  const auto out = (*folder_ / "calls.out").string();
  EXPECT_EQ(std::system(fmt::format("sh '{}' >'{}' 2>/dev/null", (*folder_ / "calls.sh").string(), out).c_str()), 0);
  const auto answers = io::read_file(out);
  EXPECT_NE(answers.find("\"text_completion\""), std::string::npos) << answers;
  EXPECT_TRUE(answers.ends_with("data: [DONE]\n\n")) << answers;
}

TEST_F(Serve, the_documented_client_in_python_is_answered) {
  const auto python = io::find_python("openai");
  if (!python) GTEST_SKIP() << "no Python with openai: pip install openai, and set HPCDL_PYTHON";
  Program server(words({"--temperature", "0"}));
  const int port = port_of(first_line(server));
  bool ok = false;
  const auto printed = io::run_python(
      *python,
      "import sys; sys.stdout.reconfigure(encoding='utf-8')\n" + documented("```python\n", "```", std::to_string(port)),
      "", ok);
  EXPECT_TRUE(ok) << printed;
  const auto r = TestClient(port).ask("POST", "/v1/chat/completions",
                                      R"({"messages": [{"role": "user", "content": "Tell me a joke."}], "top_k": 40})");
  EXPECT_EQ(printed, r.json()["choices"][0]["message"]["content"].get<std::string>());
}

TEST_F(Serve, bench_serve_has_a_server_of_its_own) {
  const auto r = run({"bench", "serve", "--model", model(), "--rate", "0", "--requests", "6", "--input", "30",
                      "--output", "10", "--batch", "4", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = r.json();
  EXPECT_EQ(j["failed"], 0);
  EXPECT_NEAR(j["tokens_per_second"].get<double>() * j["seconds"].get<double>(), 60, 1e-3);
  EXPECT_EQ(run({"bench", "serve"}).code, 2);
  EXPECT_EQ(run({"bench", "serve", "--url", "ftp://x"}).code, 2);
  EXPECT_EQ(run({"bench", "serve", "--url", "http://127.0.0.1:1", "--requests", "1"}).code, 70);
}

TEST_F(Serve, chat_answers_the_lines_of_its_input) {
  io::write_file_atomic(*folder_ / "in", "hello\nand then?\n");
  const std::vector<std::string> w = {"chat", "--model", model(), "--temperature", "0", "--tokens", "12"};
  const auto r = run(w, (*folder_ / "in").string());
  ASSERT_EQ(r.code, 0) << r.err;
  const auto prompt = [&](const std::string& text) {
    io::write_file_atomic(*folder_ / "prompt", text);  // the answer may hold bytes that arguments cannot
    return run({"generate", "--model", model(), "--prompt-file", *folder_ / "prompt", "--tokens", "12", "--json"})
        .json()["text"]
        .get<std::string>();
  };
  const auto first = prompt("<user>hello\n<assistant>");
  const auto second = prompt("<user>hello\n<assistant>" + first + "\n<user>and then?\n<assistant>");
  EXPECT_EQ(r.out, first + "\n" + second + "\n");
  const auto once = run({"generate", "--model", model(), "--chat", "--prompt", "hello", "--tokens", "12", "--json"});
  EXPECT_EQ(once.json()["text"], first);
}

TEST_F(Serve, generate_has_the_options_of_sampling) {
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> w = {"generate", "--model", model(), "--prompt", "Once", "--tokens", "40", "--json"};
    w.insert(w.end(), more.begin(), more.end());
    const auto r = run(w);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.json();
  };
  const auto all = text({});
  const auto ids = all["token_ids"].get<std::vector<int>>();
  ASSERT_GT(ids.size(), 4u);
  const auto banned = text({"--ban-ids", std::to_string(ids[0])});
  EXPECT_NE(banned["token_ids"][0], ids[0]);
  EXPECT_EQ(text({"--stop-ids", std::to_string(ids[1])})["token_ids"].size(), ids[0] == ids[1] ? 1u : 2u);
  EXPECT_EQ(text({"--logit-bias", "65:100"})["token_ids"][3], 65);
  EXPECT_NE(text({"--repetition-penalty", "1.8"})["token_ids"], all["token_ids"]);
  const auto whole = text({"--logit-bias", "65:100", "--ignore-eos"})["text"].get<std::string>();
  EXPECT_EQ(whole, std::string(40, whole[0]));
  EXPECT_EQ(text({"--logit-bias", "65:100", "--stop", whole.substr(0, 2)})["text"], "");
  EXPECT_EQ(text({"--regex", "ab{3}c"})["text"], "abbbc");
  io::write_file_atomic(*folder_ / "schema.json", R"({"const": [1, "two"]})");
  EXPECT_EQ(io::parse_json(text({"--schema", *folder_ / "schema.json"})["text"].get<std::string>(), "a text"),
            io::parse_json(R"([1, "two"])", "a text"));
  io::write_file_atomic(*folder_ / "form.gbnf", "root ::= \"x\" [0-9] \"y\"");
  EXPECT_EQ(text({"--grammar", *folder_ / "form.gbnf"})["text"].get<std::string>().size(), 3u);
  EXPECT_EQ(run({"generate", "--model", model(), "--regex", "a", "--schema", "b"}).code, 2);
  EXPECT_EQ(run({"generate", "--model", model(), "--regex", "a", "--ignore-eos"}).code, 2);
  const auto wrong = run({"generate", "--model", model(), "--prompt", "a", "--logit-bias", "65=1"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("ID:NUMBER"), std::string::npos) << wrong.err;
}

/// A process of its own gives the same bits, and texts of one prompt are those of the seeds that follow each other.
TEST_F(Serve, generate_gives_several_texts_and_their_logprobs) {
  const auto generated = [&](const std::vector<std::string>& more) {
    std::vector<std::string> w = {"generate", "--model", model(),       "--prompt",      "Once", "--tokens",
                                  "6",        "--json",  "--invariant", "--temperature", "1",    "--ignore-eos"};
    w.insert(w.end(), more.begin(), more.end());
    const auto r = run(w);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.json();
  };
  const auto all = generated({"--n", "3", "--seed", "7", "--logprobs", "2", "--prompt-logprobs", "0"});
  ASSERT_EQ(all["texts"].size(), 3u);
  EXPECT_EQ(all["texts"][0]["token_ids"], all["token_ids"]);
  EXPECT_EQ(all["prompt_logprobs"].size(), all["prompt_ids"].size() - 1);
  const auto last = generated({"--seed", "9", "--logprobs", "2", "--prompt-logprobs", "0"});
  EXPECT_FALSE(last.contains("texts"));
  EXPECT_EQ(all["texts"][2]["token_ids"], last["token_ids"]);
  EXPECT_EQ(all["texts"][2]["logprobs"], last["logprobs"]);
  EXPECT_EQ(all["prompt_logprobs"], last["prompt_logprobs"]);
  ASSERT_EQ(last["logprobs"].size(), 6u);
  EXPECT_EQ(last["logprobs"][5]["id"], last["token_ids"][5]);
  EXPECT_EQ(last["logprobs"][5]["top"].size(), 2u);
  EXPECT_FALSE(generated({"--seed", "9"}).contains("logprobs"));
  for (const auto& id : generated({"--allow-ids", "65,70"})["token_ids"]) EXPECT_TRUE(id == 65 || id == 70) << id;

  io::write_file_atomic(*folder_ / "lines.jsonl", "{\"prompt\": \"Once\"}\n{\"prompt\": \"Twice\", \"priority\": 3}\n");
  const std::string out = *folder_ / "lines_out.jsonl";
  const auto many = run({"generate", "--model", model(), "--prompts", *folder_ / "lines.jsonl", "--out", out,
                         "--tokens", "4", "--n", "2", "--logprobs", "0"});
  ASSERT_EQ(many.code, 0) << many.err;
  std::istringstream file(io::read_file(out));
  std::string line;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(std::getline(file, line)) << i;
    const auto one = io::parse_json(line, out);
    EXPECT_EQ(one["index"], i / 2);
    EXPECT_EQ(one["choice"], i % 2);
    EXPECT_EQ(one["logprobs"].size(), one["token_ids"].size());
  }
  EXPECT_FALSE(std::getline(file, line));
}

}  // namespace
}  // namespace hpcdl::cli_test
