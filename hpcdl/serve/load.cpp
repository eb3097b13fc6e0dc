#include "hpcdl/serve/load.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>  // Asio 1.74 uses it without including it

#include <boost/asio.hpp>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/serve/fields.h"

namespace hpcdl::serve {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Failure = boost::system::error_code;

/// One request.
class Client : public std::enable_shared_from_this<Client> {
 public:
  Client(asio::io_context& io, tcp::endpoint server, std::string request, double timeout, Seen& seen)
      : socket_(io), deadline_(io), server_(std::move(server)), request_(std::move(request)), seen_(seen) {
    deadline_.expires_after(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout)));
  }

  void start() {
    begin_ = Clock::now();
    deadline_.async_wait([self = shared_from_this()](Failure failure) {
      if (!failure) self->end("the answer did not come in time");
    });
    socket_.async_connect(server_, [self = shared_from_this()](Failure failure) {
      if (failure) return self->end(failure.message());
      asio::async_write(self->socket_, asio::buffer(self->request_), [self](Failure f, std::size_t) {
        if (f) self->end(f.message());
        else self->read();
      });
    });
  }

 private:
  void read() {
    socket_.async_read_some(asio::buffer(block_), [self = shared_from_this()](Failure failure, std::size_t n) {
      if (failure) return self->end(failure.message());
      self->text_.append(self->block_.data(), n);
      if (self->take()) self->read();
    });
  }

  /// Events that have arrived whole; false after the last one.
  bool take() {
    constexpr std::string_view kData = "data: ";
    const std::string_view text = text_;
    if (!status_known_) {
      const auto end = text.find("\r\n\r\n");
      if (end == text.npos) return true;
      status_known_ = true;
      if (!text.starts_with("HTTP/1.1 200"))
        return end_with("the server answered " + text_.substr(0, text_.find('\r')));
      text_.erase(0, end);
    }
    for (std::size_t at; (at = text_.find(kData)) != std::string::npos;) {
      const auto end = text_.find("\n\n", at);
      if (end == std::string::npos) break;
      const auto data = text_.substr(at + kData.size(), end - at - kData.size());
      text_.erase(0, end);
      if (data == "[DONE]") return end_with("");
      const auto event = Json::parse(data, nullptr, false);
      if (event.is_discarded() || event.contains("error")) return end_with("the server sent " + data);
      if (event.contains("usage") && event["usage"].is_object())
        seen_.tokens = event["usage"].value("completion_tokens", std::int64_t{0});
      for (const auto& choice : event.value("choices", Json::array()))
        if (!choice.value("text", "").empty()) part();
    }
    return true;
  }
  void part() {
    const auto now = Clock::now();
    const auto since = [&](Clock::time_point t) { return std::chrono::duration<double>(now - t).count(); };
    if (seen_.first == 0) seen_.first = since(begin_);
    else seen_.gaps.push_back(since(last_));
    last_ = now;
  }
  bool end_with(const std::string& error) { return end(error), false; }
  void end(const std::string& error) {
    if (std::exchange(ended_, true)) return;
    seen_.error = error;
    seen_.whole = seconds_since(begin_);
    if (seen_.first == 0) seen_.first = seen_.whole;
    deadline_.cancel();
    Failure ignored;
    socket_.close(ignored);
  }

  tcp::socket socket_;
  asio::steady_timer deadline_;
  tcp::endpoint server_;
  std::string request_, text_;
  Seen& seen_;
  std::array<char, 16 << 10> block_;
  Clock::time_point begin_, last_;
  bool status_known_ = false, ended_ = false;
};

std::string request_of(const LoadOptions& o, std::mt19937_64& random) {
  std::uniform_int_distribution<std::int64_t> id(0, o.vocab - 1);
  auto prompt = Json::array();
  for (std::int64_t i = 0; i < o.input; ++i) prompt.push_back(id(random));
  const auto body = Json{{"prompt", prompt},   {"max_tokens", o.output}, {"temperature", 0},
                         {"ignore_eos", true}, {"stream", true},         {"stream_options", {{"include_usage", true}}}}
                        .dump();
  return fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n{}\r\n{}",
      o.host, o.port, body.size(), o.key.empty() ? "" : "Authorization: Bearer " + o.key + "\r\n", body);
}

}  // namespace

std::vector<Seen> run_load(const LoadOptions& o) {
  asio::io_context io{1};
  Failure failure;
  const auto found = tcp::resolver(io).resolve(o.host, std::to_string(o.port), failure);
  require(!failure && !found.empty(), "bench", "{}: no such address: {}", o.host, failure.message());
  std::vector<Seen> seen(static_cast<std::size_t>(o.requests));
  std::mt19937_64 random(o.seed);
  std::exponential_distribution<double> gap(o.rate > 0 ? o.rate : 1);
  double at = 0;
  for (auto& s : seen) {
    const auto client = std::make_shared<Client>(io, found.begin()->endpoint(), request_of(o, random), o.timeout, s);
    const auto timer = std::make_shared<asio::steady_timer>(
        io, std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at)));
    timer->async_wait([client, timer](Failure) { client->start(); });
    if (o.rate > 0) at += gap(random);
  }
  io.run();
  return seen;
}

void read_url(const std::string& url, LoadOptions& to) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&] { fail_usage("bench", "--url: expected http://HOST:PORT, found \"{}\"", url); };
  if (!url.starts_with(kScheme)) wrong();
  auto place = url.substr(kScheme.size());
  if (place.ends_with('/')) place.pop_back();
  const auto colon = place.rfind(':');
  if (colon == std::string::npos || colon == 0) wrong();
  const auto* const end = place.data() + place.size();
  const auto [last, error] = std::from_chars(place.data() + colon + 1, end, to.port);
  if (error != std::errc() || last != end || to.port < 1 || to.port > 65535) wrong();
  to.host = place.substr(0, colon);
  if (to.host.starts_with('[') && to.host.ends_with(']')) to.host = to.host.substr(1, to.host.size() - 2);
}

}  // namespace hpcdl::serve
