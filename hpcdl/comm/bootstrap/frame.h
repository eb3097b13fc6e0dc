#pragma once
// Messages between ranks and the store: frames of 12 bytes header (size, id, kind; little-endian) and a payload.

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
  challenge,
  introduction,
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
  over,
  bye
};

/// What happens to the values in a frame of kind gather.
enum class Together : std::uint8_t {
  gather,   // all get all of them
  collect,  // rank 0 gets all of them
  scatter   // each gets its own value of those that rank 0 gave
};

struct Frame {
  FrameKind kind = FrameKind::bye;
  std::uint32_t id = 0;  // of a request and its answer
  std::string payload;
};

/// A sequence of numbers and strings.
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

/// Throws Error if the text ends too early.
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
  /// Throws for a longer one.
  std::string_view string(std::size_t at_most) {
    const auto n = number<std::uint32_t>();
    require(n <= at_most, "dist", "a message of the store has a text of {} bytes; expected at most {}", n, at_most);
    return bytes(n);
  }
  /// Length of the list that follows.
  std::uint32_t count(std::uint32_t at_most) {
    const auto n = number<std::uint32_t>();
    require(n <= at_most, "dist", "a message of the store has a list of {}; expected at most {}", n, at_most);
    return n;
  }
  std::string_view bytes(std::size_t n) {
    require(n <= text_.size(), "dist", "a message of the store is truncated");
    const auto part = text_.substr(0, n);
    text_.remove_prefix(n);
    return part;
  }
  std::string_view rest() { return bytes(text_.size()); }

 private:
  std::string_view text_;
};

/// The first 12 bytes of a frame.
struct FrameHeader {
  static constexpr std::size_t kBytes = 12;
  std::uint32_t size = 0, id = 0, kind = 0;

  /// Throws Error if this is not the header of a frame of at most `largest` bytes.
  static FrameHeader parse(std::string_view bytes, std::size_t largest);
};

/// One end of a connection. Not thread-safe.
class Connection {
 public:
  static constexpr std::size_t kLargest = 64 << 20;     // bytes of a payload
  static constexpr std::size_t kOfStrangers = 4 << 10;  // the same, until trust()

  explicit Connection(Socket socket) : socket_(std::move(socket)) {}
  const Socket& socket() const { return socket_; }
  /// The peer belongs to the launch: longer frames may come, and several at once. Before this call, no byte is read
  /// beyond the frame that is awaited.
  void trust() { trusted_ = true; }
  Socket take_socket() { return std::move(socket_); }

  /// Reads some of what has arrived. False if the peer has closed; next() still returns what came before.
  bool fill();
  /// The next whole frame. Throws Error if the peer does not use this protocol.
  std::optional<Frame> next();
  void put(const Frame& frame);
  bool has_output() const { return sent_ < out_.size(); }
  std::size_t unsent() const { return out_.size() - sent_; }
  /// Writes as much as possible without waiting. False if the peer has closed.
  bool flush();

 private:
  std::size_t largest() const { return trusted_ ? kLargest : kOfStrangers; }
  std::size_t room() const;

  Socket socket_;
  bool trusted_ = false;
  std::string in_, out_;
  std::size_t parsed_ = 0, sent_ = 0;
};

}  // namespace hpcdl::comm
