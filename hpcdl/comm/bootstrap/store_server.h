#pragma once
// The server of the store, on rank 0: a thread that keeps the values, knows which ranks are connected, and passes
// messages on.

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
  /// Called once, from the server's thread, when a connection was refused for its secret or version.
  std::function<void(const std::string& sentence)> say = {};
};

class StoreServer {
 public:
  StoreServer(Socket listening, ServerOptions options);
  /// Ends at once; ranks that are still connected see rank 0 as lost.
  ~StoreServer();
  /// Waits until every rank has said goodbye or is gone. False at the deadline.
  bool wait_for_all(Deadline deadline);
  /// Number of frames received and sent so far.
  std::int64_t messages() const { return messages_.load(std::memory_order_relaxed); }

 private:
  struct Rank {
    std::unique_ptr<Connection> connection;
    std::string host;   // known after it has connected
    bool over = false;  // its run is
    bool left = false;  // said goodbye
    bool lost = false;
    bool to_write = false;    // is in to_write_
    bool writes = false;      // is watched for room to write
    std::size_t waiting = 0;  // requests that are not answered yet
  };
  struct Waiting {
    int rank;
    std::uint32_t id;
    Deadline deadline;
    std::vector<std::string> keys;  // of a get
  };
  /// A collective of the store: the answers are sent when the last rank has come. Nothing here is scanned once for each
  /// rank that comes, so n ranks take n steps and not n * n.
  struct Meeting {
    Together kind = Together::gather;
    std::vector<std::unique_ptr<std::string>> values;  // by rank
    std::size_t missing = 0;
    std::vector<Waiting> waiting;
    Deadline deadline = Deadline::max();  // the first of them
  };

  void run();
  bool serve_once();
  void let_in();
  void seat(Door::Guest& guest);
  std::string problem_with(const Visitor& who) const;
  void start_if_complete();
  void read_from(int rank);
  void handle(int rank, const Frame& frame);
  void write_all();
  void will_write(int rank);
  void vacate(int rank);
  void contribute(int rank, std::uint32_t id, Unpacker& in);
  void answer_all(Meeting& m);
  void end_late(const std::string& name, Meeting& m);
  void end_what_is_late();
  void answer_gets();
  bool answer(const Waiting& w);
  std::string missing(const Waiting& w) const;
  std::string missing(const std::string& name, const Meeting& m) const;
  std::string absent() const;
  std::string named(int rank) const;
  void lose(int rank, const std::string& why);
  void give_up(const std::string& why, FrameKind kind = FrameKind::refused);
  void send(int rank, FrameKind kind, std::uint32_t id, std::string payload);
  void reply(int rank, std::uint32_t id, std::string payload);
  std::string& value_of(std::string_view key);
  void keep(std::size_t bytes);
  void begin_waiting(int rank);
  void watch(int rank, bool writes, bool begins = false);
  Deadline next_deadline() const;

  ServerOptions options_;
  Door door_;
  bool told_ = false;  // of a refusal
  Socket wake_;
  Socket watched_;  // epoll of the ranks' connections
  std::vector<Rank> ranks_;
  std::vector<int> to_write_;  // ranks with something to write
  std::size_t here_ = 0;       // ranks with a connection
  std::vector<int> absent_;    // once started: ranks without
  bool started_ = false;
  std::string gave_up_;  // why it failed; empty: it did not
  FrameKind gave_up_as_ = FrameKind::refused;
  std::map<std::string, std::string, std::less<>> values_;
  bool new_values_ = false;  // changes since answer_gets()
  std::map<std::string, Meeting, std::less<>> meetings_;
  std::vector<Waiting> gets_;
  Deadline first_late_ = Deadline::max();  // not later than any deadline of a waiting request
  std::size_t kept_ = 0;                   // bytes of values_, with their names
  std::atomic<std::int64_t> messages_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable done_;
  bool all_left_ = false;
  std::thread thread_;
};

}  // namespace hpcdl::comm
