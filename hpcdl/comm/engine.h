#pragma once
// The part of one rank in a world: its transport, and the order in which its calls run. The collectives of a group run
// one after the other: in the caller if it waits at once and none is queued, else on a thread of the group. Messages of
// a group do not wait for its collectives, and groups do not wait for each other.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/dispatch.h"
#include "hpcdl/comm/ledger.h"
#include "hpcdl/comm/turn.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/group.h"

namespace hpcdl::comm {

/// A collective that is queued, runs, or is done.
class Work::State {
 public:
  State(std::shared_ptr<class Engine> e, Group::Impl& g, const Call& c, const LedgerEntry& l)
      : engine(std::move(e)), group(&g), call(c), entry(l) {}
  std::shared_ptr<Engine> engine;
  Group::Impl* group;  // outlives the run: it waits for its queues before it is destroyed
  Call call;
  LedgerEntry entry;
  std::exception_ptr error;
  Clock::time_point begin{}, end{};  // of its run
  std::atomic<bool> done = false;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  using Item = std::shared_ptr<Work::State>;
  /// Calls that run one after the other, or messages, which run together.
  struct Queue {
    std::atomic<bool> runs = false;  // the thread that has set it runs calls of this queue
    std::atomic<int> queued = 0;     // size of items
    std::deque<Item> items;          // with the mutex of the engine, as all of the rest
    std::condition_variable ready;
    bool stop = false;
    std::thread thread;  // started by the first call that needs it
  };

  /// transport: null for a world of one rank.
  Engine(std::unique_ptr<Transport> transport, WorldOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Transport* transport() const { return transport_.get(); }
  Ledger& ledger() { return ledger_; }
  const TickClock& clock() const { return clock_; }
  const Patience& patience() const { return patience_; }
  Deadline deadline() const { return Clock::now() + patience_.deadline; }
  /// Waits until nothing is queued for a group and nothing of it runs, and ends its threads.
  void close(Group::Impl& group);
  /// Transport::share(), when nothing is queued.
  std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes);
  bool quiet() const { return queued_.load() == 0; }

  /// Runs it in this thread, when its turn comes.
  void run_now(Group::Impl& group, const Call& call, const LedgerEntry& entry);
  static Queue& queue_of(Group::Impl& group, const Call& call);
  std::shared_ptr<Work::State> run_later(Group::Impl& group, const Call& call, const LedgerEntry& entry);
  void wait(Work::State& state);

  void abandon(std::string_view why) noexcept;

  algo::Policy policy;  // of automatic; changes between collectives

 private:
  /// Runs f, which does what the entry describes; a lost peer ends this engine. The caller has the turn.
  template <class F> void guarded(const LedgerEntry* const& entry, F&& f);
  /// A call that is under way for the lifetime of this object. The ledger shows the oldest of such calls. The caller has
  /// the turn.
  class Underway;
  /// begin: in ticks().
  void execute(Group::Impl& group, const Call& call, const LedgerEntry& entry, std::int64_t begin);
  void finish(const Item& item);
  template <class F> void sleep_until(F&& f);
  template <class F> void sleep(std::unique_lock<std::mutex>& lock, F&& f);
  void run_messages(Queue& queue);
  void retire(Queue& queue, Item& item, std::exception_ptr error, std::size_t at = 0);
  void claim(Queue& queue);
  void release(Queue& queue);
  void run_front(Queue& queue, std::unique_lock<std::mutex>& lock);
  void loop(Queue& queue);
  void be_eager(bool eager);
  [[noreturn]] void lost(const LedgerEntry* entry, const PeerLost& e);

  std::unique_ptr<Transport> transport_;
  WorldOptions options_;
  int ranks_here_;              // of the world, on this host
  Patience patience_, beside_;  // of the calling thread; of the progress thread
  bool settled_ = false;        // the ranks have exchanged which processors they have
  Ledger ledger_;
  TickClock clock_;
  std::atomic<bool> given_up_ = false;

  Turn turn_;
  std::vector<const LedgerEntry*> underway_;  // with the turn; the oldest first
  std::atomic<int> queued_ = 0;               // in all queues
  std::atomic<int> sleepers_ = 0;             // threads that wait for changed_
  std::mutex mutex_;
  std::condition_variable changed_;  // a call is done, or no thread runs a queue
  std::exception_ptr failure_;       // a peer is lost: later calls do not run
};

}  // namespace hpcdl::comm
