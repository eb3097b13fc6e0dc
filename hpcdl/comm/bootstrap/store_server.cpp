#include "hpcdl/comm/bootstrap/store_server.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace hpcdl::comm {

namespace {

using namespace std::chrono_literals;
constexpr int kMostNamed = 16;  // ranks in one message
constexpr int kEvents = 64;     // of one round
// Limits for the memory of rank 0 that one rank may use by mistake.
constexpr std::size_t kLongestKey = 4096, kMostKept = std::size_t{1} << 30;  // bytes
constexpr std::size_t kMostUnsent = 4 * Connection::kLargest;                // bytes
constexpr std::uint32_t kMostKeys = 4096;                                    // in one request
constexpr std::size_t kMostWaiting = 1 << 12;                                // requests of one rank
constexpr std::size_t kOfValue = 128;  // bytes in addition to its name and its contents

/// Rank 0 holds a connection to every rank. Raises the soft limit of open files if it is too low for that.
void allow_connections(int world) {
  constexpr rlim_t kOthers = 256;  // files, listeners, links to neighbours
  const rlim_t needed = static_cast<rlim_t>(world) + kOthers;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  require(limit.rlim_max >= needed, "dist",
          "rank 0 needs up to {} open files for {} ranks, but at most {} are allowed here: raise the hard limit "
          "(`ulimit -Hn`, or LimitNOFILE of the service)",
          needed, world, limit.rlim_max);
  limit.rlim_cur = needed;
  require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "dist", "cannot raise the limit of open files to {}: {}", needed,
          std::strerror(errno));
}

}  // namespace

StoreServer::StoreServer(Socket listening, ServerOptions options)
    : options_(std::move(options)),
      door_(std::move(listening), options_.key, fmt::format("rank 0 on {}", host_name())),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      watched_(epoll_create1(EPOLL_CLOEXEC)),
      ranks_(static_cast<std::size_t>(options_.world)) {
  require(wake_ && watched_, "dist", "cannot make an eventfd or epoll: {}", std::strerror(errno));
  allow_connections(options_.world);
  thread_ = std::thread([this] { run(); });
}

StoreServer::~StoreServer() {
  stop_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_.fd(), &one, sizeof one);
  thread_.join();
}

bool StoreServer::wait_for_all(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return done_.wait_until(lock, deadline, [this] { return all_left_; });
}

void StoreServer::run() {
  while (!stop_ && serve_once()) {}
  for (auto& r : ranks_)
    if (r.connection) r.connection->flush();
  const std::lock_guard lock(mutex_);
  all_left_ = true;
  done_.notify_all();
}

/// One round of poll. False if all ranks have left.
bool StoreServer::serve_once() {
  std::vector<pollfd> fds{{wake_.fd(), POLLIN, 0}, {watched_.fd(), POLLIN, 0}};
  door_.wait_for(fds);
  poll(fds.data(), fds.size(), milliseconds_until(next_deadline()));

  let_in();
  epoll_event events[kEvents];
  const int count = epoll_wait(watched_.fd(), events, kEvents, 0);
  for (int i = 0; i < count; ++i) {
    const int rank = static_cast<int>(events[i].data.u32);
    if (events[i].events & ~static_cast<std::uint32_t>(EPOLLOUT)) read_from(rank);
    will_write(rank);
  }
  if (std::exchange(new_values_, false)) answer_gets();
  if (Clock::now() >= first_late_) end_what_is_late();
  if (!started_ && gave_up_.empty() && Clock::now() >= options_.join_by) give_up(absent());
  write_all();
  return !started_ || here_ > 0;
}

void StoreServer::write_all() {
  while (!to_write_.empty())  // a loss is reported to all
    for (const int r : std::exchange(to_write_, {})) {
      auto& rank = ranks_[static_cast<std::size_t>(r)];
      rank.to_write = false;
      if (!rank.connection) continue;
      if (!rank.connection->flush()) lose(r, "its connection is gone");
      else if (rank.connection->unsent() > kMostUnsent) lose(r, "it does not read what is sent to it");
      else if (rank.connection->has_output() != rank.writes) watch(r, !rank.writes);
    }
}

void StoreServer::watch(int rank, bool writes, bool begins) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  r.writes = writes;
  epoll_event event{};
  event.events = writes ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u32 = static_cast<std::uint32_t>(rank);
  const int fd = r.connection->socket().fd();
  const bool done = epoll_ctl(watched_.fd(), begins ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0;
  require(done, "dist", "epoll_ctl: {}", std::strerror(errno));
}

Deadline StoreServer::next_deadline() const {
  Deadline next = std::min({Clock::now() + 1h, door_.next_deadline(), first_late_});
  if (!started_ && gave_up_.empty()) next = std::min(next, options_.join_by);
  return next;
}

void StoreServer::let_in() {
  for (auto& guest : door_.open()) seat(guest);
  if (!told_ && options_.say && !door_.last_refusal().empty()) told_ = true, options_.say(door_.last_refusal());
  start_if_complete();
}

/// Why a rank cannot be accepted; empty: it can. It has proved that it has the key, so an error ends the start of all
/// ranks.
std::string StoreServer::problem_with(const Visitor& v) const {
  if (v.world != options_.world)
    return fmt::format("rank {} on {} was started in a world of {}, rank 0 in a world of {}", v.rank, v.host, v.world,
                       options_.world);
  if (v.rank < 0 || v.rank >= v.world)
    return fmt::format("rank {} on {}: ranks are 0 to {}", v.rank, v.host, v.world - 1);
  const auto& r = ranks_[static_cast<std::size_t>(v.rank)];
  if (started_ || r.connection)
    return fmt::format("rank {} came twice, from {} and from {}: are there two launches at one address?", v.rank,
                       r.host, v.host);
  return {};
}

void StoreServer::seat(Door::Guest& guest) {
  if (gave_up_.empty()) {
    // It may have connected before, and ended unnoticed.
    if (!started_ && guest.who.rank >= 0 && guest.who.rank < options_.world) read_from(guest.who.rank);
    const auto problem = problem_with(guest.who);
    if (!problem.empty() && !started_) give_up(problem);
    if (!problem.empty()) return Door::refuse(guest, problem);
  }
  if (!gave_up_.empty()) return Door::refuse(guest, gave_up_, gave_up_as_);
  auto& r = ranks_[static_cast<std::size_t>(guest.who.rank)];
  here_ += r.connection == nullptr;
  r.connection = std::move(guest.connection);
  watch(guest.who.rank, false, true);
  r.waiting = 0;
  send(guest.who.rank, FrameKind::accepted, 0, "");
  r.connection->trust();
  r.host = guest.who.host;
  r.lost = false;  // it may have come before
}

void StoreServer::start_if_complete() {
  if (started_ || !gave_up_.empty() || here_ < ranks_.size()) return;
  started_ = true;
  door_.close();
  Packer hosts;
  for (std::size_t first = 0, end = 0; first < ranks_.size(); first = end) {
    while (end < ranks_.size() && ranks_[end].host == ranks_[first].host) ++end;
    hosts << ranks_[first].host << static_cast<std::uint32_t>(end - first);
  }
  const auto text = hosts.take();
  for (int r = 0; r < options_.world; ++r) send(r, FrameKind::welcome, 0, text);
}

void StoreServer::read_from(int rank) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  if (!r.connection) return;
  try {
    const bool open = r.connection->fill();
    while (r.connection) {
      const auto frame = r.connection->next();
      if (!frame) break;
      handle(rank, *frame);
    }
    if (!open && r.connection) lose(rank, "its connection is gone");
  } catch (const Error& e) {
    if (r.connection) lose(rank, e.what());
  }
}

void StoreServer::handle(int rank, const Frame& f) {
  messages_.fetch_add(1, std::memory_order_relaxed);
  Unpacker in(f.payload);
  const auto deadline = [&] { return Clock::now() + std::chrono::milliseconds(in.number<std::int64_t>()); };
  switch (f.kind) {
    case FrameKind::set: {
      auto& value = value_of(in.string(kLongestKey));
      const auto text = in.rest();
      keep(text.size());
      kept_ -= value.size();
      value = text;
      new_values_ = true;
      break;
    }
    case FrameKind::get: {
      Waiting w{rank, f.id, deadline(), {}};
      for (auto n = in.count(kMostKeys); n > 0; --n) w.keys.emplace_back(in.string(kLongestKey));
      begin_waiting(rank);
      if (answer(w)) break;
      first_late_ = std::min(first_late_, w.deadline);
      gets_.push_back(std::move(w));
      break;
    }
    case FrameKind::add: {
      const std::string key(in.string(kLongestKey));
      auto& value = value_of(key);
      std::int64_t number = 0;
      if (!value.empty() &&
          std::from_chars(value.data(), value.data() + value.size(), number).ptr != value.data() + value.size())
        fail("dist", "it adds to \"{}\", which holds no number", key);
      value = std::to_string(number + in.number<std::int64_t>());
      new_values_ = true;
      send(rank, FrameKind::reply, f.id, value);
      break;
    }
    case FrameKind::gather: contribute(rank, f.id, in); break;
    case FrameKind::message: {
      const auto to = in.number<std::int32_t>();
      const auto text = (Packer() << std::int32_t{rank}).take() + std::string(in.rest());
      for (int r = 0; r < options_.world; ++r)
        if (to < 0 ? r != rank : r == to) send(r, FrameKind::message, 0, text);
      break;
    }
    case FrameKind::stop: {
      const auto& host = ranks_[static_cast<std::size_t>(rank)].host;
      if (!started_ && gave_up_.empty())
        give_up(fmt::format("rank {} on {} was asked to stop before all ranks had connected: nothing was started", rank,
                            host),
                FrameKind::stop);
      break;
    }
    case FrameKind::over: ranks_[static_cast<std::size_t>(rank)].over = true; break;
    case FrameKind::bye: {
      ranks_[static_cast<std::size_t>(rank)].left = true;
      vacate(rank);
      break;
    }
    default: fail("dist", "it sent a message that only rank 0 may send");
  }
}

void StoreServer::contribute(int rank, std::uint32_t id, Unpacker& in) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(in.number<std::int64_t>());
  const auto kind = static_cast<Together>(in.number<std::uint8_t>());
  const std::string name(in.string(kLongestKey));
  Meeting& m = meetings_[name];
  if (m.values.empty()) m.kind = kind, m.values.resize(ranks_.size()), m.missing = ranks_.size();
  require(m.kind == kind && kind <= Together::scatter, "dist",
          "it does something else with \"{}\" than the other ranks", name);
  auto& value = m.values[static_cast<std::size_t>(rank)];
  m.missing -= value == nullptr;
  value = std::make_unique<std::string>(in.rest());
  begin_waiting(rank);
  m.waiting.push_back({rank, id, deadline, {}});
  m.deadline = std::min(m.deadline, deadline);
  first_late_ = std::min(first_late_, deadline);
  if (m.missing == 0) {
    answer_all(m);
    meetings_.erase(name);  // a later round of the same name starts again
  } else if (std::any_of(absent_.begin(), absent_.end(),
                         [&](int r) { return !m.values[static_cast<std::size_t>(r)]; })) {
    end_late(name, m);
  }
}

void StoreServer::answer_all(Meeting& m) {
  std::string all;
  if (m.kind != Together::scatter) {
    Packer out;
    for (const auto& value : m.values) out << *value;
    all = out.take();
  }
  std::vector<std::string_view> parts;
  if (m.kind == Together::scatter) {
    Unpacker in(*m.values.front());
    for (std::size_t r = 0; r < ranks_.size(); ++r) parts.push_back(in.string());
  }
  for (const Waiting& w : m.waiting) {
    --ranks_[static_cast<std::size_t>(w.rank)].waiting;
    if (m.kind == Together::scatter) reply(w.rank, w.id, std::string(parts[static_cast<std::size_t>(w.rank)]));
    else reply(w.rank, w.id, m.kind == Together::gather || w.rank == 0 ? all : std::string());
  }
}

/// Ends waits for a rank that is gone.
void StoreServer::end_late(const std::string& name, Meeting& m) {
  const auto text = missing(name, m);
  for (const Waiting& w : std::exchange(m.waiting, {})) {
    --ranks_[static_cast<std::size_t>(w.rank)].waiting;
    send(w.rank, FrameKind::late, w.id, text);
  }
  m.deadline = Deadline::max();
}

void StoreServer::end_what_is_late() {
  const auto now = Clock::now();
  first_late_ = Deadline::max();
  for (auto& entry : meetings_) {
    Meeting& m = entry.second;
    if (now >= m.deadline) {
      const auto text = missing(entry.first, m);
      m.deadline = Deadline::max();
      std::erase_if(m.waiting, [&](const Waiting& w) {
        if (now < w.deadline) return m.deadline = std::min(m.deadline, w.deadline), false;
        --ranks_[static_cast<std::size_t>(w.rank)].waiting;
        send(w.rank, FrameKind::late, w.id, text);
        return true;
      });
    }
    first_late_ = std::min(first_late_, m.deadline);
  }
  answer_gets();
  for (const auto& w : gets_) first_late_ = std::min(first_late_, w.deadline);
}

void StoreServer::answer_gets() {
  std::erase_if(gets_, [this](const Waiting& w) { return answer(w); });
}

/// True if it has been answered, with or without an error.
bool StoreServer::answer(const Waiting& w) {
  auto& rank = ranks_[static_cast<std::size_t>(w.rank)];
  if (!rank.connection) return true;
  Packer out;
  bool complete = true;
  for (const auto& key : w.keys) {
    const auto it = values_.find(key);
    if (it != values_.end()) out << it->second;
    else complete = false;
  }
  if (!complete && Clock::now() < w.deadline) return false;
  --rank.waiting;
  if (complete) reply(w.rank, w.id, out.take());
  else send(w.rank, FrameKind::late, w.id, missing(w));
  return true;
}

std::string StoreServer::named(int rank) const {
  const auto& r = ranks_[static_cast<std::size_t>(rank)];
  const auto expected = static_cast<std::size_t>(rank) < options_.expected.size()
                            ? options_.expected[static_cast<std::size_t>(rank)]
                            : std::string();
  const auto& host = r.host.empty() ? expected : r.host;
  return fmt::format("{}{}{}", rank, host.empty() ? "" : " on " + host,
                     r.lost   ? " (lost)"
                     : r.left ? " (has left)"
                              : "");
}

/// The ranks that have not come, in words.
std::string StoreServer::absent() const {
  std::string not_here, here;
  int count = 0;
  for (int r = 0; r < options_.world; ++r) {
    const bool there = ranks_[static_cast<std::size_t>(r)].connection != nullptr;
    count += !there;
    auto& list = there ? here : not_here;
    if (std::count(list.begin(), list.end(), ',') < kMostNamed) list += (list.empty() ? "" : ", ") + named(r);
  }
  const auto& refused = door_.last_refusal();
  return fmt::format("{} of {} ranks did not come in time: {}; here: {}{}", count, options_.world, not_here,
                     here.empty() ? "none" : here, refused.empty() ? "" : "; refused: " + refused);
}

std::string StoreServer::missing(const Waiting& w) const {
  std::string text, lost;
  for (const auto& key : w.keys)
    if (!values_.contains(key)) text += (text.empty() ? "" : ", ") + fmt::format("\"{}\"", key);
  for (int r = 0; r < options_.world; ++r)
    if (ranks_[static_cast<std::size_t>(r)].lost) lost += (lost.empty() ? "" : ", ") + named(r);
  return fmt::format("no rank has set {}{}{}", text, lost.empty() ? "" : "; lost: rank ", lost);
}

std::string StoreServer::missing(const std::string& name, const Meeting& m) const {
  std::string text;
  const auto waits_for = [&](int r) { return !m.values[static_cast<std::size_t>(r)]; };
  const auto gone = [&](int r) { return waits_for(r) && !ranks_[static_cast<std::size_t>(r)].connection; };
  bool any_gone = false;  // then the others are not the cause
  for (int r = 0; r < options_.world; ++r) any_gone |= gone(r);
  int named_so_far = 0;
  for (int r = 0; r < options_.world; ++r)
    if ((any_gone ? gone(r) : waits_for(r)) && named_so_far++ < kMostNamed)
      text += (text.empty() ? "" : ", ") + named(r);
  return fmt::format("\"{}\" waits for rank {}", name, text);
}

/// It is gone, and will not take part in what the others wait for.
void StoreServer::vacate(int rank) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  r.connection.reset();
  --here_;
  if (!started_) return;  // it may connect again
  absent_.push_back(rank);
  for (auto& [name, m] : meetings_)
    if (!m.values[static_cast<std::size_t>(rank)]) end_late(name, m);
}

void StoreServer::lose(int rank, const std::string& why) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  (r.over ? r.left : r.lost) = true;
  vacate(rank);
  if (!started_ || r.over) return;
  const auto text = (Packer() << std::int32_t{rank} << fmt::format("rank {} on {}: {}", rank, r.host, why)).take();
  for (int other = 0; other < options_.world; ++other) send(other, FrameKind::lost, 0, text);
}

void StoreServer::give_up(const std::string& why, FrameKind kind) {
  gave_up_ = why;
  gave_up_as_ = kind;
  for (int r = 0; r < options_.world; ++r) send(r, kind, 0, why);
}

void StoreServer::reply(int rank, std::uint32_t id, std::string payload) {
  if (payload.size() <= Connection::kLargest) return send(rank, FrameKind::reply, id, std::move(payload));
  send(rank, FrameKind::late, id,
       fmt::format("an answer of {} bytes is too large for the store; expected at most {}", payload.size(),
                   Connection::kLargest));
}

/// Throws Error, which ends the rank that asks, if that would be too large.
std::string& StoreServer::value_of(std::string_view key) {
  const auto it = values_.find(key);
  if (it != values_.end()) return it->second;
  keep(key.size() + kOfValue);
  return values_.emplace(key, std::string()).first->second;
}

void StoreServer::keep(std::size_t bytes) {
  require(kept_ + bytes <= kMostKept, "dist", "the store is full: it holds {} bytes, and at most {} are allowed", kept_,
          kMostKept);
  kept_ += bytes;
}

void StoreServer::begin_waiting(int rank) {
  auto& waiting = ranks_[static_cast<std::size_t>(rank)].waiting;
  require(waiting < kMostWaiting, "dist", "it waits for {} things at once", waiting);
  ++waiting;
}

void StoreServer::will_write(int rank) {
  auto& r = ranks_[static_cast<std::size_t>(rank)];
  if (r.to_write || !r.connection) return;
  r.to_write = true;
  to_write_.push_back(rank);
}

void StoreServer::send(int rank, FrameKind kind, std::uint32_t id, std::string payload) {
  auto& c = ranks_[static_cast<std::size_t>(rank)].connection;
  if (!c) return;
  messages_.fetch_add(1, std::memory_order_relaxed);
  c->put({kind, id, std::move(payload)});
  will_write(rank);
}

}  // namespace hpcdl::comm
