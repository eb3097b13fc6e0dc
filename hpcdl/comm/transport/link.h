#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "hpcdl/comm/bootstrap/socket.h"

namespace hpcdl::comm {

/// The messages between this rank and one peer over one socket, which may be connected later: a header of 16 bytes
/// (tag, 0, size; little-endian), then the bytes. A message goes to the oldest receive with its tag. A message
/// without a receive stays in the socket while nothing else is wanted from this peer, so that a sender cannot fill this
/// rank's memory.
class Link {
 public:
  struct Message {
    std::uint32_t tag = 0;
    std::byte* to = nullptr;          // of a receive
    const std::byte* from = nullptr;  // of a send
    std::size_t bytes = 0;
    bool done = false;
    bool wrong_size = false;
  };

  Link() = default;  // without a socket so far
  explicit Link(Socket socket) { open(std::move(socket)); }
  /// A rank may compute for longer than any timeout of TCP. The connections of the store report a host that is gone.
  void open(Socket socket);
  bool is_open() const { return static_cast<bool>(socket_); }
  const Socket& socket() const { return socket_; }

  /// The message must live until it is done or cancelled.
  void send(Message& m);
  void receive(Message& m);
  void take_back(Message& m);
  /// Sends and receives what is possible without waiting.
  void advance();

  /// The peer has closed, and everything it sent before has been read or has no receive.
  bool closed() const { return closed_; }
  /// Closed because the peer sent something that is not a message.
  bool broken() const { return broken_; }
  bool wants_to_read() const {
    return is_open() && !closed_ && (!wanted_.empty() || target_ || reading_header_bytes_ > 0) && !parked();
  }
  bool wants_to_write() const { return is_open() && !closed_ && !queue_.empty(); }
  /// For a peer from which nothing is expected: whether it is still connected, according to its socket.
  bool peer_is_there() const;

 private:
  struct Header {
    std::uint32_t tag = 0, zero = 0;
    std::uint64_t bytes = 0;

    bool makes_sense() const { return zero == 0 && bytes <= kLongest; }
  };
  static constexpr std::uint64_t kLongest = std::uint64_t{1} << 44;  // bytes of a message
  static constexpr std::size_t kAhead = 4 << 20;  // bytes for which memory is allocated before they have arrived
  struct Outgoing {
    Message* message;  // null: cancelled while it was being sent
    Header header;
    std::size_t sent = 0;  // of header and bytes
    const std::byte* from;
    std::vector<std::byte> rest;  // the bytes of a message that was cancelled
  };
  struct Unasked {
    std::uint32_t tag;
    std::vector<std::byte> bytes;
  };

  bool parked() const { return have_header_ && !target_ && wanted_.empty(); }
  void write();
  void read();
  bool read_header();
  bool read_bytes();
  std::size_t make_room();
  void choose_target();
  void finish();
  void give(Message& m, std::deque<Unasked>::iterator it);

  Socket socket_;
  bool closed_ = false, broken_ = false;
  std::deque<Outgoing> queue_;
  std::deque<Message*> wanted_;
  std::deque<Unasked> unasked_;

  // The message that is being read.
  Header header_;
  std::size_t reading_header_bytes_ = 0;
  bool have_header_ = false;
  Message* target_message_ = nullptr;  // null: no receive, or cancelled
  std::byte* target_ = nullptr;        // set after the destination of the bytes is known
  std::size_t got_ = 0;
  std::vector<std::byte> buffer_;
  bool keep_buffer_ = false;
};

}  // namespace hpcdl::comm
