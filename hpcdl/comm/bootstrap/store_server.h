#pragma once
// Rank 0's half of the store: a thread that keeps the values, knows who is there, and passes messages on.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/comm/bootstrap/handshake.h"

namespace hpcdl::comm {

struct ServerOptions {
  int world = 1;
  RunKey key;                         // of this launch: connections of another one are refused
  Deadline join_by;                   // for all ranks
  std::vector<std::string> expected;  // host of each rank, for messages; may be empty
  /// Told, from the server's thread, of one that was refused for its secret or version; once.
  std::function<void(const std::string& sentence)> say = {};
};

class StoreServer {
 public:
  StoreServer(Socket listening, ServerOptions options);
  /// Ends at once; ranks that are still there see rank 0 as lost.
  ~StoreServer();
  /// Waits until every rank has said goodbye or is gone. False at the deadline.
  bool wait_for_all(Deadline deadline);

 private:
  struct Rank {
    std::unique_ptr<Connection> connection;
    std::string host;   // known once it came
    bool left = false;  // said goodbye
    bool lost = false;
  };
  struct Waiting {
    int rank;
    std::uint32_t id;
    Deadline deadline;
    std::vector<std::string> keys;  // of a get; empty: a gather
    std::string name;               // of a gather
  };
  using Contributions = std::vector<std::unique_ptr<std::string>>;  // by rank

  void run();
  bool serve_once();
  void let_in();
  void seat(Door::Guest& guest);
  std::string problem_with(const Visitor& who) const;
  void start_if_complete();
  void read_from(int rank);
  void handle(int rank, const Frame& frame);
  void answer_waiting();
  bool answer(const Waiting& w);
  std::string missing(const Waiting& w) const;
  std::string absent() const;
  std::string named(int rank) const;
  void lose(int rank, const std::string& why);
  void give_up(const std::string& why, FrameKind kind = FrameKind::refused);
  void send(int rank, FrameKind kind, std::uint32_t id, std::string payload);
  void reply(int rank, std::uint32_t id, std::string payload);
  std::string& value_of(std::string_view key);
  void keep(std::size_t bytes);
  void wait(Waiting w);
  Deadline next_deadline() const;

  ServerOptions options_;
  Door door_;
  bool told_ = false;  // of a refusal
  Socket wake_;
  std::vector<Rank> ranks_;
  bool started_ = false;
  std::string gave_up_;  // why; empty: it did not
  FrameKind gave_up_as_ = FrameKind::refused;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, Contributions, std::less<>> gathers_;
  std::vector<Waiting> waiting_;
  std::size_t kept_ = 0;  // bytes of values_, with their names
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable done_;
  bool all_left_ = false;
  std::thread thread_;
};

}  // namespace hpcdl::comm
