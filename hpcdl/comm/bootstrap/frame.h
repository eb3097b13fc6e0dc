#pragma once
// What ranks and the store say to each other: frames of 12 bytes header (size, id, kind; little-endian) and a payload.

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "hpcdl/comm/bootstrap/socket.h"

namespace hpcdl::comm {

enum class FrameKind : std::uint8_t {
  hello,
  accepted,
  refused,
  welcome,
  set,
  get,
  add,
  gather,
  reply,
  late,
  message,
  lost,
  stop,
  bye
};

struct Frame {
  FrameKind kind = FrameKind::bye;
  std::uint32_t id = 0;  // of a request and its answer
  std::string payload;
};

/// Numbers and strings in a row.
class Packer {
 public:
  template <class T>
    requires std::is_arithmetic_v<T>
  Packer& operator<<(T x) {
    return text_.append(reinterpret_cast<const char*>(&x), sizeof x), *this;
  }
  Packer& operator<<(std::string_view s) { return *this << static_cast<std::uint32_t>(s.size()), text_ += s, *this; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// Throws Error where the text ends too early.
class Unpacker {
 public:
  explicit Unpacker(std::string_view text) : text_(text) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  T number() {
    T x;
    std::memcpy(&x, bytes(sizeof x).data(), sizeof x);
    return x;
  }
  std::string_view string() { return bytes(number<std::uint32_t>()); }
  std::string_view rest() { return bytes(text_.size()); }

 private:
  std::string_view bytes(std::size_t n) {
    require(n <= text_.size(), "dist", "a message of the store is cut short");
    const auto part = text_.substr(0, n);
    text_.remove_prefix(n);
    return part;
  }
  std::string_view text_;
};

/// One end of a connection. Not thread-safe.
class Connection {
 public:
  static constexpr std::size_t kLargest = 64 << 20;  // bytes of a payload

  explicit Connection(Socket socket) : socket_(std::move(socket)) {}
  const Socket& socket() const { return socket_; }

  /// Reads what has arrived. False when the peer has closed; what came before is still there for next().
  bool fill();
  /// The next whole frame. Throws Error when the peer does not speak this language.
  std::optional<Frame> next();
  void put(const Frame& frame);
  bool has_output() const { return sent_ < out_.size(); }
  /// Writes as much as goes now. False when the peer has closed.
  bool flush();

 private:
  Socket socket_;
  std::string in_, out_;
  std::size_t parsed_ = 0, sent_ = 0;
};

}  // namespace hpcdl::comm
