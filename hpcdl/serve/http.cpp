#include "hpcdl/serve/http.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <utility>  // Asio 1.74 uses it without including it

#include <boost/asio.hpp>
#include <boost/beast/http.hpp>
#include <csignal>
#include <optional>
#include <unordered_set>

#include "hpcdl/core/error.h"
#include "hpcdl/serve/openai.h"

namespace hpcdl::serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Failure = boost::system::error_code;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLinger{2000};  // for a client to read the last answer of a connection

}  // namespace

class Connection;

class ExchangeOf final : public Exchange {
 public:
  explicit ExchangeOf(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  void answer(int status, std::string_view type, std::string_view body, std::string_view headers) override;
  void start_events() override;
  void event(std::string_view data) override;
  void end_events() override;
  bool waits() const override { return connection_ != nullptr; }
  /// Takes its connection away.
  std::shared_ptr<Connection> release() { return std::move(connection_); }

 private:
  std::shared_ptr<Connection> connection_;  // null: the answer is complete, or the client has left
};

struct HttpState {
  HttpState(const HttpLimits& l, HttpServer::Handler h) : limits(l), handler(std::move(h)) {}

  std::unordered_set<Connection*> connections;  // outlives the handlers in `io`, which own them
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer retry{io};
  asio::steady_timer last{io};  // when stopping
  asio::signal_set signals{io};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work{io.get_executor()};
  std::string address;
  HttpLimits limits;
  HttpServer::Handler handler;
  asio::thread_pool background{1};
  bool stopping = false;
  int signals_seen = 0;

  void listen(const std::string& host, int port);
  void accept();
  void stop();
  void wait_for_signal(std::function<void()> f);
};

/// Reads all the time, also while an answer is computed, so that it notices a client that leaves.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpState& server, tcp::socket socket)
      : server_(server), socket_(std::move(socket)), deadline_(server.io) {
    server_.connections.insert(this);
  }
  ~Connection() {
    server_.connections.erase(this);
    if (server_.stopping && server_.connections.empty()) server_.io.stop();
  }

  void start(bool refused) {
    Failure ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    if (refused) return refuse(503, "too many connections");
    expect(server_.limits.idle_time, [this] { disconnect(); });
    read();
  }
  void close_if_idle() {
    if (state_ == State::idle) disconnect();
  }
  void disconnect() {
    Failure ignored;
    state_ = State::closed;
    deadline_.cancel();
    socket_.close(ignored);
    if (const auto e = std::exchange(exchange_, nullptr)) {
      e->release();
      if (e->on_gone) std::exchange(e->on_gone, nullptr)();
    }
  }

  void send_answer(int status, std::string_view type, std::string_view body, std::string_view headers) {
    send(head(status, type, fmt::format("Content-Length: {}\r\n{}", body.size(), headers)) + std::string(body));
    complete();
  }
  void start_events() {
    chunked_ = version_ >= 11;
    keeps_ = keeps_ && chunked_;
    send(head(200, "text/event-stream",
              chunked_ ? "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n" : "Cache-Control: no-cache\r\n"));
  }
  void send_event(std::string_view data) {
    if (pending_.size() > server_.limits.unread_bytes) return disconnect();
    constexpr std::string_view kBefore = "data: ", kAfter = "\n\n";
    const auto size = kBefore.size() + data.size() + kAfter.size();
    send(chunked_ ? fmt::format("{:x}\r\n{}{}{}\r\n", size, kBefore, data, kAfter)
                  : fmt::format("{}{}{}", kBefore, data, kAfter));
  }
  void end_events() {
    if (chunked_) send("0\r\n\r\n");
    complete();
  }

 private:
  enum class State { idle, header, body, answering, lingering, closed };
  using Parser = http::request_parser<http::string_body>;

  std::string head(int status, std::string_view type, std::string_view headers) {
    keeps_ = keeps_ && !server_.stopping;
    const auto reason = http::obsolete_reason(static_cast<http::status>(status));
    return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nConnection: {}\r\n{}\r\n", status,
                       std::string_view(reason.data(), reason.size()), type, keeps_ ? "keep-alive" : "close", headers);
  }

  template <class F> void expect(milliseconds time, F&& otherwise) {
    deadline_.expires_after(time);
    deadline_.async_wait([self = shared_from_this(), otherwise](Failure failure) {
      if (!failure && self->state_ != State::closed) otherwise();
    });
  }

  void read() {
    if (reads_ || state_ == State::closed) return;
    if (state_ == State::answering && in_.size() > server_.limits.ahead_bytes) return disconnect();
    reads_ = true;
    socket_.async_read_some(asio::buffer(block_), [self = shared_from_this()](Failure failure, std::size_t bytes) {
      self->reads_ = false;
      if (self->state_ == State::closed) return;
      if (failure) return self->disconnect();
      self->take({self->block_.data(), bytes});
    });
  }

  void take(std::string_view bytes) {
    if (state_ < State::answering || (state_ == State::answering && keeps_)) in_.append(bytes);
    if (state_ < State::answering) parse();
    read();
  }

  void parse() {
    if (in_.empty()) return;
    if (state_ == State::idle) {
      state_ = State::header;
      parser_.emplace();
      parser_->header_limit(static_cast<std::uint32_t>(server_.limits.header_bytes));
      parser_->body_limit(server_.limits.body_bytes);
      parser_->eager(true);
      expect(server_.limits.header_time, [this] { refuse(408, "the header of the request did not arrive in time"); });
    }
    Failure failure;
    in_.erase(0, parser_->put(asio::buffer(in_), failure));
    if (failure && failure != http::error::need_more) return refuse(failure);
    if (parser_->is_done()) return dispatch();
    if (state_ == State::header && parser_->is_header_done()) {
      state_ = State::body;
      expect(server_.limits.body_time, [this] { refuse(408, "the body of the request did not arrive in time"); });
      if (boost::beast::iequals(parser_->get()[http::field::expect], "100-continue"))
        send("HTTP/1.1 100 Continue\r\n\r\n");
    }
  }

  void dispatch() {
    state_ = State::answering;
    deadline_.cancel();
    auto message = parser_->release();
    parser_.reset();
    version_ = message.version();
    keeps_ = message.keep_alive();
    const auto text = [](auto view) { return std::string(view.data(), view.size()); };
    auto path = text(message.target());
    path.resize(std::min(path.find('?'), path.size()));
    exchange_ = std::make_shared<ExchangeOf>(shared_from_this());
    server_.handler({.method = text(message.method_string()),
                     .path = std::move(path),
                     .authorization = text(message[http::field::authorization]),
                     .body = std::move(message.body())},
                    exchange_);
  }

  void refuse(const Failure& failure) {
    if (failure == http::error::body_limit)
      return refuse(413, fmt::format("the body has more than {} bytes", server_.limits.body_bytes));
    if (failure == http::error::header_limit)
      return refuse(431, fmt::format("the header has more than {} bytes", server_.limits.header_bytes));
    refuse(400, "this is no HTTP request: " + failure.message());
  }
  /// For requests that cannot be read to their end: the connection ends with the answer.
  void refuse(int status, std::string_view message) {
    state_ = State::answering;
    keeps_ = false;
    deadline_.cancel();
    send_answer(status, "application/json", error_body(status, message), "");
  }

  void send(std::string bytes) {
    pending_ += bytes;
    write();
  }
  void write() {
    if (!writing_.empty() || pending_.empty() || state_ == State::closed) return;
    std::swap(writing_, pending_);
    if (state_ != State::body) expect(server_.limits.write_time, [this] { disconnect(); });
    asio::async_write(socket_, asio::buffer(writing_), [self = shared_from_this()](Failure failure, std::size_t) {
      self->writing_.clear();
      if (self->state_ == State::closed) return;
      if (failure) return self->disconnect();
      if (self->state_ != State::body) self->deadline_.cancel();
      self->write();
      self->next();
    });
  }

  /// The answer is complete, but perhaps not sent yet.
  void complete() {
    complete_ = true;
    if (const auto e = std::exchange(exchange_, nullptr)) e->release(), e->on_gone = nullptr;
    next();
  }
  void next() {
    if (!complete_ || !writing_.empty() || state_ != State::answering) return;
    complete_ = false;
    if (!keeps_ || server_.stopping) return linger();
    state_ = State::idle;
    expect(server_.limits.idle_time, [this] { disconnect(); });
    parse();
    read();
  }
  /// Closing at once would destroy an answer that the client has not read.
  void linger() {
    Failure ignored;
    state_ = State::lingering;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    expect(kLinger, [this] { disconnect(); });
    read();
  }

  HttpState& server_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  State state_ = State::idle;
  std::array<char, 16 << 10> block_;
  std::string in_, writing_, pending_;
  std::optional<Parser> parser_;
  std::shared_ptr<ExchangeOf> exchange_;
  unsigned version_ = 11;
  bool reads_ = false, keeps_ = true, chunked_ = false, complete_ = false;
};

void ExchangeOf::answer(int status, std::string_view type, std::string_view body, std::string_view headers) {
  if (const auto c = connection_) c->send_answer(status, type, body, headers);
}
void ExchangeOf::start_events() {
  if (const auto c = connection_) c->start_events();
}
void ExchangeOf::event(std::string_view data) {
  if (const auto c = connection_) c->send_event(data);
}
void ExchangeOf::end_events() {
  if (const auto c = connection_) c->end_events();
}

namespace {

std::string shown(const tcp::endpoint& at) {
  const auto address = at.address().to_string();
  return at.address().is_v6() ? fmt::format("[{}]:{}", address, at.port()) : fmt::format("{}:{}", address, at.port());
}

}  // namespace

void HttpState::listen(const std::string& host, int port) {
  Failure failure;
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), tcp::resolver::numeric_service, failure);
  require(!failure && !found.empty(), "serve", "--host {}: no such address: {}", host, failure.message());
  const tcp::endpoint at = found.begin()->endpoint();
  acceptor.open(at.protocol(), failure);
  if (!failure) acceptor.set_option(tcp::acceptor::reuse_address(true), failure);
  if (!failure) acceptor.bind(at, failure);
  if (!failure) acceptor.listen(asio::socket_base::max_listen_connections, failure);
  require(!failure, "serve", "cannot listen on {}: {}; choose another --host or --port (0: a free one)", shown(at),
          failure.message());
  address = shown(acceptor.local_endpoint());
}

void HttpState::accept() {
  acceptor.async_accept([this](Failure failure, tcp::socket socket) {
    if (stopping) return;
    if (failure) {  // probably no descriptor is free
      retry.expires_after(milliseconds(100));
      return retry.async_wait([this](Failure) {
        if (!stopping) accept();
      });
    }
    const bool full = connections.size() >= limits.connections;
    std::make_shared<Connection>(*this, std::move(socket))->start(full);
    accept();
  });
}

void HttpState::stop() {
  if (std::exchange(stopping, true)) return;
  Failure ignored;
  acceptor.close(ignored);
  retry.cancel();
  signals.clear(ignored);
  for (auto* c : std::vector<Connection*>(connections.begin(), connections.end())) c->close_if_idle();
  work.reset();
  if (connections.empty()) return io.stop();
  last.expires_after(kLinger);
  last.async_wait([this](Failure) { io.stop(); });
}

void HttpState::wait_for_signal(std::function<void()> f) {
  signals.async_wait([this, f = std::move(f)](Failure failure, int signal) mutable {
    if (failure) return;
    if (signals_seen++ > 0) {
      std::signal(signal, SIG_DFL);
      std::raise(signal);
    }
    f();
    wait_for_signal(std::move(f));
  });
}

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler)
    : state_(std::make_unique<HttpState>(limits, std::move(handler))) {
  rlimit files{};
  constexpr rlim_t kOthers = 64;  // files of the model and of the process
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
    state_->limits.connections =
        std::clamp<std::size_t>(files.rlim_cur > kOthers ? files.rlim_cur - kOthers : 0, 1, limits.connections);
  state_->listen(host, port);
  state_->accept();
}
HttpServer::~HttpServer() {
  state_->background.join();
  state_->stopping = false;  // the loop has ended already, and no connection has to end it
  for (auto* c : std::vector<Connection*>(state_->connections.begin(), state_->connections.end())) c->disconnect();
}

const std::string& HttpServer::address() const { return state_->address; }
void HttpServer::run() { state_->io.run(); }
void HttpServer::post(std::function<void()> f) { asio::post(state_->io, std::move(f)); }
void HttpServer::in_background(std::function<std::function<void()>()> f) {
  asio::post(state_->background, [this, f = std::move(f)] { post(f()); });
}
void HttpServer::after(milliseconds time, std::function<void()> f) {
  auto timer = std::make_shared<asio::steady_timer>(state_->io, time);
  timer->async_wait([timer, f = std::move(f)](Failure failure) {
    if (!failure) f();
  });
}
void HttpServer::on_stop_signal(std::function<void()> f) {
  state_->signals.add(SIGTERM), state_->signals.add(SIGINT);
  state_->wait_for_signal(std::move(f));
}
void HttpServer::stop() { state_->stop(); }
std::size_t HttpServer::connections() const { return state_->connections.size(); }

}  // namespace hpcdl::serve
