#pragma once
// The sockets between one rank and those it talks to, each made when one of the two first needs it. A thread lets in
// the ranks that call and calls others, so that a rank that computes is reached, too. It listens for as long as the
// run lasts: the one that calls proves that it has the key of this round, as in any handshake, and those that prove
// nothing cost what a Door allows them.

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

  /// names: the host of each rank, for messages. key: of this round; what each rank listens with is derived from it.
  Connector(int rank, std::vector<std::string> names, RunKey key, Socket listening);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  /// There will be news of this rank. A second wish for the same is none.
  void want(int rank, const Card& card);
  bool has_news() const { return has_news_.load(std::memory_order_acquire); }
  std::vector<News> take_news();
  /// Can be read while there is news, and for ever once this rank leaves.
  int news_fd() const { return news_fd_.fd(); }
  /// This rank leaves: all sockets end, none is made any more, and nobody listens. From any thread.
  void leave() noexcept;

 private:
  /// A call of another rank. The higher of two that call each other at the same time goes on, and the lower gives way.
  struct Call {
    Card card;
    std::size_t address = 0;         // under way, of the card's
    Socket connecting;               // TCP's part
    std::unique_ptr<Caller> caller;  // then ours
    Deadline until{};                // of TCP's part
    Deadline pause{};                // until the next attempt
    std::size_t refusals = 0;        // addresses of this attempt where nobody listens
    bool under_way() const { return connecting || caller; }
  };
  struct Wish {
    int rank;
    Card card;
  };

  void run();
  void take_wishes();
  void advance_calls();
  /// True when it is over.
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

  // Of the thread alone.
  Door door_;
  std::map<int, Call> calls_;
  std::vector<bool> open_;  // by rank: has, or has had, its socket

  std::mutex mutex_;  // of the next
  std::vector<Wish> wishes_;
  std::vector<News> news_;
  std::vector<int> delivered_;  // sockets, which their owners close after this object has gone
  bool left_ = false;

  std::atomic<bool> has_news_ = false;
  Socket wake_, news_fd_;  // eventfds
  std::thread thread_;
};

}  // namespace hpcdl::comm
