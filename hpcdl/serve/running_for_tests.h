#pragma once
// A server in this process, on a free port.

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <sstream>
#include <thread>

#include "hpcdl/io/temp_folder.h"
#include "hpcdl/serve/client_for_tests.h"
#include "hpcdl/serve/model_for_tests.h"
#include "hpcdl/serve/server.h"

namespace hpcdl::serve {

class RunningServer {
 public:
  static const std::filesystem::path& model_folder() {
    static const io::TempFolder folder;
    static const bool written = (write_test_model(folder / "tiny"), true);
    static const std::filesystem::path path = written ? folder / "tiny" : "";
    return path;
  }
  static ServerConfig config() {
    ServerConfig c;
    c.engine.model = model_folder().string(), c.engine.threads = 2, c.engine.batch = 8;
    c.engine.budget = 512, c.engine.kv_memory = "64M";
    c.serve.port = 0, c.serve.drain = 60;
    c.sampling.temperature = 0;
    return c;
  }

  explicit RunningServer(const ServerConfig& c = config(), const HttpLimits& limits = {})
      : server_(c, {.ready = [this](const Server&) { loaded_.set_value(); }}, limits),
        thread_([this] { server_.run(); }) {
    loaded_.get_future().get();
  }
  ~RunningServer() { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    server_.drain();
    thread_.join();
  }
  Server& server() { return server_; }
  int port() const {
    const auto a = server_.address();
    return std::stoi(a.substr(a.rfind(':') + 1));
  }
  Response ask(std::string_view method, std::string_view path, std::string_view body = "",
               std::string_view headers = "") const {
    return TestClient(port()).ask(method, path, body, headers);
  }
  /// The values of /metrics, without those that have labels.
  std::map<std::string, double> metrics() const {
    std::map<std::string, double> values;
    std::istringstream lines(ask("GET", "/metrics").body);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("hpcdl_") && line.find('{') == std::string::npos)
        values[line.substr(6, line.find(' ') - 6)] = std::stod(line.substr(line.find(' ')));
    return values;
  }
  /// Asks for the metrics until `holds` is true of them; false after 60 s.
  template <class F> bool wait_for(F holds) const {
    for (int i = 0; i < 6000; ++i) {
      if (holds(metrics())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  bool wait_until_idle() const {
    return wait_for([](auto m) { return m["texts_waiting"] + m["texts_running"] + m["kv_pages_used"] == 0; });
  }

 private:
  std::promise<void> loaded_;
  Server server_;
  std::thread thread_;
};

/// All routes still work, and nothing is left over.
inline void expect_unharmed(const RunningServer& server) {
  EXPECT_TRUE(server.wait_until_idle());
  const auto body = nlohmann::json{{"prompt", "a"}, {"max_tokens", 3}}.dump();
  EXPECT_EQ(server.ask("POST", "/v1/completions", body).status, 200);
  EXPECT_TRUE(server.wait_until_idle());
  auto m = server.metrics();
  EXPECT_EQ(m["kv_pages_free"] + m["kv_pages_cached"], m["kv_pages"]);
}

}  // namespace hpcdl::serve
