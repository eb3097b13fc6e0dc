#include "hpcdl/comm/transport/tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "hpcdl/comm/bootstrap/frame.h"
#include "hpcdl/comm/bootstrap/store.h"
#include "hpcdl/comm/transport/host.h"
#include "hpcdl/comm/transport/link.h"

namespace hpcdl::comm {
namespace {

constexpr auto kIntroduction = std::chrono::seconds(5);  // until a connection has said who it is

struct Hello {
  std::uint64_t token = 0;  // of the launch: a stranger does not get in
  std::int64_t rank = 0;
};

/// What each rank says of itself.
struct Card {
  std::string key, host;
  int port = 0;
  std::uint64_t token = 0;
  std::vector<std::string> addresses;

  std::string packed() const {
    Packer p;
    p << key << host << port << token << static_cast<std::uint32_t>(addresses.size());
    for (const auto& a : addresses) p << a;
    return p.take();
  }
  static Card of(std::string_view text) {
    Unpacker u(text);
    Card c;
    c.key = u.string();
    c.host = u.string();
    c.port = u.number<int>();
    c.token = u.number<std::uint64_t>();
    c.addresses.resize(u.number<std::uint32_t>());
    for (auto& a : c.addresses) a = u.string();
    return c;
  }
};

class TcpTransport : public Transport {
 public:
  TcpTransport(std::shared_ptr<Store> store, Deadline deadline, const std::string& called)
      : store_(std::move(store)), links_(static_cast<std::size_t>(store_->world())) {
    const Socket listening = listen_at("", 0);
    const std::uint64_t token = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32;
    const auto texts = store_->gather("comm/tcp",
                                      Card{host_key() + "/" + called, called.empty() ? comm::host_name() : called,
                                           port_of(listening), token, own_addresses()}
                                          .packed(),
                                      deadline);
    std::vector<Card> cards;
    std::vector<std::string> keys;
    for (const auto& text : texts) {
      cards.push_back(Card::of(text));
      keys.push_back(cards.back().key);
      names_.push_back(cards.back().host);
    }
    hosts_ = number_hosts(keys);
    const std::uint64_t secret = cards.front().token;
    for (int r = 0; r < rank(); ++r) connect(r, cards[static_cast<std::size_t>(r)], secret, deadline);
    for (int n = rank() + 1; n < size(); ++n) accept(listening, secret, deadline);
  }

  std::string_view name() const override { return "tcp"; }
  int rank() const override { return store_->rank(); }
  int size() const override { return static_cast<int>(links_.size()); }
  int host(int rank) const override { return hosts_[static_cast<std::size_t>(rank)]; }
  std::string host_name(int rank) const override { return names_[static_cast<std::size_t>(rank)]; }

  Pending start_send(int to, std::uint32_t tag, std::span<const std::byte> bytes) override {
    const auto [id, m] = slot();
    *m = {.tag = tag, .to = nullptr, .from = bytes.data(), .bytes = bytes.size()};
    link(to).send(*m);
    return {id, to};
  }
  Pending start_receive(int from, std::uint32_t tag, std::span<std::byte> bytes) override {
    const auto [id, m] = slot();
    *m = {.tag = tag, .to = bytes.data(), .from = nullptr, .bytes = bytes.size()};
    link(from).receive(*m);
    return {id, from};
  }

  bool done(Pending& pending) override {
    if (pending.id == 0) return true;
    const Link::Message& m = message(pending.id);
    if (!m.done) {
      advance();
      if (!m.done) {
        if (link(pending.peer).closed()) gone(pending.peer);
        return false;
      }
    }
    const bool wrong = m.wrong_size;
    free_.push_back(pending.id);
    pending.id = 0;
    if (wrong)
      throw PeerLost("a message of another size than expected came: ranks call different things", pending.peer);
    return true;
  }

  void cancel(Pending& pending) override {
    if (pending.id == 0) return;
    Link::Message& m = message(pending.id);
    if (!m.done) link(pending.peer).take_back(m);
    free_.push_back(pending.id);
    pending.id = 0;
  }

  void withdraw() override {
    for (auto& l : links_)
      for (auto& m : messages_)
        if (l && !m.done) l->take_back(m);
    free_.clear();
    for (std::size_t i = messages_.size(); i > 0; --i) free_.push_back(i);
  }

  void check(int rank) override {
    for (int r = 0; r < size(); ++r)
      if ((rank < 0 || r == rank) && links_[static_cast<std::size_t>(r)] && !link(r).peer_is_there()) gone(r);
  }

  void nap(std::chrono::microseconds at_most) override {
    std::vector<pollfd>& fds = polled_;
    fds.clear();
    for (const auto& l : links_)
      if (l && !l->closed()) {
        const int events = (l->wants_to_read() ? POLLIN | POLLRDHUP : 0) | (l->wants_to_write() ? POLLOUT : 0);
        if (events) fds.push_back({l->socket().fd(), static_cast<short>(events), 0});
      }
    const timespec time{0, at_most.count() * 1000};
    ppoll(fds.data(), fds.size(), &time, nullptr);
  }

  void leave(std::string_view) noexcept override {
    for (const auto& l : links_)
      if (l) ::shutdown(l->socket().fd(), SHUT_RDWR);
  }

  std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes,
                                Deadline deadline) override {
    return share_memory(*this, ranks, tag, bytes, deadline);
  }

 private:
  Link& link(int rank) { return *links_[static_cast<std::size_t>(rank)]; }
  Link::Message& message(std::uint64_t id) { return messages_[id - 1]; }

  std::pair<std::uint64_t, Link::Message*> slot() {
    if (free_.empty()) {
      messages_.emplace_back();
      free_.push_back(messages_.size());
    }
    const std::uint64_t id = free_.back();
    free_.pop_back();
    return {id, &message(id)};
  }

  void advance() {
    for (auto& l : links_)
      if (l) l->advance();
  }

  [[noreturn]] void gone(int rank) {
    throw PeerLost(fmt::format("the connection to rank {} on {} is gone: that rank has ended, or the network is cut",
                               rank, host_name(rank)),
                   rank);
  }

  void connect(int to, const Card& card, std::uint64_t secret, Deadline deadline) {
    std::vector<std::string> addresses = card.addresses;
    if (host(to) == host(rank())) addresses.insert(addresses.begin(), "127.0.0.1");
    std::string why;
    for (;;) {
      for (const auto& address : addresses) {
        Socket s = connect_to(address, card.port, std::chrono::seconds(2), why);
        if (!s) continue;
        const Hello hello{secret, rank()};
        std::size_t sent = 0;
        if (send_some(s, std::as_bytes(std::span(&hello, 1)), sent) != Io::done || sent != sizeof hello) continue;
        links_[static_cast<std::size_t>(to)] = std::make_unique<Link>(std::move(s));
        return;
      }
      if (Clock::now() > deadline)
        throw PeerLost(fmt::format("[comm] rank {} cannot connect to rank {} on {}: {}", rank(), to, card.host, why),
                       to);
    }
  }

  void accept(const Socket& listening, std::uint64_t secret, Deadline deadline) {
    while (wait_for(listening, false, deadline)) {
      Socket s = accept_from(listening);
      if (!s) continue;
      Hello hello{};
      auto bytes = std::as_writable_bytes(std::span(&hello, 1));
      const auto until = std::min<Deadline>(deadline, Clock::now() + kIntroduction);
      while (!bytes.empty() && wait_for(s, false, until)) {
        std::size_t got = 0;
        if (receive_some(s, bytes, got) == Io::closed) break;
        bytes = bytes.subspan(got);
      }
      const bool known = bytes.empty() && hello.token == secret && hello.rank > rank() && hello.rank < size() &&
                         !links_[static_cast<std::size_t>(hello.rank)];
      if (!known) continue;  // a stranger
      links_[static_cast<std::size_t>(hello.rank)] = std::make_unique<Link>(std::move(s));
      return;
    }
    for (int r = rank() + 1; r < size(); ++r)
      if (!links_[static_cast<std::size_t>(r)])
        throw PeerLost(
            fmt::format("[comm] rank {} on {} has not connected to rank {} in time", r, host_name(r), rank()), r);
  }

  std::shared_ptr<Store> store_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; null: myself
  std::vector<int> hosts_;
  std::vector<std::string> names_;
  std::deque<Link::Message> messages_;  // addresses stay
  std::vector<std::uint64_t> free_;
  std::vector<pollfd> polled_;
};

}  // namespace

std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Store> store, Deadline deadline, const std::string& host) {
  return std::make_unique<TcpTransport>(std::move(store), deadline, host);
}

}  // namespace hpcdl::comm
