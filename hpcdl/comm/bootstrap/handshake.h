#pragma once
// How two processes of one launch authenticate each other. The one that connects says hello, the other answers with a
// challenge and proves that it has the key of the run; the first proves the same and introduces itself; then it
// is accepted, or refused with a sentence. Keys are proved by HMAC-SHA256 over random numbers of both sides. What
// follows is neither encrypted nor signed.

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/comm/bootstrap/frame.h"
#include "hpcdl/comm/bootstrap/secret.h"

namespace hpcdl::comm {

/// Version of this protocol: ranks with another version cannot join.
inline constexpr std::uint32_t kProtocol = 3;

/// How the one that connects introduces itself.
struct Visitor {
  static constexpr std::size_t kLongest = 256;  // bytes of a host's name
  std::int32_t rank = 0, world = 1;
  std::string host = {};
};

struct Hello {
  std::uint32_t protocol = kProtocol;
  Digest run{};  // RunKey::name()
  Digest number{};
  bool has_secret = false;

  std::string packed() const;
  /// Throws Error, like all of these, if the text is not such a message.
  static Hello parse(std::string_view text);
};

struct Challenge {
  Digest number{}, proof{};

  std::string packed() const;
  static Challenge parse(std::string_view text);
};

struct Introduction {
  Visitor visitor;
  Digest proof{};

  std::string packed() const;
  static Introduction parse(std::string_view text);
};

/// The side that connects.
class Caller {
 public:
  enum class State : std::uint8_t {
    under_way,
    accepted,
    refused,  // words() say why
    stopped,  // the same: a rank was asked to stop
    foreign   // gone, or not of this launch: another attempt may succeed
  };

  /// `to`: the other side, in a sentence. Says hello.
  Caller(Socket socket, RunKey key, Visitor self, std::string to);
  /// Does what can be done without waiting.
  State advance();
  State state() const { return state_; }
  /// Whether the other side uses this protocol.
  bool challenged() const { return proved_; }
  const std::string& words() const { return words_; }
  Connection& connection() { return connection_; }

 private:
  void step(const Frame& frame);
  void prove(const Challenge& challenge);

  Connection connection_;
  RunKey key_;
  Visitor self_;
  std::string to_;
  Digest number_;
  State state_ = State::under_way;
  bool proved_ = false;
  std::string words_;
};

/// The side that listens, for any number of connections at once. Those that have proved nothing cost a bounded number
/// of descriptors and 4 KiB each, for a bounded time.
class Door {
 public:
  struct Guest {
    std::unique_ptr<Connection> connection;
    Visitor who;
  };

  /// `name`: of this side, in a sentence.
  Door(Socket listening, RunKey key, std::string name);
  void wait_for(std::vector<pollfd>& list) const;
  Deadline next_deadline() const;
  /// Returns the connections that have proved who they are: answer each by accept(), or by refuse() with the reason.
  std::vector<Guest> open();
  static void accept(Guest& guest);
  static void refuse(Guest& guest, const std::string& why, FrameKind kind = FrameKind::refused);
  /// Stops listening.
  void close();
  /// Why the last one with another secret or version was refused; empty: there was none.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  struct Newcomer {
    std::unique_ptr<Connection> connection;
    Deadline came, until;
    Hello hello;
    Digest number{};
    bool said_hello = false;
  };

  void accept_all();
  bool make_room();
  /// True if it has proved who it is.
  bool read(Newcomer& n, Visitor& who);
  void answer_hello(Newcomer& n, const Frame& frame);
  bool check(Newcomer& n, const Introduction& i);

  Socket listening_;
  RunKey key_;
  std::string name_, last_refusal_;
  std::vector<Newcomer> newcomers_;  // oldest first
  bool full_ = false;
};

}  // namespace hpcdl::comm
