#include "hpcdl/comm/watch/watch.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "hpcdl/comm/impl.h"
#include "hpcdl/comm/watch/inquiry.h"
#include "hpcdl/comm/watch/messages.h"

namespace hpcdl::comm {

using namespace std::chrono_literals;

namespace {

/// The beginning of the error with which Peers::wait_slowly() (transport.cpp) ends a wait.
bool is_deadline(const PeerLost& lost) { return std::string_view(lost.what()).starts_with("nothing came from "); }

}  // namespace

/// The implementation. Handlers of the channel only put events into a queue; the thread does the rest.
class Watch::State {
 public:
  State(std::unique_ptr<Channel> channel, WatchOptions options);
  ~State() { stop(); }

  void start();
  void guard(const Group& world);
  void fail(std::string_view why);
  void limit_work(double s) {
    const std::lock_guard lock(mutex_);
    work_limit_ = s;
  }
  void close();
  void stop();
  std::string verdict() const;
  std::string lost(const PeerLost& lost);

 private:
  struct Event {
    int from;
    bool lost;
    std::string bytes;
  };
  static std::chrono::nanoseconds seconds(double s) {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(s * 1e9));
  }
  bool keeper() const { return channel_->rank() == 0; }

  void put(Event e);
  void run();
  void handle(const Event& e);
  void handle_message(int from, std::string_view bytes);
  void inquire(const Stuck& stuck);
  void conclude_if_complete();
  void notice_pause();
  std::string own(const std::string& sentence) const;
  std::string verdict_of_all();
  void conclude(const std::string& sentence);
  void tick();
  void limit(const Report& mine);
  Deadline next_tick() const;
  Report report() const;
  void tell_keeper(Said what, std::string_view bytes);
  void fall_back();
  void wait_untold(std::unique_lock<std::mutex>& lock);
  void forget(int rank, bool left);

  std::unique_ptr<Channel> channel_;
  const WatchOptions options_;
  Inquiry inquiry_;  // on rank 0; other ranks only know rank 0

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool stop_ = false;
  std::string verdict_;
  std::shared_ptr<Group> world_;  // null: not guarded yet, or no longer
  std::vector<int> present_;      // others that have neither finished nor are gone
  std::vector<int> untold_;       // on rank 0: ranks that have not confirmed the verdict
  double work_limit_ = 0;         // seconds; 0: none
  double native_limit_ = 0;       // of a native collective, whose wait has no deadline
  std::string why_;               // why its wait failed, if it was not the deadline
  int wants_ = -2;                // the rank for which this rank waited at its deadline; -2: it did not wait

  // Used only by the thread.
  Deadline next_beat_{}, settled_at_ = Deadline::max(), verdict_by_ = Deadline::max(), leave_at_ = Deadline::max();
  bool asked_ = false;
  Deadline ran_at_ = Clock::now(),
           woke_at_{};  // the last iteration of the thread, and the last one that came far too late
  double paused_ = 0;   // seconds before that
  std::thread thread_;
};

Watch::State::State(std::unique_ptr<Channel> channel, WatchOptions options)
    : channel_(std::move(channel)),
      options_(std::move(options)),
      inquiry_(*channel_, seconds(options_.answer_seconds), seconds(options_.settle_seconds)),
      present_(inquiry_.reachable()) {}

void Watch::State::start() {
  next_beat_ = Clock::now();
  thread_ = std::thread([this] { run(); });
  channel_->listen([this](int from, std::string_view bytes) { put({from, false, std::string(bytes)}); },
                   [this](int rank, const std::string& why) { put({rank, true, why}); });
}

void Watch::State::put(Event e) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(e));
  changed_.notify_all();
}

void Watch::State::guard(const Group& world) {
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    world_ = std::make_shared<Group>(world);
    native_limit_ = std::chrono::duration<double>(world.impl()->engine->patience().deadline).count();
    why = verdict_;
  }
  if (!why.empty()) world.abandon(why);
}

std::string Watch::State::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

Report Watch::State::report() const {
  std::shared_ptr<Group> world;
  {
    const std::lock_guard lock(mutex_);
    world = world_;
  }
  return world ? report_of(world->ledger()) : Report{};
}

/// In the thread whose wait has failed: waits for the verdict, which always comes.
std::string Watch::State::lost(const PeerLost& lost) {
  std::unique_lock lock(mutex_);
  if (verdict_.empty() && !stop_) {
    wants_ = lost.peer();
    if (!is_deadline(lost)) why_ = lost.what();
    changed_.notify_all();
    changed_.wait_for(lock, seconds(4 * options_.answer_seconds), [&] { return !verdict_.empty() || stop_; });
  }
  if (verdict_.empty()) return lost.what();
  wait_untold(lock);
  return verdict_;
}

/// Rank 0 sends the verdict to the others, and ends when they have it.
void Watch::State::wait_untold(std::unique_lock<std::mutex>& lock) {
  changed_.wait_for(lock, seconds(options_.answer_seconds),
                    [&] { return (!verdict_.empty() && untold_.empty()) || stop_; });
}

void Watch::State::fail(std::string_view why) {
  if (!verdict().empty()) return;
  if (!keeper()) return channel_->send(0, said(Said::failed, why));
  put({0, false, said(Said::failed, why)});
  std::unique_lock lock(mutex_);
  wait_untold(lock);
}

void Watch::State::close() {
  std::string why;
  {
    std::unique_lock lock(mutex_);
    if (stop_) return;
    if (keeper())
      changed_.wait_for(lock, seconds(options_.close_seconds), [&] { return present_.empty() || !verdict_.empty(); });
    if (!verdict_.empty()) wait_untold(lock);
    why = verdict_;
  }
  stop();
  if (!why.empty()) throw PeerLost(why);
}

void Watch::State::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  channel_->listen({}, {});
  if (verdict_.empty()) channel_->send(keeper() ? -1 : 0, said(Said::finished, "")), channel_->finish();
  world_.reset();
}

void Watch::State::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    notice_pause();
    if (wants_ != -2 && !asked_ && verdict_.empty()) {
      asked_ = true;
      const Stuck mine{channel_->rank(), wants_, why_};
      lock.unlock();
      if (keeper()) inquire(mine);
      else tell_keeper(Said::stuck, pack_stuck(mine.peer, report(), mine.why));
      lock.lock();
      continue;
    }
    if (events_.empty()) {
      changed_.wait_until(lock, next_tick(),
                          [&] { return stop_ || !events_.empty() || (wants_ != -2 && !asked_ && verdict_.empty()); });
      notice_pause();
      lock.unlock();
      tick();
      lock.lock();
      continue;
    }
    const Event e = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    handle(e);
    lock.lock();
  }
}

Deadline Watch::State::next_tick() const {
  return std::min({next_beat_, settled_at_, verdict_by_, leave_at_, inquiry_.deadline()});
}

void Watch::State::tick() {
  const auto now = Clock::now();
  if (now >= next_beat_) {
    const Report mine = report();
    channel_->send(keeper() ? -1 : 0, said(Said::beat, pack(mine)));
    limit(mine);
    next_beat_ = now + seconds(options_.beat_seconds * std::max(1.0, channel_->size() / 64.0));
  }
  if (now >= settled_at_) {
    settled_at_ = Deadline::max();
    if (keeper()) inquire({});
    else fall_back();
  }
  if (now >= inquiry_.deadline()) conclude(verdict_of_all());
  if (now >= verdict_by_) fall_back();
  if (now >= leave_at_) {
    leave_at_ = Deadline::max();
    if (options_.leave) options_.leave(verdict());
  }
}

void Watch::State::limit(const Report& mine) {
  const std::lock_guard lock(mutex_);
  const auto longer = [](const LedgerEntry& e, double limit) {
    return limit > 0 && static_cast<double>(e.since) * 1e-9 > limit;
  };
  const bool computes = mine.work.phase == Phase::compute && !mine.in_collective();
  const bool native = mine.in_collective() && mine.collective.algorithm == Algorithm::native;
  if (wants_ == -2 &&
      ((computes && longer(mine.work, work_limit_)) || (native && longer(mine.collective, native_limit_))))
    wants_ = -1;
}

void Watch::State::handle(const Event& e) {
  if (!e.lost) return handle_message(e.from, e.bytes);
  forget(e.from, true);
  if (inquiry_.has_finished(e.from)) return;
  inquiry_.gone(e.from, e.bytes);
  if (!verdict().empty()) return;
  if (inquiry_.complete()) {
    conclude_if_complete();
  } else if (keeper() || e.from == 0) {
    settled_at_ = std::min<Deadline>(settled_at_, Clock::now() + seconds(options_.settle_seconds));
  } else {
    verdict_by_ = std::min<Deadline>(verdict_by_, Clock::now() + seconds(2 * options_.answer_seconds));
  }
}

void Watch::State::handle_message(int from, std::string_view bytes) {
  if (bytes.empty()) return;
  const auto what = static_cast<Said>(bytes.front());
  bytes.remove_prefix(1);
  switch (what) {
    case Said::beat: return inquiry_.heard(from, unpack_report(bytes), false);
    case Said::ask: return channel_->send(from, said(Said::report, pack(report())));
    case Said::report: inquiry_.heard(from, unpack_report(bytes), true); return conclude_if_complete();
    case Said::stuck: {
      const auto message = unpack_stuck(bytes);
      inquiry_.heard(from, message.report, false);
      const bool one_of_us = message.peer >= 0 && message.peer < channel_->size();
      return inquire({from, one_of_us ? message.peer : -1, message.why});
    }
    case Said::failed: return conclude(own(inquiry_.failed(from, bytes, report())));
    case Said::finished: inquiry_.finished(from); return forget(from, true);
    case Said::verdict: channel_->send(from, said(Said::heard, "")); return conclude(std::string(bytes));
    case Said::heard: return forget(from, false);
  }
}

void Watch::State::forget(int rank, bool left) {
  const std::lock_guard lock(mutex_);
  std::erase(untold_, rank);
  if (left) std::erase(present_, rank);
  changed_.notify_all();
}

void Watch::State::tell_keeper(Said what, std::string_view bytes) {
  channel_->send(0, said(what, bytes));
  verdict_by_ = std::min<Deadline>(verdict_by_, Clock::now() + seconds(2 * options_.answer_seconds));
}

void Watch::State::inquire(const Stuck& stuck) {
  if (!verdict().empty()) return;
  if (inquiry_.begin(stuck)) channel_->send(-1, said(Said::ask, ""));
  conclude_if_complete();
}

void Watch::State::conclude_if_complete() {
  if (inquiry_.complete() && !inquiry_.may_learn(report())) conclude(verdict_of_all());
}

/// The thread runs at every beat. If a beat comes seconds late, the process did not run: what the others did
/// meanwhile is not an error.
void Watch::State::notice_pause() {
  const auto now = Clock::now();
  const double gap = std::chrono::duration<double>(now - ran_at_).count();
  if (gap > 2 * options_.answer_seconds) paused_ = gap, woke_at_ = now;
  ran_at_ = now;
}

std::string Watch::State::own(const std::string& sentence) const {
  if (options_.program.empty() || sentence.empty()) return sentence;
  return sentence + " (" + options_.program + ")";
}

/// The verdict of this rank, from its own knowledge.
std::string Watch::State::verdict_of_all() {
  const Report mine = report();
  std::string sentence;
  if (paused_ > 0 && Clock::now() < woke_at_ + seconds(options_.answer_seconds))
    sentence = inquiry_.paused(mine, paused_);
  if (sentence.empty()) sentence = keeper() ? inquiry_.verdict(mine) : inquiry_.without_keeper(mine);
  return own(sentence);
}

/// Rank 0 does not answer.
void Watch::State::fall_back() {
  verdict_by_ = Deadline::max();
  if (verdict().empty()) conclude(verdict_of_all());
}

void Watch::State::conclude(const std::string& sentence) {
  std::shared_ptr<Group> world;
  {
    const std::lock_guard lock(mutex_);
    if (!verdict_.empty()) return;
    verdict_ = sentence;
    if (keeper()) untold_ = inquiry_.reachable();
    world = world_;
    changed_.notify_all();
  }
  if (keeper()) channel_->send(-1, said(Said::verdict, sentence));
  inquiry_.end();
  leave_at_ = Clock::now() + seconds(options_.leave_seconds);
  if (world) world->abandon(sentence);
}

Watch::Watch(std::unique_ptr<Channel> channel, WatchOptions options)
    : state_(std::make_shared<State>(std::move(channel), std::move(options))) {
  state_->start();
}
Watch::~Watch() { state_->stop(); }

OnLost Watch::on_lost() const {
  return [state = std::weak_ptr(state_)](const Ledger&, const PeerLost& lost) {
    const auto alive = state.lock();
    return alive ? alive->lost(lost) : std::string(lost.what());
  };
}

void Watch::guard(const Group& world) { state_->guard(world); }
void Watch::limit_work(double seconds) { state_->limit_work(seconds); }
void Watch::fail(std::string_view why) { state_->fail(why); }
void Watch::close() { state_->close(); }
std::string Watch::verdict() const { return state_->verdict(); }

}  // namespace hpcdl::comm
