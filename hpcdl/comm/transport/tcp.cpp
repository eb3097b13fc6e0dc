#include "hpcdl/comm/transport/tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "hpcdl/comm/bootstrap/handshake.h"
#include "hpcdl/comm/bootstrap/store.h"
#include "hpcdl/comm/transport/host.h"
#include "hpcdl/comm/transport/link.h"

namespace hpcdl::comm {
namespace {

/// What each rank says of where it is, before any of them listens.
struct Whereabouts {
  std::string host_key, network, called, own_address, address_of_rank_0;

  std::string packed() const {
    return (Packer() << host_key << network << called << own_address << address_of_rank_0).take();
  }
  static Whereabouts of(std::string_view text) {
    constexpr std::size_t kLongest = 1024;
    Unpacker u(text);
    Whereabouts w;
    for (auto* part : {&w.host_key, &w.network, &w.called, &w.own_address, &w.address_of_rank_0})
      *part = u.string(kLongest);
    return w;
  }
};

/// Equal for processes that reach each other over the loopback device, and for no others.
std::string network_key() {
  std::error_code none;
  return host_key() + std::filesystem::read_symlink("/proc/self/ns/net", none).string();
}

/// Where this rank listens: what the others need, and no more. Empty: at all addresses.
std::string listening_address(const std::vector<Whereabouts>& all, int rank) {
  const auto& mine = all[static_cast<std::size_t>(rank)];
  if (std::all_of(all.begin(), all.end(), [&](const auto& w) { return w.network == mine.network; })) return "127.0.0.1";
  if (rank > 0) {  // one with a scope means something else elsewhere
    const bool known = !is_loopback(mine.own_address) && mine.own_address.find('%') == std::string::npos;
    return known ? mine.own_address : std::string();
  }
  // Rank 0 reaches its own store in its own way: what counts is where the others found it.
  const auto& address = all.back().address_of_rank_0;
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r].address_of_rank_0 != address) return {};
  const auto own = own_addresses();
  const bool there = !is_loopback(address) && std::find(own.begin(), own.end(), address) != own.end();
  return there ? address : std::string();
}

/// Where it listens then.
struct Card {
  static constexpr std::uint32_t kMostAddresses = 64;
  int port = 0;
  std::string number;  // rank 0's: of this round of connections
  std::vector<std::string> addresses;

  std::string packed() const {
    Packer p;
    p << port << number << static_cast<std::uint32_t>(std::min<std::size_t>(addresses.size(), kMostAddresses));
    for (std::size_t i = 0; i < addresses.size() && i < kMostAddresses; ++i) p << addresses[i];
    return p.take();
  }
  static Card of(std::string_view text) {
    constexpr std::size_t kLongest = 256;
    Unpacker u(text);
    Card c;
    c.port = u.number<int>();
    c.number = u.string(kLongest);
    c.addresses.resize(u.count(kMostAddresses));
    for (auto& a : c.addresses) a = u.string(kLongest);
    return c;
  }
};

/// The sockets between this rank and all others: it calls those below it, and those above call it.
class Meeting {
 public:
  Meeting(const Store& store, Socket listening, std::vector<Card> cards, Deadline deadline)
      : rank_(store.rank()),
        names_(store.hosts()),
        cards_(std::move(cards)),
        key_(store.key().derived(cards_.front().number)),
        deadline_(deadline),
        door_(std::move(listening), key_.derived(std::to_string(rank_)), named(rank_)),
        callers_(static_cast<std::size_t>(rank_)),
        pauses_(callers_.size()),
        sockets_(cards_.size()),
        missing_(cards_.size() - 1) {}

  /// By rank; none of this one.
  std::vector<Socket> sockets() {
    std::vector<pollfd> list;
    while (missing_ > 0) {
      list.clear();
      for (int r = 0; r < rank_; ++r) call(r);
      for (auto& guest : door_.open()) let_in(guest);
      if (missing_ == 0) break;
      if (Clock::now() > deadline_) late();
      door_.wait_for(list);
      auto until = std::min(deadline_, door_.next_deadline());
      for (std::size_t r = 0; r < callers_.size(); ++r) {
        if (callers_[r]) list.push_back({callers_[r]->connection().socket().fd(), POLLIN, 0});
        else if (!sockets_[r]) until = std::min(until, pauses_[r]);
      }
      poll(list.data(), list.size(), milliseconds_until(until));
    }
    return std::move(sockets_);
  }

 private:
  static constexpr auto kPause = std::chrono::milliseconds(50);      // before another attempt
  static constexpr auto kConnect = std::chrono::milliseconds(2000);  // for one attempt

  std::string named(int rank) const {
    return fmt::format("rank {} on {}", rank, names_[static_cast<std::size_t>(rank)]);
  }

  void call(int to) {
    const auto r = static_cast<std::size_t>(to);
    auto& caller = callers_[r];
    if (sockets_[r] || (!caller && Clock::now() < pauses_[r])) return;
    if (!caller) {
      for (const auto& address : cards_[r].addresses)
        if (Socket s = connect_to(address, cards_[r].port, kConnect, why_)) {
          caller = std::make_unique<Caller>(
              std::move(s), key_.derived(std::to_string(to)),
              Visitor{rank_, static_cast<int>(cards_.size()), names_[static_cast<std::size_t>(rank_)]}, named(to));
          break;
        }
    }
    const auto state = caller ? caller->advance() : Caller::State::foreign;
    if (state == Caller::State::under_way) return;
    if (state == Caller::State::refused) throw PeerLost(fmt::format("[comm] {}", caller->words()), to);
    if (state == Caller::State::accepted) sockets_[r] = caller->connection().take_socket(), --missing_;
    else pauses_[r] = Clock::now() + kPause;  // it had no room, or something else listens there
    caller.reset();
  }

  void let_in(Door::Guest& guest) {
    const int from = guest.who.rank, size = static_cast<int>(cards_.size());
    if (from <= rank_ || from >= size || sockets_[static_cast<std::size_t>(from)])
      return Door::refuse(guest, fmt::format("{} has no place for a rank {}", named(rank_), from));
    guest.connection->put({FrameKind::accepted, 0, ""});
    if (!guest.connection->flush()) return;
    sockets_[static_cast<std::size_t>(from)] = guest.connection->take_socket();
    --missing_;
  }

  [[noreturn]] void late() {
    const int r = static_cast<int>(std::find_if(sockets_.begin(), sockets_.end(),
                                                [&](const Socket& s) { return !s && &s - sockets_.data() != rank_; }) -
                                   sockets_.begin());
    if (r < rank_)
      throw PeerLost(fmt::format("[comm] rank {} cannot connect to {}: {}", rank_, named(r),
                                 callers_[static_cast<std::size_t>(r)] ? "it does not answer" : why_),
                     r);
    throw PeerLost(fmt::format("[comm] {} has not connected to rank {} in time", named(r), rank_), r);
  }

  int rank_;
  std::vector<std::string> names_;
  std::vector<Card> cards_;
  RunKey key_;
  Deadline deadline_;
  Door door_;
  std::vector<std::unique_ptr<Caller>> callers_;  // of the ranks below, while they have not accepted
  std::vector<Deadline> pauses_;                  // until the next attempt
  std::vector<Socket> sockets_;
  std::size_t missing_;
  std::string why_ = "nothing was tried";
};

class TcpTransport : public Transport {
 public:
  TcpTransport(std::shared_ptr<Store> store, Deadline deadline, const std::string& called)
      : store_(std::move(store)), links_(static_cast<std::size_t>(store_->world())) {
    const Whereabouts mine{host_key(), network_key(), called.empty() ? comm::host_name() : called,
                           store_->own_address(), store_->address_of_rank_0()};
    std::vector<Whereabouts> all;
    std::vector<std::string> keys;
    for (const auto& text : store_->gather("comm/where", mine.packed(), deadline)) {
      all.push_back(Whereabouts::of(text));
      keys.push_back(all.back().host_key + "/" + all.back().called);
      names_.push_back(all.back().called);
    }
    hosts_ = number_hosts(keys);
    const std::string address = listening_address(all, rank());
    Socket listening = listen_at(address, 0);
    const Card card{port_of(listening), random_bytes(sizeof(Digest)),
                    address.empty() ? own_addresses() : std::vector<std::string>{address}};
    std::vector<Card> cards;
    for (const auto& text : store_->gather("comm/tcp", card.packed(), deadline)) cards.push_back(Card::of(text));
    auto sockets = Meeting(*store_, std::move(listening), std::move(cards), deadline).sockets();
    for (std::size_t r = 0; r < sockets.size(); ++r)
      if (sockets[r]) links_[r] = std::make_unique<Link>(std::move(sockets[r]));
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
    if (const auto& l = links_[static_cast<std::size_t>(rank)]; l && l->broken())
      throw PeerLost(fmt::format("rank {} on {} sent what is no message", rank, host_name(rank)), rank);
    throw PeerLost(fmt::format("the connection to rank {} on {} is gone: that rank has ended, or the network is cut",
                               rank, host_name(rank)),
                   rank);
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
