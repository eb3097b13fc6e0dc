#pragma once
// HTTP/1.1 on one thread: connections with limits on time and memory, whole answers and streams of events.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace hpcdl::serve {

struct HttpLimits {
  std::size_t header_bytes = 16 << 10, body_bytes = 32 << 20;
  std::size_t unread_bytes = 1 << 20;   // of a stream; a client that leaves more unread is disconnected
  std::size_t ahead_bytes = 256 << 10;  // of further requests that a client sends before it has the answer
  std::size_t connections = 4096;
  std::chrono::milliseconds header_time{10'000};  // from its first byte to the end of the header
  std::chrono::milliseconds body_time{120'000};   // for the whole body
  std::chrono::milliseconds write_time{60'000};   // for what is sent at a time
  std::chrono::milliseconds idle_time{75'000};    // between two requests of a connection
};

struct HttpRequest {
  std::string method, path, authorization, body;  // the path without the query
};

/// A request that waits for its answer. All calls are made on the thread of the server; after the answer is complete, or
/// the client has left, they do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// The whole answer. `headers`: further lines, each with its "\r\n".
  virtual void answer(int status, std::string_view type, std::string_view body, std::string_view headers = "") = 0;
  /// Begins a stream of server-sent events, with status 200.
  virtual void start_events() = 0;
  virtual void event(std::string_view data) = 0;
  virtual void end_events() = 0;
  /// False after the answer is complete, or the client has left.
  virtual bool waits() const = 0;
  /// Called once if the client leaves, or is disconnected, before the answer is complete.
  std::function<void()> on_gone;
};

struct HttpState;

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, std::shared_ptr<Exchange>)>;

  /// Listens from now on; `host` is a numeric address or a name, port 0 means a free one. Throws Error if it cannot.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler);
  ~HttpServer();

  /// "127.0.0.1:8080", with the port that was found.
  const std::string& address() const;
  /// Serves on this thread until stop(). Throws what a posted function or the handler throws.
  void run();
  /// Calls f on the thread of the server. May be called from any thread.
  void post(std::function<void()> f);
  /// Calls f on a thread for long work, and what it returns on the thread of the server.
  void in_background(std::function<std::function<void()>()> f);
  void after(std::chrono::milliseconds time, std::function<void()> f);
  /// SIGTERM and SIGINT call f instead of ending the process; the second signal ends it.
  void on_stop_signal(std::function<void()> f);
  /// On the thread of the server: accepts nobody any more; run() returns when all answers have been sent, or after two
  /// seconds.
  void stop();
  std::size_t connections() const;

 private:
  std::unique_ptr<HttpState> state_;
};

}  // namespace hpcdl::serve
