#pragma once
// The part of one rank in a world: its transport, and the order in which its collectives run: in the caller if it waits
// at once and nothing is queued, else on one progress thread, first come first served.

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
#include "hpcdl/comm/group.h"
#include "hpcdl/comm/ledger.h"
#include "hpcdl/comm/world.h"

namespace hpcdl::comm {

/// A collective that is queued, runs, or is done.
class Work::State {
 public:
  State(std::shared_ptr<class Engine> e, Group::Impl& g, const Call& c, const LedgerEntry& l)
      : engine(std::move(e)), group(&g), call(c), entry(l) {}
  std::shared_ptr<Engine> engine;
  Group::Impl* group;  // outlives the run: it drains the engine before it is destroyed
  Call call;
  LedgerEntry entry;
  std::exception_ptr error;
  Clock::time_point begin{}, end{};  // of its run
  std::atomic<bool> done = false;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
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
  /// Waits until nothing is queued and nothing runs.
  void drain();
  /// Transport::share(), when nothing is under way.
  std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes);
  bool quiet() const { return queued_.load() == 0; }

  /// Runs it in this thread, when its turn comes.
  void run_now(Group::Impl& group, const Call& call, const LedgerEntry& entry);
  std::shared_ptr<Work::State> run_later(Group::Impl& group, const Call& call, const LedgerEntry& entry);
  void wait(Work::State& state);

  void abandon(std::string_view why) noexcept;

  algo::Policy policy;  // of automatic; changes between collectives

 private:
  using Item = std::shared_ptr<Work::State>;
  /// Runs f, which does what the ledger describes; a lost peer ends this engine.
  template <class F> void guarded(F&& f);
  /// begin: in ticks().
  void execute(Group::Impl& group, const Call& call, const LedgerEntry& entry, std::int64_t begin);
  void finish(const Item& item);
  void run_messages(Item& first);
  void retire(Item& item, std::exception_ptr error, std::size_t at = 0);
  void take_turn();
  void give_turn();
  void run_front(std::unique_lock<std::mutex>& lock);
  void loop();
  void be_eager(bool eager);
  [[noreturn]] void lost(const PeerLost& e);

  std::unique_ptr<Transport> transport_;
  WorldOptions options_;
  int ranks_here_;              // of the world, on this host
  Patience patience_, beside_;  // of the calling thread; of the progress thread
  bool settled_ = false;        // the ranks have exchanged which processors they have
  Ledger ledger_;
  TickClock clock_;
  std::atomic<bool> given_up_ = false;

  std::atomic<bool> busy_ = false;  // the thread that has set it runs collectives
  std::atomic<int> queued_ = 0;     // size of queue_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool stop_ = false;
  std::exception_ptr failure_;  // a peer is lost: later calls do not run
  std::thread thread_;          // started by the first call that needs it
  Scratch scratch_;
};

}  // namespace hpcdl::comm
