#include "hpcdl/comm/transport/connector.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hpcdl::comm {

namespace {

using namespace std::chrono_literals;

constexpr auto kPause = 50ms;      // before another attempt
constexpr auto kConnect = 2000ms;  // for the TCP connection of an attempt, at one address

}  // namespace

void Card::pack(Packer& p) const {
  const auto n = std::min<std::size_t>(addresses.size(), kMostAddresses);
  p << port << static_cast<std::uint32_t>(n);
  for (std::size_t i = 0; i < n; ++i) p << addresses[i];
}

Card Card::of(Unpacker& u) {
  constexpr std::size_t kLongest = 256;
  Card c;
  c.port = u.number<int>();
  c.addresses.resize(u.count(kMostAddresses));
  require(!c.addresses.empty(), "comm", "a rank has sent no address at which it listens");
  for (auto& a : c.addresses) a = u.string(kLongest);
  return c;
}

Connector::Connector(int rank, std::vector<std::string> names, RunKey key, Socket listening)
    : rank_(rank),
      names_(std::move(names)),
      key_(std::move(key)),
      door_(std::move(listening), key_.derived(std::to_string(rank_)), named(rank_)),
      open_(names_.size()),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      news_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  require(wake_ && news_fd_, "comm", "cannot make an eventfd: {}", std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

Connector::~Connector() {
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
  }
  signal(wake_);
  thread_.join();
}

void Connector::signal(const Socket& event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(event.fd(), &one, sizeof one);
}

std::string Connector::named(int rank) const {
  return fmt::format("rank {} on {}", rank, names_[static_cast<std::size_t>(rank)]);
}

void Connector::want(int rank, const Card& card) {
  {
    const std::lock_guard lock(mutex_);
    wishes_.push_back({rank, card});
  }
  signal(wake_);
}

std::vector<Connector::News> Connector::take_news() {
  const std::lock_guard lock(mutex_);
  has_news_.store(false, std::memory_order_relaxed);
  std::uint64_t count;
  if (!left_ && ::read(news_fd_.fd(), &count, sizeof count) < 0) return {};
  return std::exchange(news_, {});
}

void Connector::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
    for (const int fd : delivered_) ::shutdown(fd, SHUT_RDWR);
  }
  signal(wake_);
  signal(news_fd_);
}

void Connector::deliver(int rank, Socket socket, std::string why) {
  const std::lock_guard lock(mutex_);
  if (left_) return;
  if (socket) delivered_.push_back(socket.fd());
  news_.push_back({rank, std::move(socket), std::move(why)});
  has_news_.store(true, std::memory_order_release);
  signal(news_fd_);
}

void Connector::run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (left_) break;
    }
    take_wishes();
    advance_calls();
    for (auto& guest : door_.open()) let_in(guest);
    wait();
  }
  calls_.clear();
  door_.close();
}

void Connector::take_wishes() {
  std::vector<Wish> wishes;
  {
    const std::lock_guard lock(mutex_);
    wishes.swap(wishes_);
  }
  for (auto& w : wishes)
    if (!open_[static_cast<std::size_t>(w.rank)]) calls_[w.rank].card = std::move(w.card);
}

void Connector::advance_calls() {
  for (auto it = calls_.begin(); it != calls_.end();) it = advance(it->first, it->second) ? calls_.erase(it) : ++it;
}

bool Connector::advance(int to, Call& c) {
  if (!c.under_way()) {
    if (Clock::now() < c.pause) return false;
    int error = 0;
    c.connecting = begin_connect(c.card.addresses[c.address], c.card.port, error);
    c.until = Clock::now() + kConnect;
    if (!c.connecting) return attempt_failed(to, c, error);
  }
  if (c.connecting) {
    const int error = end_connect(c.connecting);
    if (error == EINPROGRESS) return Clock::now() >= c.until && attempt_failed(to, c, ETIMEDOUT);
    if (error != 0) return attempt_failed(to, c, error);
    c.caller = std::make_unique<Caller>(
        std::move(c.connecting), key_.derived(std::to_string(to)),
        Visitor{rank_, static_cast<int>(names_.size()), names_[static_cast<std::size_t>(rank_)]}, named(to));
    c.connecting = Socket();
  }
  switch (c.caller->advance()) {
    case Caller::State::under_way: return false;
    case Caller::State::accepted:
      open_[static_cast<std::size_t>(to)] = true;
      deliver(to, c.caller->connection().take_socket());
      return true;
    case Caller::State::refused: deliver(to, Socket(), c.caller->words()); return true;
    default:  // it had no room, is itself calling this rank, or has left; or something else listens there
      c.caller.reset();
      c.address = c.refusals = 0;
      c.pause = Clock::now() + kPause;
      return false;
  }
}

/// All ranks listen from start to end: a rank that does not listen has ended.
bool Connector::attempt_failed(int to, Call& c, int error) {
  c.connecting = Socket();
  c.refusals += error == ECONNREFUSED;
  if (error == EMFILE || error == ENFILE) {
    deliver(to, Socket(),
            fmt::format("there is no descriptor left for a connection to {}: raise the limit, ulimit -n", named(to)));
    return true;
  }
  if (++c.address < c.card.addresses.size()) return false;
  if (c.refusals == c.card.addresses.size()) {
    deliver(to, Socket(), fmt::format("{} does not listen any more: it has ended", named(to)));
    return true;
  }
  c.address = c.refusals = 0;
  c.pause = Clock::now() + kPause;
  return false;
}

void Connector::let_in(Door::Guest& guest) {
  const int from = guest.who.rank;
  if (from < 0 || from >= static_cast<int>(names_.size()) || from == rank_ || open_[static_cast<std::size_t>(from)])
    return Door::refuse(
        guest, fmt::format("{} expects no connection from rank {}: it has one already, or there is no such rank",
                           named(rank_), from));
  const auto call = calls_.find(from);
  const bool calls_it = call != calls_.end() && call->second.under_way();
  if (calls_it && rank_ > from) return Door::refuse(guest, "");  // without an answer: it tries again if mine fails
  guest.connection->put({FrameKind::accepted, 0, ""});
  if (!guest.connection->flush()) return;
  if (call != calls_.end()) calls_.erase(call);
  open_[static_cast<std::size_t>(from)] = true;
  deliver(from, guest.connection->take_socket());
}

void Connector::wait() {
  std::vector<pollfd> list{{wake_.fd(), POLLIN, 0}};
  door_.wait_for(list);
  Deadline until = door_.next_deadline();
  for (const auto& [_, c] : calls_) {
    if (c.connecting) list.push_back({c.connecting.fd(), POLLOUT, 0}), until = std::min(until, c.until);
    else if (c.caller) list.push_back({c.caller->connection().socket().fd(), POLLIN, 0});
    else until = std::min(until, c.pause);
  }
  poll(list.data(), list.size(), until == Deadline::max() ? -1 : milliseconds_until(until));
  std::uint64_t count;
  [[maybe_unused]] const auto n = ::read(wake_.fd(), &count, sizeof count);
}

}  // namespace hpcdl::comm
