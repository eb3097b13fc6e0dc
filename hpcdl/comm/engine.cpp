#include "hpcdl/comm/engine.h"

#include <algorithm>

#include "hpcdl/comm/impl.h"
#include "hpcdl/core/pool.h"

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

Engine::~Engine() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Engine::abandon(std::string_view why) noexcept {
  given_up_.store(true);
  if (transport_) transport_->leave(why);
}

void Engine::lost(const PeerLost& e) {
  std::string sentence;
  const LedgerEntry now = ledger_.collective();
  if (options_.on_lost) sentence = options_.on_lost(ledger_, e);
  else
    sentence = fmt::format("[comm] rank {} on {} in {}: {}", transport_->rank(),
                           transport_->host_name(transport_->rank()), describe(now), e.what());
  const PeerLost told(sentence, e.peer());
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::make_exception_ptr(told);
  }
  transport_->leave(sentence);
  throw told;
}

template <class F> void Engine::guarded(F&& f) {
  try {
    f();
  } catch (const PeerLost& e) {
    scratch_.pending.clear();
    transport_->withdraw();
    lost(e);
  } catch (...) {
    scratch_.pending.clear();
    transport_->withdraw();
    throw;
  }
}

void Engine::execute(Group::Impl& g, const Call& call, const LedgerEntry& entry, std::int64_t begin) {
  ledger_.collective(entry);
  Peers peers(*transport_, g.world_ranks, g.rank, entry.tag, runs_queue ? beside_ : patience_);
  guarded([&] {
    if (given_up_.load(std::memory_order_relaxed)) throw PeerLost("[comm] given up: this rank leaves");
    if (call.algorithm == Algorithm::native && !g.native)
      g.native = transport_->native(g.world_ranks, static_cast<std::uint32_t>(g.id & 0x7fffffffu));
    Ground ground{peers,   g.shared.get(), g.local.size() == g.world_ranks.size(), scratch_, g.native.get(), &policy,
                  g.hosts, g.on_host};
    run(call, ground);
  });
  if (!settled_ && g.shared && g.shared->size() == ranks_here_)
    if (const auto each = g.shared->has_processor_each()) be_eager(*each), settled_ = true;
  const auto end = ticks();
  ledger_.idle(end);
  LiveCounters::add(g.counters.wire_bytes, peers.wire_bytes());
  LiveCounters::add(g.counters.busy, end - begin);
}

std::shared_ptr<Window> Engine::share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes) {
  drain();
  std::shared_ptr<Window> window;
  guarded([&] { window = transport_->share(ranks, tag, bytes, deadline()); });
  return window;
}

void Engine::take_turn() {
  if (queued_.load() == 0 && !busy_.exchange(true)) {
    if (queued_.load() == 0) return;
    busy_.store(false);
  }
  std::unique_lock lock(mutex_);
  changed_.notify_all();  // for the thread, if the flag was set when it looked
  changed_.wait(lock, [&] { return queue_.empty() && !busy_.exchange(true); });
}

void Engine::give_turn() {
  busy_.store(false);
  if (queued_.load() == 0) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Engine::run_now(Group::Impl& group, const Call& call, const LedgerEntry& entry) {
  take_turn();
  struct Turn {
    Engine& engine;
    ~Turn() { engine.give_turn(); }
  } turn{*this};
  if (failure_) std::rethrow_exception(failure_);
  execute(group, call, entry, entry.since);  // just now: reading the counter again takes as long as a poll
}

std::shared_ptr<Work::State> Engine::run_later(Group::Impl& group, const Call& call, const LedgerEntry& entry) {
  auto item = std::make_shared<Work::State>(shared_from_this(), group, call, entry);
  {
    std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    queue_.push_back(item);
    queued_.fetch_add(1);
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  }
  changed_.notify_all();
  return item;
}

/// The caller has the turn and no lock.
void Engine::finish(const Item& item) {
  try {
    std::exception_ptr failure;
    {
      std::lock_guard lock(mutex_);
      failure = failure_;
    }
    if (failure) std::rethrow_exception(failure);
    item->begin = Clock::now();
    execute(*item->group, item->call, item->entry, ticks());
    item->end = Clock::now();
  } catch (...) {
    item->error = std::current_exception();
  }
}

/// Messages that were queued one after the other run together, and end as they arrive: two ranks may each send
/// before they receive.
void Engine::run_messages(Item& first) {
  struct Active {
    Item item;
    Transport::Pending pending;
    std::int64_t begin;
  };
  std::deque<Active> active;
  std::size_t started = 0;  // at the head of the queue
  const Patience& patience = runs_queue ? beside_ : patience_;
  const auto admit = [&] {
    for (; static_cast<std::size_t>(queued_.load()) > started; ++started) {
      Item item;
      {
        std::lock_guard lock(mutex_);
        item = queue_[started];
      }
      if (!one_to_one(item->call.what)) return;
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
      retire(a.item, nullptr, i);
      active.erase(active.begin() + static_cast<std::ptrdiff_t>(i));
      --started;
    }
    return active.size() < before;
  };
  first.reset();
  try {
    guarded([&] {
      for (admit(); !active.empty();) {
        const Item oldest = active.front().item;
        ledger_.collective(oldest->entry);
        Peers peers(*transport_, oldest->group->world_ranks, oldest->group->rank, 0, patience);
        peers.wait_until(oldest->call.peer, [&] {
          admit();
          return retire_done();
        });
      }
    });
    ledger_.idle(ticks());
  } catch (...) {
    for (Active& a : active) retire(a.item, std::current_exception());
  }
}

/// The call at this position of the queue is done.
void Engine::retire(Item& item, std::exception_ptr error, std::size_t at) {
  std::lock_guard lock(mutex_);
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(at));
  queued_.fetch_sub(1);
  item->error = std::move(error);
  item->done.store(true, std::memory_order_release);
  item.reset();
  changed_.notify_all();
}

/// Runs the head of the queue. The caller has the turn and the lock, and afterwards only the lock.
void Engine::run_front(std::unique_lock<std::mutex>& lock) {
  Item item = queue_.front();
  const bool failed = failure_ != nullptr;
  lock.unlock();
  if (one_to_one(item->call.what) && !failed) {
    run_messages(item);
  } else {
    finish(item);
    std::exception_ptr error = item->error;
    retire(item, std::move(error));
  }
  lock.lock();
  // The turn is returned after the call has been released here: the last owner of a group must not be the
  // progress thread.
  busy_.store(false);
  changed_.notify_all();
}

void Engine::loop() {
  runs_queue = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return (stop_ && queue_.empty()) || (!queue_.empty() && !busy_.exchange(true)); });
    if (queue_.empty()) return;
    run_front(lock);
  }
}

/// The caller that waits for the next call in the queue runs it, if the thread has not begun. Not a message with others
/// after it: those would run together with it, and may depend on what the caller does next.
void Engine::wait(Work::State& state) {
  const auto is_done = [&] { return state.done.load(std::memory_order_acquire); };
  const auto is_mine = [&] {
    return !queue_.empty() && queue_.front().get() == &state && (queue_.size() == 1 || !one_to_one(state.call.what));
  };
  if (!is_done()) {
    const auto begin = ticks();
    std::unique_lock lock(mutex_);
    while (!is_done()) {
      changed_.wait(lock, [&] { return is_done() || (is_mine() && !busy_.exchange(true)); });
      if (!is_done()) run_front(lock);
    }
    LiveCounters::add(state.group->counters.waited, ticks() - begin);
  }
  if (state.error) std::rethrow_exception(state.error);
}

void Engine::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_.load(); });
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
