#pragma once
// A client that can do everything wrong: it sends bytes and reads bytes.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::serve {

struct Response {
  int status = 0;  // 0: the connection ended without one
  std::string head, body;
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

class TestClient {
 public:
  /// `window`: bytes that the system keeps for this client to read; 0: as usual.
  explicit TestClient(int port, int window = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (window > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &window, sizeof window);
    sockaddr_in at{};
    at.sin_family = AF_INET, at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(connect(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0, "test", "cannot connect to port {}", port);
  }
  TestClient(const TestClient&) = delete;
  ~TestClient() { leave(); }
  void leave() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  /// No more bytes follow.
  void send_end() { shutdown(fd_, SHUT_WR); }
  static std::string request(std::string_view method, std::string_view path, std::string_view body = "",
                             std::string_view headers = "") {
    return fmt::format("{} {} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n{}\r\n{}", method, path, body.size(),
                       headers, body);
  }
  Response ask(std::string_view method, std::string_view path, std::string_view body = "",
               std::string_view headers = "") {
    send(request(method, path, body, headers));
    return read();
  }

  /// Reads until the bytes contain `text`; false if the connection ends first.
  bool read_until(std::string_view text) {
    while (in_.find(text) == std::string::npos)
      if (!more()) return false;
    return true;
  }
  /// One whole response.
  Response read() {
    if (!read_until("\r\n\r\n")) return {};
    Response r;
    const auto end = in_.find("\r\n\r\n") + 4;
    r.head = take(end);
    r.status = std::stoi(r.head.substr(9, 3));
    if (r.status == 100) return read();
    const auto length = r.head.find("Content-Length: ");
    if (length != std::string::npos) {
      const auto size = std::stoul(r.head.substr(length + 16));
      while (in_.size() < size)
        if (!more()) return {};
      r.body = take(size);
      return r;
    }
    if (r.head.find("chunked") == std::string::npos) {
      while (more()) {}
      r.body = take(in_.size());
      return r;
    }
    for (std::size_t size = 1; size > 0;) {
      if (!read_until("\r\n")) return {};
      const auto line = take(in_.find("\r\n") + 2);
      size = std::stoul(line, nullptr, 16);
      while (in_.size() < size + 2)
        if (!more()) return {};
      r.body += take(size);
      take(2);
    }
    return r;
  }
  /// False at the end of the connection, or when nothing has come for 60 s.
  bool more() {
    pollfd p{fd_, POLLIN, 0};
    if (poll(&p, 1, 60'000) <= 0) return false;
    char block[4096];
    const auto n = recv(fd_, block, sizeof block, 0);
    if (n > 0) in_.append(block, static_cast<std::size_t>(n));
    return n > 0;
  }

 private:
  std::string take(std::size_t n) {
    auto out = in_.substr(0, n);
    in_.erase(0, n);
    return out;
  }
  int fd_;
  std::string in_;
};

/// The data of the events of a stream, without the last one, "[DONE]"; empty if that one is missing.
inline std::vector<nlohmann::json> events_of(const std::string& body) {
  std::vector<nlohmann::json> list;
  for (std::size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
    const auto end = body.find("\n\n", at), from = at + 6;
    if (end == std::string::npos) return {};
    const auto data = body.substr(from, end - from);
    if (data == "[DONE]") return list;
    list.push_back(nlohmann::json::parse(data));
    at = end;
  }
  return {};
}

}  // namespace hpcdl::serve
