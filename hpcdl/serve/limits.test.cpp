// What clients that leave, do not read, send too much or come too late do to a server: nothing to the others.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <random>

#include "hpcdl/io/file.h"
#include "hpcdl/serve/running_for_tests.h"

namespace hpcdl::serve {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kPath = "/v1/completions";

json long_text(bool stream) {
  return {{"prompt", "Once upon a time"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", stream}};
}

TEST(Limits, a_client_that_leaves_ends_its_text) {
  auto config = RunningServer::config();
  config.engine.batch = 1;
  const RunningServer server(config);
  for (const bool stream : {true, false}) {
    const auto before = server.metrics().at("new_tokens_total");
    TestClient decoding(server.port()), queued(server.port());
    decoding.send(TestClient::request("POST", kPath, long_text(stream).dump()));
    EXPECT_TRUE(server.wait_for([](auto m) { return m["texts_running"] == 1; }));
    queued.send(TestClient::request("POST", kPath, long_text(stream).dump()));
    EXPECT_TRUE(server.wait_for([](auto m) { return m["texts_waiting"] == 1; }));
    queued.leave();
    EXPECT_TRUE(server.wait_for([](auto m) { return m["texts_waiting"] == 0; }));
    decoding.leave();
    EXPECT_TRUE(server.wait_until_idle());
    EXPECT_LT(server.metrics().at("new_tokens_total") - before, 4000) << "the text was not ended";
  }
  // In prefill: the prompt is as long as the context.
  TestClient prefill(server.port());
  json body{{"prompt", std::string(4000, 'x')}, {"max_tokens", 90}, {"ignore_eos", true}};
  prefill.send(TestClient::request("POST", kPath, body.dump()));
  EXPECT_TRUE(server.wait_for([](auto m) { return m["texts_waiting"] + m["texts_running"] == 1; }));
  prefill.leave();
  EXPECT_TRUE(server.wait_until_idle());
  EXPECT_GE(server.metrics().at("cancelled_total"), 4);
  expect_unharmed(server);
}

TEST(Limits, a_client_that_does_not_read_is_cut_off) {
  const RunningServer server(RunningServer::config(), {.unread_bytes = 256 << 10});
  TestClient deaf(server.port(), 2048), other(server.port());
  auto body = long_text(true);
  body["n"] = 4, body["logprobs"] = 5;
  deaf.send(TestClient::request("POST", kPath, body.dump()));
  other.send(TestClient::request("POST", kPath, long_text(true).dump()));
  auto reading = std::async(std::launch::async, [&] { return other.read(); });
  EXPECT_TRUE(server.wait_for([](auto m) { return m["cancelled_total"] == 4; })) << "it was not cut off";
  const auto r = reading.get();
  EXPECT_TRUE(r.body.ends_with("data: [DONE]\n\n")) << "a text beside it goes on to its end";
  EXPECT_LT(server.metrics().at("new_tokens_total"), 4000 + 4 * 4000);
  while (deaf.more()) {}
  EXPECT_FALSE(deaf.read_until("[DONE]"));
  expect_unharmed(server);
}

TEST(Limits, requests_have_to_arrive) {
  const RunningServer server(RunningServer::config(), {.header_bytes = 2048,
                                                       .body_bytes = 4096,
                                                       .header_time = milliseconds(200),
                                                       .body_time = milliseconds(200),
                                                       .idle_time = milliseconds(1500)});
  TestClient slow_header(server.port()), slow_body(server.port()), silent(server.port());
  slow_header.send("GET /health HTTP/1.1\r\nHo");
  EXPECT_EQ(slow_header.read().status, 408);
  EXPECT_FALSE(slow_header.more());
  slow_body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"pro");
  EXPECT_EQ(slow_body.read().status, 408);
  EXPECT_FALSE(silent.more()) << "a connection without a request ends";

  const auto status = [&](const std::string& bytes) {
    TestClient client(server.port());
    client.send(bytes);
    const auto r = client.read();
    if (r.status != 200) {
      EXPECT_TRUE(r.json()["error"]["message"].is_string()) << r.body;
    }
    return r.status;
  };
  EXPECT_EQ(status(TestClient::request("POST", kPath, std::string(5000, ' '))), 413);
  EXPECT_EQ(
      status("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n" + std::string(0x2000, ' ')),
      413);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nA: " + std::string(4000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(status("hello\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/9.9\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nno colon\r\n\r\n"), 400);
  EXPECT_EQ(status(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(40, '\0')), 400)
      << "TLS";
  EXPECT_EQ(status("GET /health HTTP/1.1\r\n\r\n"), 200);
  expect_unharmed(server);
}

TEST(Limits, a_body_may_have_32_MiB) {
  const RunningServer server;
  TestClient client(server.port());
  client.send(fmt::format("POST {} HTTP/1.1\r\nContent-Length: {}\r\n\r\n", kPath, (32 << 20) + 1));
  EXPECT_EQ(client.read().status, 413);
}

TEST(Limits, a_full_queue_is_said) {
  auto config = RunningServer::config();
  config.engine.batch = 1, config.serve.queue = 1;
  const RunningServer server(config);
  TestClient a(server.port()), b(server.port());
  a.send(TestClient::request("POST", kPath, long_text(false).dump()));
  b.send(TestClient::request("POST", kPath, long_text(false).dump()));
  EXPECT_TRUE(server.wait_for([](auto m) { return m["texts_waiting"] + m["texts_running"] == 2; }));
  const auto r = server.ask("POST", kPath, long_text(false).dump());
  EXPECT_EQ(r.status, 429);
  EXPECT_NE(r.head.find("Retry-After: 1"), std::string::npos) << r.head;
  EXPECT_EQ(server.ask("GET", "/health").status, 200);
  a.leave(), b.leave();
  expect_unharmed(server);
}

TEST(Limits, a_key_is_asked_for) {
  const io::TempFolder folder;
  io::write_file_atomic(folder / "key", "secret-1\n");
  auto config = RunningServer::config();
  config.serve.api_key = folder / "key";
  const RunningServer server(config);
  EXPECT_EQ(server.ask("GET", "/health").status, 200) << "for load balancers";
  for (const std::string header : {"", "Authorization: Bearer secret-2\r\n", "Authorization: Bearer \r\n",
                                   "Authorization: secret-1\r\n", "Authorization: Bearer secret-11\r\n"})
    for (const char* path : {"/v1/models", "/metrics"}) {
      const auto r = server.ask("GET", path, "", header);
      EXPECT_EQ(r.status, 401) << header;
      EXPECT_NE(r.head.find("WWW-Authenticate: Bearer"), std::string::npos);
    }
  EXPECT_EQ(server.ask("GET", "/v1/models", "", "Authorization: Bearer secret-1\r\n").status, 200);
  io::write_file_atomic(folder / "key", "two words\n");
  EXPECT_THROW(Server{config}, Error);
}

TEST(Limits, draining_ends_what_runs_and_refuses_the_rest) {
  RunningServer server;
  TestClient running(server.port()), kept(server.port());
  EXPECT_EQ(kept.ask("GET", "/health").status, 200);
  auto body = long_text(true);
  body["max_tokens"] = 1500;
  running.send(TestClient::request("POST", kPath, body.dump()));
  EXPECT_TRUE(running.read_until("data: "));
  const auto port = server.port();
  server.server().drain();
  for (;;) {  // drain() is asynchronous
    const auto r = kept.ask("GET", "/health");
    if (r.status == 503) {
      EXPECT_EQ(r.json()["status"], "draining");
      break;
    }
    ASSERT_EQ(r.status, 200);
  }
  EXPECT_EQ(kept.ask("POST", kPath, json{{"prompt", "a"}}.dump()).status, 503);
  EXPECT_TRUE(running.read_until("data: [DONE]")) << "the text was not finished";
  server.stop();
  EXPECT_THROW(TestClient{port}, Error) << "it still listens";
}

TEST(Limits, draining_does_not_wait_for_ever) {
  auto config = RunningServer::config();
  config.serve.drain = 0.05;
  RunningServer server(config);
  TestClient running(server.port());
  auto body = long_text(false);
  body["n"] = 8;
  running.send(TestClient::request("POST", kPath, body.dump()));
  EXPECT_TRUE(server.wait_for([](auto m) { return m["texts_running"] > 0; }));
  server.stop();
  EXPECT_EQ(running.read().status, 503);
}

}  // namespace
}  // namespace hpcdl::serve
