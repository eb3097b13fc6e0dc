#include "hpcdl/comm/bootstrap/store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "hpcdl/comm/bootstrap/store_server.h"

namespace hpcdl::comm {

using namespace std::chrono_literals;

namespace {

constexpr auto kGrace = 5s;  // time after a deadline for the answer of rank 0 that names the late ranks
constexpr auto kFirstWord = 3s, kSecondWord = 10s;
constexpr auto kParting = 2s;  // time for rank 0 to tell the others

template <class... A> [[noreturn]] void lost(fmt::format_string<A...> f, A&&... args) {
  throw PeerLost("[dist] " + fmt::format(f, std::forward<A>(args)...));
}

/// Waits for the next frame. Empty at the deadline, if the peer has closed, or once `asked` returns true.
std::optional<Frame> wait_frame(Connection& c, Deadline deadline, const Store::Asked& asked = {}) {
  for (;;) {
    if (auto frame = c.next()) return frame;
    const Deadline until = asked ? std::min<Deadline>(Clock::now() + Store::kAsk, deadline) : deadline;
    if (wait_for(c.socket(), false, until)) {
      if (!c.fill()) return c.next();
    } else if (until == deadline || asked()) {
      return std::nullopt;
    }
  }
}

std::string milliseconds_left(Deadline deadline) {
  return (Packer() << std::int64_t{milliseconds_until(deadline)}).take();
}

}  // namespace

/// The connection to rank 0, with a thread that reads it.
class Store::Link {
 public:
  Link(Connection connection, int rank, std::vector<std::string> hosts, RunKey key);
  ~Link();

  void send(FrameKind kind, std::string payload);
  /// Sends and waits for the answer.
  std::string ask(FrameKind kind, std::string payload, Deadline deadline);
  void listen(OnMessage on_message, OnLost on_lost);
  void say_goodbye();

  const int rank;
  const std::vector<std::string> hosts;
  const RunKey key;
  const std::string own_address, address_of_rank_0;

 private:
  struct Event {
    bool lost;
    int rank;
    std::string text;
  };

  void put(const Frame& frame);
  void wake();
  void run();
  bool read_all();
  void handle(Frame frame);
  int known(std::int32_t rank_of_event) const;
  void deliver();
  void end(const std::string& why);

  std::mutex mutex_;
  std::condition_variable answered_;
  Connection connection_;
  std::uint32_t next_id_ = 1;
  std::map<std::uint32_t, std::optional<Frame>> requests_;
  std::deque<Event> events_;
  std::string over_;  // why the connection has ended; empty: it has not
  bool left_ = false, stop_ = false;
  std::mutex handlers_mutex_;  // held while a handler runs
  OnMessage on_message_;
  OnLost on_lost_;
  Socket wake_;
  std::thread thread_;
};

Store::Link::Link(Connection connection, int own_rank, std::vector<std::string> all_hosts, RunKey run_key)
    : rank(own_rank),
      hosts(std::move(all_hosts)),
      key(std::move(run_key)),
      own_address(own_end(connection.socket())),
      address_of_rank_0(other_end(connection.socket())),
      connection_(std::move(connection)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  thread_ = std::thread([this] { run(); });
}

Store::Link::~Link() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void Store::Link::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_.fd(), &one, sizeof one);
}

/// With the lock held. What cannot be written at once is written by the thread.
void Store::Link::put(const Frame& frame) {
  connection_.put(frame);
  connection_.flush();
  if (connection_.has_output()) wake();
}

void Store::Link::send(FrameKind kind, std::string payload) {
  const std::lock_guard lock(mutex_);
  if (over_.empty() && !left_) put({kind, 0, std::move(payload)});
}

std::string Store::Link::ask(FrameKind kind, std::string payload, Deadline deadline) {
  std::unique_lock lock(mutex_);
  require(!left_, "dist", "the store is closed");
  const auto id = next_id_++;
  auto& answer = requests_[id];
  if (over_.empty()) put({kind, id, std::move(payload)});
  answered_.wait_until(lock, deadline + kGrace, [&] { return answer.has_value() || !over_.empty(); });
  const auto frame = std::move(answer);
  requests_.erase(id);
  if (!frame && !over_.empty()) lost("{}", over_);
  if (!frame) lost("rank 0 on {} does not answer", hosts[0]);
  if (frame->kind == FrameKind::late) lost("{}", frame->payload);
  return frame->payload;
}

void Store::Link::listen(OnMessage on_message, OnLost on_lost) {
  const std::lock_guard lock(handlers_mutex_);
  on_message_ = std::move(on_message);
  on_lost_ = std::move(on_lost);
  wake();
}

void Store::Link::say_goodbye() {
  const std::lock_guard lock(mutex_);
  if (left_) return;
  if (over_.empty()) put({FrameKind::bye, 0, ""});
  left_ = true;
}

void Store::Link::run() {
  // After the connection has ended, the thread continues: handlers that are set later are told, too.
  for (bool open = read_all();; open = open && read_all()) {
    deliver();
    pollfd fds[2] = {{wake_.fd(), POLLIN, 0}, {connection_.socket().fd(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      if (connection_.has_output()) fds[1].events |= POLLOUT;
    }
    poll(fds, open ? 2 : 1, -1);
    std::uint64_t count;
    [[maybe_unused]] const auto n = ::read(wake_.fd(), &count, sizeof count);
  }
}

bool Store::Link::read_all() {
  const std::lock_guard lock(mutex_);
  std::string why = "its connection is gone";
  try {
    const bool open = connection_.fill() && connection_.flush();
    while (auto frame = connection_.next()) handle(std::move(*frame));
    if (open) return true;
  } catch (const Error& e) {
    why = e.what();
  }
  if (!left_) end(fmt::format("rank 0 on {}: {}", hosts[0], why));
  return false;
}

void Store::Link::end(const std::string& why) {
  over_ = why;
  events_.push_back({true, 0, why});
  answered_.notify_all();
}

void Store::Link::handle(Frame frame) {
  Unpacker in(frame.payload);
  if (frame.kind == FrameKind::reply || frame.kind == FrameKind::late) {
    const auto it = requests_.find(frame.id);
    if (it != requests_.end()) it->second = std::move(frame), answered_.notify_all();
  } else if (frame.kind == FrameKind::message) {
    const auto from = known(in.number<std::int32_t>());
    events_.push_back({false, from, std::string(in.rest())});
  } else if (frame.kind == FrameKind::lost) {
    const auto who = known(in.number<std::int32_t>());
    events_.push_back({true, who, std::string(in.string())});
  }
}

int Store::Link::known(std::int32_t rank_of_event) const {
  require(rank_of_event >= 0 && rank_of_event < static_cast<std::int32_t>(hosts.size()), "dist",
          "it names a rank {} that does not exist", rank_of_event);
  return rank_of_event;
}

/// Passes events to the handlers, without the lock that callers need.
void Store::Link::deliver() {
  const std::lock_guard handlers(handlers_mutex_);
  while (on_message_ && on_lost_) {
    std::unique_lock lock(mutex_);
    if (events_.empty()) return;
    const Event e = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    if (e.lost) on_lost_(e.rank, e.text);
    else on_message_(e.rank, e.text);
  }
}

Store::Store(std::unique_ptr<StoreServer> server, std::unique_ptr<Link> link)
    : server_(std::move(server)), link_(std::move(link)) {}
Store::~Store() = default;

std::shared_ptr<Store> Store::introduce(Socket socket, int rank, int world, const RunKey& key, Deadline deadline,
                                        std::unique_ptr<StoreServer> server, const Asked& asked) {
  const auto there = other_end(socket);
  Caller caller(std::move(socket), key, {rank, world, host_name()}, "what listens at " + there);
  Connection& c = caller.connection();
  for (const auto begin = Clock::now(); caller.advance() == Caller::State::under_way;) {
    const auto until = begin + (caller.challenged() ? kSecondWord : kFirstWord);
    if (!wait_for(c.socket(), c.has_output(), std::min<Deadline>(until, deadline + kGrace))) return nullptr;
  }
  if (caller.state() == Caller::State::foreign) return nullptr;
  if (caller.state() == Caller::State::refused) lost("{}", caller.words());
  if (caller.state() == Caller::State::stopped) throw Stopped("[dist] " + caller.words());
  c.trust();
  auto frame = wait_frame(c, deadline + kGrace, asked);
  if (!frame && asked && asked()) {
    // All ranks stop, unless the last one has connected by now: then they all continue, and stop together later.
    c.put({FrameKind::stop, 0, ""});
    c.flush();
    frame = wait_frame(c, Clock::now() + kParting);
  }
  if (!frame)
    lost("rank 0 accepted rank {} of {}, and then sent nothing more: it has ended, or its host is cut off", rank,
         world);
  if (frame->kind == FrameKind::stop) throw Stopped("[dist] " + frame->payload);
  if (frame->kind != FrameKind::welcome) lost("{}", frame->payload);
  Unpacker in(frame->payload);
  std::vector<std::string> hosts;  // run-length encoded: consecutive ranks of one host
  while (hosts.size() < static_cast<std::size_t>(world)) {
    const auto host = in.string();
    const auto ranks = in.number<std::uint32_t>();
    require(ranks > 0 && ranks <= static_cast<std::size_t>(world) - hosts.size(), "dist",
            "rank 0 sent a list of hosts for another number of ranks");
    hosts.insert(hosts.end(), ranks, std::string(host));
  }
  return std::shared_ptr<Store>(
      new Store(std::move(server), std::make_unique<Link>(std::move(c), rank, std::move(hosts), key)));
}

int Store::rank() const { return link_->rank; }
int Store::world() const { return static_cast<int>(hosts().size()); }
const std::vector<std::string>& Store::hosts() const { return link_->hosts; }

const RunKey& Store::key() const { return link_->key; }
const std::string& Store::own_address() const { return link_->own_address; }
const std::string& Store::address_of_rank_0() const { return link_->address_of_rank_0; }

void Store::set(std::string_view key, std::string_view value) {
  link_->send(FrameKind::set, (Packer() << key).take().append(value));
}

std::string Store::get(std::string_view key, Deadline deadline) {
  const auto answer =
      link_->ask(FrameKind::get, milliseconds_left(deadline) + (Packer() << std::uint32_t{1} << key).take(), deadline);
  return std::string(Unpacker(answer).string());
}

void Store::wait(const std::vector<std::string>& keys, Deadline deadline) {
  if (keys.empty()) return;
  Packer list;
  list << static_cast<std::uint32_t>(keys.size());
  for (const auto& key : keys) list << key;
  link_->ask(FrameKind::get, milliseconds_left(deadline) + list.take(), deadline);
}

std::int64_t Store::add(std::string_view key, std::int64_t by, Deadline deadline) {
  return std::stoll(link_->ask(FrameKind::add, (Packer() << key << by).take(), deadline));
}

std::string Store::together(Together kind, std::string_view name, std::string_view value, Deadline deadline) {
  return link_->ask(
      FrameKind::gather,
      milliseconds_left(deadline) + (Packer() << static_cast<std::uint8_t>(kind) << name).take().append(value),
      deadline);
}

namespace {

std::vector<std::string> unpacked(std::string_view text, int count) {
  Unpacker in(text);
  std::vector<std::string> values;
  for (int i = 0; i < count; ++i) values.emplace_back(in.string());
  return values;
}

}  // namespace

std::vector<std::string> Store::gather(std::string_view name, std::string_view value, Deadline deadline) {
  return unpacked(together(Together::gather, name, value, deadline), world());
}

std::vector<std::string> Store::collect(std::string_view name, std::string_view value, Deadline deadline) {
  return unpacked(together(Together::collect, name, value, deadline), rank() == 0 ? world() : 0);
}

std::string Store::scatter(std::string_view name, const std::vector<std::string>& values, Deadline deadline) {
  require(rank() != 0 || values.size() == hosts().size(), "dist",
          "scatter: expected a value for each of {} ranks, got {}", world(), values.size());
  Packer all;
  for (const auto& v : values) all << v;
  return together(Together::scatter, name, all.take(), deadline);
}

void Store::send(int to, std::string_view bytes) {
  link_->send(FrameKind::message, (Packer() << std::int32_t{to}).take().append(bytes));
}

void Store::listen(OnMessage on_message, OnLost on_lost) { link_->listen(std::move(on_message), std::move(on_lost)); }

void Store::finish() { link_->send(FrameKind::over, ""); }
std::int64_t Store::messages() const { return server_ ? server_->messages() : 0; }

bool Store::close(Deadline deadline) {
  link_->say_goodbye();
  return !server_ || server_->wait_for_all(deadline);
}

}  // namespace hpcdl::comm
