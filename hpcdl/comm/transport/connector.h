#pragma once
// The sockets between one rank and its peers, each made when one of the two first needs it. A thread accepts
// connections and makes others, so that a rank that computes can be reached, too. It listens for as long as the
// run lasts: the caller proves that it has the key of this round, as in any handshake, and callers that prove
// nothing are limited by the Door.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "hpcdl/comm/bootstrap/handshake.h"

namespace hpcdl::comm {

/// Where a rank listens.
struct Card {
  static constexpr std::uint32_t kMostAddresses = 64;
  int port = 0;
  std::vector<std::string> addresses;

  void pack(Packer& p) const;
  static Card of(Unpacker& u);
};

class Connector {
 public:
  struct News {
    int rank;
    Socket socket;    // invalid: there will be none
    std::string why;  // there is none
  };

  /// names: the host of each rank, for messages. key: of this round; the key with which each rank listens is derived
  /// from it.
  Connector(int rank, std::vector<std::string> names, RunKey key, Socket listening);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  /// Asks for a socket to this rank; take() will report it. Asking again has no effect.
  void want(int rank, const Card& card);
  bool has_news() const { return has_news_.load(std::memory_order_acquire); }
  std::vector<News> take_news();
  /// Readable while there is news, and for ever after this rank leaves.
  int news_fd() const { return news_fd_.fd(); }
  /// This rank leaves: closes all sockets, makes no more, and stops listening. From any thread.
  void leave() noexcept;

 private:
  /// A call to another rank. If two ranks call each other at the same time, the higher continues, and the lower gives
  /// way.
  struct Call {
    Card card;
    std::size_t address = 0;         // under way, of the card's
    Socket connecting;               // TCP's part
    std::unique_ptr<Caller> caller;  // then ours
    Deadline until{};                // of TCP's part
    Deadline pause{};                // until the next attempt
    std::size_t refusals = 0;        // addresses of this attempt where nothing listens
    bool under_way() const { return connecting || caller; }
  };
  struct Wish {
    int rank;
    Card card;
  };

  void run();
  void take_wishes();
  void advance_calls();
  /// True if it is over.
  bool advance(int rank, Call& call);
  bool attempt_failed(int rank, Call& call, int error);
  void let_in(Door::Guest& guest);
  void deliver(int rank, Socket socket, std::string why = {});
  void wait();
  std::string named(int rank) const;
  static void signal(const Socket& event);

  const int rank_;
  const std::vector<std::string> names_;
  const RunKey key_;

  // Used only by the thread.
  Door door_;
  std::map<int, Call> calls_;
  std::vector<bool> open_;  // by rank: it has, or has had, its socket

  std::mutex mutex_;  // of the next
  std::vector<Wish> wishes_;
  std::vector<News> news_;
  std::vector<int> delivered_;  // sockets, which their owners close after this object is destroyed
  bool left_ = false;

  std::atomic<bool> has_news_ = false;
  Socket wake_, news_fd_;  // eventfds
  std::thread thread_;
};

}  // namespace hpcdl::comm
