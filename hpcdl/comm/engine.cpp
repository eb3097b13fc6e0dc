#include "hpcdl/comm/engine.h"

#include <algorithm>

#include "hpcdl/comm/impl.h"
#include "hpcdl/pool.h"

namespace hpcdl::comm {
namespace {

int ranks_here(const Transport* t) {
  int here = 0;
  for (int r = 0; t && r < t->size(); ++r) here += t->host(r) == t->host(t->rank());
  return here;
}

/// Time that a caller polls before it gives up its processor: some time slices of the scheduler. Next to another
/// program, a rank that yields or naps loses its processor for a slice, 3 to 4 ms, and a peer that then naps as well
/// is late in turn: 4 KiB took 50 us instead of 3.
constexpr std::chrono::milliseconds kPoll{10};
/// Time that the progress thread polls: as long as a short nap of the other side takes, some 75 us with what the
/// timer adds, and some more. A rank that naps is late for the next message: if its peer napped as well, one
/// nap would cause the next for ever.
constexpr std::chrono::microseconds kPollBeside{200};

thread_local bool runs_queue = false;  // true in the thread of an engine

}  // namespace

Engine::Engine(std::unique_ptr<Transport> transport, WorldOptions options)
    : transport_(std::move(transport)), options_(std::move(options)), ranks_here_(ranks_here(transport_.get())) {
  patience_.deadline = std::chrono::nanoseconds(static_cast<std::int64_t>(options_.deadline_seconds * 1e9));
  patience_.given_up = &given_up_;
  patience_.turn = &turn_;
  be_eager(ranks_here_ <= usable_cpus());
}

/// Polling is only worthwhile while there is a processor for every rank.
void Engine::be_eager(bool eager) {
  patience_.spins = eager ? 1000 : 10;
  patience_.poll = eager ? kPoll : std::chrono::nanoseconds{};
  beside_ = patience_;
  beside_.beside = true;
  if (eager) beside_.poll = kPollBeside;
}

/// All groups are gone, and their threads with them.
Engine::~Engine() = default;

void Engine::abandon(std::string_view why) noexcept {
  given_up_.store(true);
  if (transport_) transport_->leave(why);
}

void Engine::lost(const LedgerEntry* entry, const PeerLost& e) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  if (entry) ledger_.collective(*entry);
  std::string sentence;
  const LedgerEntry now = ledger_.collective();
  if (options_.on_lost) sentence = options_.on_lost(ledger_, e);
  else
    sentence = fmt::format("[comm] rank {} on {} in {}: {}", transport_->rank(),
                           transport_->host_name(transport_->rank()), describe(now), e.what());
  const PeerLost told(sentence, e.peer());
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::make_exception_ptr(told);
  }
  given_up_.store(true);  // the others that are under way end when they get the turn
  transport_->leave(sentence);
  throw told;
}

template <class F> void Engine::guarded(const LedgerEntry* const& entry, F&& f) {
  try {
    f();
  } catch (const PeerLost& e) {
    lost(entry, e);
  }
}

class Engine::Underway {
 public:
  Underway(Engine& engine, const LedgerEntry& entry) : engine_(engine), entry_(&entry) {
    engine_.underway_.push_back(entry_);
    if (engine_.underway_.size() == 1) engine_.ledger_.collective(entry);
  }
  ~Underway() {
    auto& list = engine_.underway_;
    const bool shown = list.front() == entry_;
    std::erase(list, entry_);
    if (std::uncaught_exceptions() > errors_) return;  // the ledger goes on to show what failed
    if (list.empty()) engine_.ledger_.idle(ticks());
    else if (shown) engine_.ledger_.collective(*list.front());
  }
  Underway(const Underway&) = delete;
  Underway& operator=(const Underway&) = delete;
  /// It goes on with another call.
  void now(const LedgerEntry& entry) {
    const bool shown = engine_.underway_.front() == entry_;
    std::replace(engine_.underway_.begin(), engine_.underway_.end(), entry_, &entry);
    entry_ = &entry;
    if (shown) engine_.ledger_.collective(entry);
  }

 private:
  Engine& engine_;
  const LedgerEntry* entry_;
  const int errors_ = std::uncaught_exceptions();
};

void Engine::execute(Group::Impl& g, const Call& call, const LedgerEntry& entry, std::int64_t begin) {
  const Underway underway(*this, entry);
  Peers peers(*transport_, g.world_ranks, g.rank, entry.tag, runs_queue ? beside_ : patience_);
  guarded(&entry, [&] {
    if (given_up_.load(std::memory_order_relaxed)) throw PeerLost("[comm] given up: this rank leaves");
    if (call.algorithm == Algorithm::native && !g.native)
      g.native = transport_->native(g.world_ranks, static_cast<std::uint32_t>(g.id & 0x7fffffffu));
    Ground ground{peers,   g.shared.get(), g.local.size() == g.world_ranks.size(), g.scratch, g.native.get(), &policy,
                  g.hosts, g.on_host};
    run(call, ground);
  });
  if (!settled_ && g.shared && g.shared->size() == ranks_here_)
    if (const auto each = g.shared->has_processor_each()) be_eager(*each), settled_ = true;
  LiveCounters::add(g.counters.wire_bytes, peers.wire_bytes());
  LiveCounters::add(g.counters.busy, ticks() - begin);
}

namespace {

/// The turn, for its lifetime.
class HasTurn {
 public:
  explicit HasTurn(Turn& turn) : turn_(turn) { turn_.take(); }
  ~HasTurn() { turn_.give(); }
  HasTurn(const HasTurn&) = delete;
  HasTurn& operator=(const HasTurn&) = delete;

 private:
  Turn& turn_;
};

}  // namespace

std::shared_ptr<Window> Engine::share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes) {
  sleep_until([&] { return quiet(); });
  const HasTurn turn(turn_);
  std::shared_ptr<Window> window;
  guarded(nullptr, [&] {
    try {
      window = transport_->share(ranks, tag, bytes, deadline());
    } catch (...) {
      transport_->withdraw();
      throw;
    }
  });
  return window;
}

Engine::Queue& Engine::queue_of(Group::Impl& group, const Call& call) {
  return one_to_one(call.what) ? group.messages : group.collectives;
}

template <class F> void Engine::sleep_until(F&& f) {
  std::unique_lock lock(mutex_);
  sleep(lock, f);
}

/// With the lock. Counted before f() is asked, so that release() sees this thread or f() sees what it did.
template <class F> void Engine::sleep(std::unique_lock<std::mutex>& lock, F&& f) {
  sleepers_.fetch_add(1);
  changed_.wait(lock, f);
  sleepers_.fetch_sub(1);
}

/// Returns when nothing is queued, and this thread runs the calls of the queue.
void Engine::claim(Queue& q) {
  if (q.queued.load() == 0 && !q.runs.exchange(true)) {
    if (q.queued.load() == 0) return;
    release(q);
  }
  sleep_until([&] { return q.items.empty() && !q.runs.exchange(true); });
}

void Engine::release(Queue& q) {
  q.runs.store(false);
  if (q.queued.load() == 0 && sleepers_.load() == 0) return;
  const std::lock_guard lock(mutex_);
  q.ready.notify_one();
  changed_.notify_all();
}

void Engine::run_now(Group::Impl& group, const Call& call, const LedgerEntry& entry) {
  Queue& queue = queue_of(group, call);
  claim(queue);
  struct Claimed {
    Engine& engine;
    Queue& queue;
    ~Claimed() { engine.release(queue); }
  } claimed{*this, queue};
  const HasTurn turn(turn_);
  if (failure_) std::rethrow_exception(failure_);
  execute(group, call, entry, entry.since);  // just now: reading the counter again takes as long as a poll
}

std::shared_ptr<Work::State> Engine::run_later(Group::Impl& group, const Call& call, const LedgerEntry& entry) {
  auto item = std::make_shared<Work::State>(shared_from_this(), group, call, entry);
  Queue& queue = queue_of(group, call);
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    queue.items.push_back(item);
    queue.queued.fetch_add(1), queued_.fetch_add(1);
    if (!queue.thread.joinable()) queue.thread = std::thread([this, &queue] { loop(queue); });
  }
  queue.ready.notify_one();
  return item;
}

/// The caller runs the queue of the call, and has no lock.
void Engine::finish(const Item& item) {
  try {
    const HasTurn turn(turn_);
    if (failure_) std::rethrow_exception(failure_);
    item->begin = Clock::now();
    execute(*item->group, item->call, item->entry, ticks());
    item->end = Clock::now();
  } catch (...) {
    item->error = std::current_exception();
  }
}

/// Messages that were queued one after the other run together, and end as they arrive: two ranks may each send
/// before they receive. Returns when none is left.
void Engine::run_messages(Queue& q) {
  struct Active {
    Item item;
    Transport::Pending pending;
    std::int64_t begin;
  };
  std::deque<Active> active;  // the first ones of the queue
  const HasTurn turn(turn_);
  const Patience& patience = runs_queue ? beside_ : patience_;
  const auto item_at = [&](std::size_t i) {
    const std::lock_guard lock(mutex_);
    return i < q.items.size() ? q.items[i] : nullptr;
  };
  const auto admit = [&] {
    while (static_cast<std::size_t>(q.queued.load()) > active.size()) {
      Item item = item_at(active.size());
      const Call& c = item->call;
      Peers peers(*transport_, item->group->world_ranks, item->group->rank, item->entry.tag, patience);
      const auto n = static_cast<std::size_t>(c.bytes());
      const auto begin = ticks();
      const auto pending =
          c.what == Collective::send ? peers.send(c.peer, {c.in, n}) : peers.receive(c.peer, {c.out, n});
      LiveCounters::add(item->group->counters.wire_bytes, peers.wire_bytes());
      active.push_back({std::move(item), pending, begin});
    }
  };
  const auto retire_done = [&] {
    const std::size_t before = active.size();
    for (std::size_t i = 0; i < active.size();) {
      Active& a = active[i];
      if (!transport_->done(a.pending)) {
        ++i;
        continue;
      }
      LiveCounters::add(a.item->group->counters.busy, ticks() - a.begin);
      retire(q, a.item, nullptr, i);
      active.erase(active.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return active.size() < before;
  };
  Item oldest = item_at(0);
  const LedgerEntry* shown = &oldest->entry;
  try {
    Underway underway(*this, *shown);
    if (failure_) std::rethrow_exception(failure_);
    guarded(shown, [&] {
      for (admit(); !active.empty();) {
        shown = &active.front().item->entry;
        underway.now(*shown);
        oldest = active.front().item;
        Peers peers(*transport_, oldest->group->world_ranks, oldest->group->rank, 0, patience);
        peers.wait_until(oldest->call.peer, [&] {
          admit();
          return retire_done();
        });
      }
    });
  } catch (...) {
    const auto error = std::current_exception();
    for (Active& a : active) transport_->cancel(a.pending);
    while (Item item = item_at(0)) retire(q, item, error);
  }
}

/// The call at this position of the queue is done.
void Engine::retire(Queue& q, Item& item, std::exception_ptr error, std::size_t at) {
  const std::lock_guard lock(mutex_);
  q.items.erase(q.items.begin() + static_cast<std::ptrdiff_t>(at));
  q.queued.fetch_sub(1), queued_.fetch_sub(1);
  item->error = std::move(error);
  item->done.store(true, std::memory_order_release);
  item.reset();
  changed_.notify_all();
}

/// Runs the head of the queue. The caller has claimed the queue and has the lock, and afterwards only the lock.
void Engine::run_front(Queue& q, std::unique_lock<std::mutex>& lock) {
  Item item = q.items.front();
  lock.unlock();
  if (one_to_one(item->call.what)) {
    item.reset();
    run_messages(q);
  } else {
    finish(item);
    std::exception_ptr error = item->error;
    retire(q, item, std::move(error));
  }
  lock.lock();
  // The queue is released after the call has been: the last owner of a group must not be its thread.
  q.runs.store(false);
  q.ready.notify_one();
  changed_.notify_all();
}

void Engine::loop(Queue& q) {
  runs_queue = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    q.ready.wait(lock, [&] { return (q.stop && q.items.empty()) || (!q.items.empty() && !q.runs.exchange(true)); });
    if (q.items.empty()) return;
    run_front(q, lock);
  }
}

/// The caller that waits for the next call in the queue runs it, if the thread has not begun. Not a message with others
/// after it: those would run together with it, and may depend on what the caller does next.
void Engine::wait(Work::State& state) {
  const auto is_done = [&] { return state.done.load(std::memory_order_acquire); };
  if (!is_done()) {
    const auto begin = ticks();
    Queue& q = queue_of(*state.group, state.call);
    const auto is_mine = [&] {
      return !q.items.empty() && q.items.front().get() == &state &&
             (q.items.size() == 1 || !one_to_one(state.call.what));
    };
    std::unique_lock lock(mutex_);
    while (!is_done()) {
      sleep(lock, [&] { return is_done() || (is_mine() && !q.runs.exchange(true)); });
      if (!is_done()) run_front(q, lock);
    }
    LiveCounters::add(state.group->counters.waited, ticks() - begin);
  }
  if (state.error) std::rethrow_exception(state.error);
}

void Engine::close(Group::Impl& group) {
  for (Queue* q : {&group.collectives, &group.messages}) {
    {
      std::unique_lock lock(mutex_);
      sleep(lock, [&] { return q->items.empty() && !q->runs.load(); });
      q->stop = true;
    }
    q->ready.notify_one();
    if (q->thread.joinable()) q->thread.join();
  }
}

void Work::wait() {
  if (!state_) return;
  const auto state = std::move(state_);
  state->engine->wait(*state);
}

std::pair<Clock::time_point, Clock::time_point> Work::took() const {
  if (!state_ || !done() || state_->end < state_->begin) return {};
  return {state_->begin, state_->end};
}

bool Work::done() const { return !state_ || state_->done.load(std::memory_order_acquire); }

}  // namespace hpcdl::comm
