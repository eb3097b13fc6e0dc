#include "hpcdl/comm/transport/tcp.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/comm/bootstrap/frame.h"
#include "hpcdl/comm/bootstrap/secret.h"
#include "hpcdl/comm/bootstrap/store.h"
#include "hpcdl/comm/transport/connector.h"
#include "hpcdl/comm/transport/host.h"
#include "hpcdl/comm/transport/link.h"
#include "hpcdl/pool.h"

namespace hpcdl::comm {
namespace {

/// What each rank sends about its place, before any of them listens.
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

/// What rank 0 derives from these for all ranks.
struct Plan {
  bool loopback = false;          // all are of one host, and reach each other over that device
  std::string address_of_rank_0;  // the address at which the others found it; empty: they found several
  std::string number;             // of this round of connections

  std::string packed() const {
    return (Packer() << static_cast<std::uint8_t>(loopback) << address_of_rank_0 << number).take();
  }
  static Plan of(std::string_view text) {
    constexpr std::size_t kLongest = 256;
    Unpacker u(text);
    Plan p;
    p.loopback = u.number<std::uint8_t>() != 0;
    p.address_of_rank_0 = u.string(kLongest), p.number = u.string(kLongest);
    return p;
  }
};

Plan plan_for(const std::vector<Whereabouts>& all) {
  const auto alike = [&](auto begin, std::string Whereabouts::* what) {
    return std::all_of(begin, all.end(), [&](const auto& w) { return w.*what == (*begin).*what; });
  };
  const bool one_way = all.size() > 1 && alike(all.begin() + 1, &Whereabouts::address_of_rank_0);
  return {alike(all.begin(), &Whereabouts::network), one_way ? all.back().address_of_rank_0 : std::string(),
          random_bytes(sizeof(Digest))};
}

/// The address at which a rank listens: only what the others need. Empty: all addresses.
std::string listening_address(const Plan& plan, const Whereabouts& mine, int rank) {
  if (plan.loopback) return "127.0.0.1";
  if (rank > 0) {  // an address with a scope means something else on other hosts
    const bool known = !is_loopback(mine.own_address) && mine.own_address.find('%') == std::string::npos;
    return known ? mine.own_address : std::string();
  }
  // Rank 0 may reach its own store by another address: use the one at which the others found it.
  const auto& address = plan.address_of_rank_0;
  const auto own = own_addresses();
  const bool there = !is_loopback(address) && std::find(own.begin(), own.end(), address) != own.end();
  return there ? address : std::string();
}

/// What every rank finally knows of all ranks.
struct Table {
  std::vector<int> hosts;          // by rank
  std::vector<std::string> names;  // by host
  std::vector<Card> cards;         // by rank

  std::string packed() const {
    Packer p;
    p << static_cast<std::uint32_t>(names.size());
    for (const auto& name : names) p << name;
    for (const int host : hosts) p << host;
    for (const auto& card : cards) card.pack(p);
    return p.take();
  }
  static Table of(std::string_view text, int ranks) {
    constexpr std::size_t kLongest = 1024;
    Unpacker u(text);
    Table t;
    t.names.resize(u.count(static_cast<std::uint32_t>(ranks)));
    for (auto& name : t.names) name = u.string(kLongest);
    for (int r = 0; r < ranks; ++r) {
      t.hosts.push_back(u.number<int>());
      require(t.hosts.back() >= 0 && t.hosts.back() < static_cast<int>(t.names.size()), "comm",
              "the table of ranks names a host {} that does not exist", t.hosts.back());
    }
    for (int r = 0; r < ranks; ++r) t.cards.push_back(Card::of(u));
    return t;
  }
};

/// The binomial tree from rank 0, over links that tree and halving use as well.
int parent_of(int rank) { return rank & (rank - 1); }
std::vector<int> children_of(int rank, int size) {
  std::vector<int> list;
  for (int bit = 1; rank + bit < size && !(rank & bit); bit *= 2) list.push_back(rank + bit);
  std::reverse(list.begin(), list.end());  // the child with the most ranks below it first
  return list;
}

class TcpTransport : public Transport {
 public:
  TcpTransport(std::shared_ptr<Store> store, Deadline deadline, const std::string& called)
      : store_(std::move(store)),
        links_(static_cast<std::size_t>(store_->world())),
        failures_(links_.size()),
        hosts_(links_.size()),
        names_(store_->hosts()) {
    std::iota(hosts_.begin(), hosts_.end(), 0);
    const Whereabouts mine{host_key(), network_key(), called.empty() ? comm::host_name() : called,
                           store_->own_address(), store_->address_of_rank_0()};
    Table table;
    std::vector<std::string> for_each;
    if (const auto all = store_->collect("comm/where", mine.packed(), deadline); !all.empty()) {
      std::vector<Whereabouts> where;
      std::vector<std::string> keys;
      for (const auto& text : all) {
        where.push_back(Whereabouts::of(text));
        keys.push_back(where.back().host_key + "/" + where.back().called);
      }
      table.hosts = number_hosts(keys);
      for (std::size_t r = 0; r < where.size(); ++r)
        if (table.hosts[r] == static_cast<int>(table.names.size())) table.names.push_back(where[r].called);
      for_each.assign(all.size(), plan_for(where).packed());
    }
    const Plan plan = Plan::of(store_->scatter("comm/plan", for_each, deadline));
    const std::string address = listening_address(plan, mine, rank());
    Socket listening = listen_at(address, 0);
    const Card card{port_of(listening), address.empty() ? own_addresses() : std::vector<std::string>{address}};
    connector_ =
        std::make_unique<Connector>(rank(), store_->hosts(), store_->key().derived(plan.number), std::move(listening));
    Packer packed;
    card.pack(packed);
    for_each.clear();
    if (const auto all = store_->collect("comm/tcp", packed.take(), deadline); !all.empty()) {
      for (int r = 0; r < size(); ++r) for_each.push_back(all[static_cast<std::size_t>(parent_of(r))]);
      for (const auto& text : all) {
        Unpacker u(text);
        table.cards.push_back(Card::of(u));
      }
    }
    const auto of_parent = store_->scatter("comm/parent", for_each, deadline);
    try {
      spread(std::move(table), of_parent, deadline);
    } catch (const PeerLost& e) {
      throw PeerLost(fmt::format("[comm] rank {} on {} could not begin: {}", rank(), host_name(rank()), e.what()),
                     e.peer());
    }
  }

  std::string_view name() const override { return "tcp"; }
  int rank() const override { return store_->rank(); }
  int size() const override { return static_cast<int>(links_.size()); }
  int host(int rank) const override { return hosts_[static_cast<std::size_t>(rank)]; }
  std::string host_name(int rank) const override { return names_[static_cast<std::size_t>(host(rank))]; }

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
        lose_if_gone(pending.peer);
        return false;
      }
    }
    const bool wrong = m.wrong_size;
    free_.push_back(pending.id);
    pending.id = 0;
    if (wrong) throw PeerLost("a message has another size than expected: the ranks make different calls", pending.peer);
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
    for (const int r : used_)
      for (auto& m : messages_)
        if (!m.done) link(r).take_back(m);
    free_.clear();
    for (std::size_t i = messages_.size(); i > 0; --i) free_.push_back(i);
  }

  /// A rank that is waited for in shared memory gets a link, too: only that shows that it is gone.
  void check(int rank) override {
    take_news();
    const auto look_at = [&](int r) {
      lose_if_gone(r);
      if (!link(r).peer_is_there()) gone(r);
    };
    if (rank >= 0 && rank != this->rank()) look_at(rank);
    for (std::size_t i = 0; rank < 0 && i < used_.size(); ++i) look_at(used_[i]);
  }

  void nap(std::chrono::microseconds at_most) override {
    std::vector<pollfd>& fds = polled_;
    fds.assign(1, {connector_->news_fd(), POLLIN, 0});
    for (const int r : used_) {
      const Link& l = link(r);
      const int events = (l.wants_to_read() ? POLLIN | POLLRDHUP : 0) | (l.wants_to_write() ? POLLOUT : 0);
      if (events) fds.push_back({l.socket().fd(), static_cast<short>(events), 0});
    }
    // An arriving message ends the nap, whatever its length: if many ranks share few processors, each polls
    // less often.
    const auto ns = std::chrono::nanoseconds(at_most).count() * (fds.size() > 1 ? crowd_ : 1);
    const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
    ppoll(fds.data(), fds.size(), &time, nullptr);
  }

  void leave(std::string_view) noexcept override {
    if (connector_) connector_->leave();
  }

  std::shared_ptr<Window> share(std::span<const int> ranks, std::uint32_t tag, std::int64_t bytes,
                                Deadline deadline) override {
    return share_memory(*this, ranks, tag, bytes, deadline);
  }

 private:
  static constexpr std::uint32_t kTable = 0x7fffffff;  // tag of the first messages

  /// Received from the parent and sent on to the children: no rank sends more than log2(ranks) copies of the table.
  void spread(Table table, std::string_view card_of_parent, Deadline deadline) {
    std::string text;
    const Patience patience{.deadline = deadline - Clock::now()};
    const auto children = children_of(rank(), size());
    std::vector<int> near{rank(), parent_of(rank())};
    near.insert(near.end(), children.begin(), children.end());
    Peers peers(*this, near, 0, kTable, patience);
    const auto bytes = [](auto& x) { return std::span<std::byte>(std::as_writable_bytes(std::span(x))); };
    std::uint64_t length[1] = {};
    cards_.resize(links_.size());
    if (rank() == 0) {
      text = table.packed();
    } else {
      Unpacker u(card_of_parent);
      cards_[static_cast<std::size_t>(near[1])] = Card::of(u);
      auto first = peers.receive(1, bytes(length));
      peers.wait(first);
      constexpr std::uint64_t kLongest = std::uint64_t{1} << 32;
      require(length[0] <= kLongest, "comm", "the table of ranks has {} bytes", length[0]);
      text.resize(length[0]);
      auto second = peers.receive(1, bytes(text));
      peers.wait(second);
      table = Table::of(text, size());
    }
    length[0] = text.size();
    std::vector<Pending> sent;
    for (int c = 2; c < static_cast<int>(near.size()); ++c)
      for (auto& part : {bytes(length), bytes(text)}) sent.push_back(peers.send(c, part));
    for (auto& p : sent) peers.wait(p);
    hosts_ = std::move(table.hosts), names_ = std::move(table.names), cards_ = std::move(table.cards);
    const auto here = std::count(hosts_.begin(), hosts_.end(), host(rank()));
    crowd_ = std::max<std::int64_t>(1, here / (kNoCrowd * usable_cpus()));
  }

  /// The link to this rank; the first use asks for its socket.
  Link& link(int rank) {
    auto& l = links_[static_cast<std::size_t>(rank)];
    if (l) return *l;
    l = std::make_unique<Link>();
    used_.push_back(rank);
    const Card& card = cards_[static_cast<std::size_t>(rank)];
    if (!card.addresses.empty()) connector_->want(rank, card);  // otherwise it is a child, which calls
    return *l;
  }
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
    if (connector_->has_news()) take_news();
    for (const int r : used_) link(r).advance();
  }

  void take_news() {
    if (!connector_->has_news()) return;
    for (auto& [rank, socket, why] : connector_->take_news()) {
      auto& l = links_[static_cast<std::size_t>(rank)];
      if (!l) l = std::make_unique<Link>(), used_.push_back(rank);
      if (socket) l->open(std::move(socket));
      else failures_[static_cast<std::size_t>(rank)] = std::move(why);
    }
  }

  void lose_if_gone(int rank) {
    const auto& why = failures_[static_cast<std::size_t>(rank)];
    if (!why.empty()) throw PeerLost(why, rank);
    if (link(rank).closed()) gone(rank);
  }

  [[noreturn]] void gone(int rank) {
    if (const auto& l = links_[static_cast<std::size_t>(rank)]; l && l->broken())
      throw PeerLost(fmt::format("rank {} on {} sent bytes that are not a message", rank, host_name(rank)), rank);
    throw PeerLost(fmt::format("the connection to rank {} on {} is gone: that rank has ended, or the network is cut",
                               rank, host_name(rank)),
                   rank);
  }

  static constexpr std::int64_t kNoCrowd = 4;  // ranks to a processor

  std::shared_ptr<Store> store_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; null: never used
  std::vector<int> used_;                     // ranks with a link
  std::vector<std::string> failures_;         // by rank: why there is no socket to it; empty: there is, or may be later
  std::vector<int> hosts_;                    // by rank
  std::vector<std::string> names_;            // by host
  std::vector<Card> cards_;                   // by rank
  std::deque<Link::Message> messages_;        // addresses stay
  std::vector<std::uint64_t> free_;
  std::vector<pollfd> polled_;
  std::int64_t crowd_ = 1;                // factor by which naps are longer
  std::unique_ptr<Connector> connector_;  // destroyed before the links
};

}  // namespace

std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Store> store, Deadline deadline, const std::string& host) {
  return std::make_unique<TcpTransport>(std::move(store), deadline, host);
}

}  // namespace hpcdl::comm
