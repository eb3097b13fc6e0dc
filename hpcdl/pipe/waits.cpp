#include "hpcdl/pipe/waits.h"

#include <algorithm>
#include <map>
#include <utility>

namespace hpcdl::pipe {
namespace {

constexpr int kNone = -1;
// Queues of a rank; from kLinks on there are two for each other rank.
constexpr int kCompute = 0, kToHost = 1, kFromHost = 2, kChain = 3, kOfAll = 4, kLinks = 5;

/// One node for each (stage, micro-batch), or none; of a vocabulary for each (rank, micro-batch).
class Cells {
 public:
  explicit Cells(const Schedule& s) : Cells(s, s.stages()) {}
  Cells(const Schedule& s, int rows)
      : micros_(s.micros), node_(static_cast<std::size_t>(rows) * static_cast<std::size_t>(s.micros), kNone) {}
  int& at(int stage, int micro) { return node_[static_cast<std::size_t>(stage * micros_ + micro)]; }

 private:
  int micros_;
  std::vector<int> node_;
};

class Builder {
 public:
  Builder(const Schedule& s, Wiring wiring, std::span<const std::size_t> base)
      : s_(s),
        wiring_(wiring),
        base_(base),
        forward_(s),
        input_(s),
        weight_(s),
        activation_(s),
        gradient_(s),
        stored_(s),
        loaded_(s),
        lookup_(s, s.divides_vocabulary() ? s.ranks() : 0),
        logits_(s, s.divides_vocabulary() ? s.ranks() : 0),
        loss_(s, s.divides_vocabulary() ? s.ranks() : 0),
        lookup_gradient_(s, s.divides_vocabulary() ? s.ranks() : 0),
        of_all_(s, s.divides_vocabulary() ? kActs : 0),
        norm_(static_cast<int>(base.back())),
        holders_(static_cast<std::size_t>(4 * s.stages())),
        share_holders_(static_cast<std::size_t>(3 * s.ranks())) {}

  std::vector<int> nodes() {
    std::vector<int> node(base_.back());
    for_each([&](int own, const Action& a) {
      node[static_cast<std::size_t>(own)] = own;
      if (computes(a.act)) {
        if (a.act == Act::forward) forward_.at(a.stage, a.micro) = own;
        if (gives_input_gradient(a.act)) input_.at(a.stage, a.micro) = own;
        if (gives_weight_gradient(a.act)) weight_.at(a.stage, a.micro) = own;
      }
      if (of_vocabulary(a.act)) take_share(own, a);
      if (a.act == Act::send) arrival(a, a.peer) = own;
      if (a.act == Act::store && a.micro >= 0) stored_.at(a.stage, a.micro) = own;
      if (a.act == Act::load && a.micro >= 0) loaded_.at(a.stage, a.micro) = own;
    });
    for_each([&](int own, const Action& a) {
      if (a.act == Act::receive && arrival(a, a.stage) != kNone)
        node[static_cast<std::size_t>(own)] = arrival(a, a.stage);
      if (joins_ranks(a.act)) node[static_cast<std::size_t>(own)] = of_all(a.act, a.micro);
    });
    return node;
  }

  /// (waited for, waiting). The node after those of the actions is the norm of all gradients, which every update needs.
  std::vector<std::pair<int, int>> edges(std::span<const int> node) {
    for (int rank = 0; rank < s_.ranks(); ++rank) {
      queues_.assign(static_cast<std::size_t>(kLinks + 2 * s_.ranks()), kNone);
      values_.clear();
      last_use_.assign(static_cast<std::size_t>(s_.stages()), kNone);
      const auto& list = s_.of_rank[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Action& a = list[i];
        const int n = node[base_[static_cast<std::size_t>(rank)] + i];
        int& last = queues_[static_cast<std::size_t>(queue(a))];
        wait(last, n);
        last = n;
        of_vocabulary(a.act) ? wait_for_share(a, n) : wait_for_data(a, n);
        of_vocabulary(a.act) ? wait_for_memory_of_share(a, n) : wait_for_memory(a, n);
        if (computes(a.act)) last_use_[static_cast<std::size_t>(a.stage)] = n;
      }
    }
    return std::move(edges_);
  }

 private:
  template <class F> void for_each(F f) const {
    for (std::size_t rank = 0; rank < s_.of_rank.size(); ++rank)
      for (std::size_t i = 0; i < s_.of_rank[rank].size(); ++i)
        f(static_cast<int>(base_[rank] + i), s_.of_rank[rank][i]);
  }

  /// Of a transfer, by the stage that receives it.
  int& arrival(const Action& a, int receiver) {
    return (carries_activation(a) ? activation_ : gradient_).at(receiver, a.micro);
  }

  Cells& share(Act act) {
    return act == Act::lookup ? lookup_ : act == Act::logits ? logits_ : act == Act::loss ? loss_ : lookup_gradient_;
  }
  /// The one node of what all ranks do together.
  int& of_all(Act act, int micro) { return of_all_.at(static_cast<int>(act), micro); }
  void take_share(int own, const Action& a) {
    if (computes_share(a.act)) share(a.act).at(a.stage, a.micro) = own;
    else if (int& joint = of_all(a.act, a.micro); joint == kNone) joint = own;
  }
  /// Waits for an exchange of all ranks, or before lower() for what each of them does before it.
  void wait_for_all(Act exchange, Cells& before, int micro, int n) {
    if (const int joint = of_all(exchange, micro); joint != kNone) return wait(joint, n);
    for (int rank = 0; rank < s_.ranks(); ++rank) wait(before.at(rank, micro), n);
  }

  void wait(int before, int after) {
    if (before != kNone && before != after) edges_.emplace_back(before, after);
  }

  /// Actions of one queue of a rank are done in their order.
  int queue(const Action& a) const {
    if (wiring_ == Wiring::blocking) return kCompute;
    switch (a.act) {
      case Act::store: return kToHost;
      case Act::load: return kFromHost;
      case Act::reduce: return kChain;
      case Act::sum_rows:
      case Act::give_hidden:
      case Act::combine:
      case Act::sum_gradients:
      case Act::give_gradient: return wiring_ == Wiring::chain ? kChain : kOfAll;
      case Act::send:
      case Act::receive: {
        if (wiring_ == Wiring::chain) return kChain;
        const int other =
            s_.rank_of({.act = a.act == Act::send ? Act::receive : Act::send, .stage = a.peer, .peer = a.stage});
        return kLinks + 2 * other + (a.act == Act::send);
      }
      default: return kCompute;
    }
  }

  void wait_for_data(const Action& a, int n) {
    const auto first_of = [](int x, int y) { return x != kNone ? x : y; };
    switch (a.act) {
      case Act::forward:
        if (a.stage == 0 && s_.divides_vocabulary()) wait_for_all(Act::sum_rows, lookup_, a.micro, n);
        if (a.stage > 0) wait(first_of(activation_.at(a.stage, a.micro), forward_.at(a.stage - 1, a.micro)), n);
        break;
      case Act::backward:
      case Act::input_gradient:
        wait(first_of(loaded_.at(a.stage, a.micro), forward_.at(a.stage, a.micro)), n);
        if (a.stage + 1 < s_.stages())
          wait(first_of(gradient_.at(a.stage, a.micro), input_.at(a.stage + 1, a.micro)), n);
        else if (s_.barriers == 1) wait_for_all(Act::combine, logits_, a.micro, n);
        else if (s_.barriers == 2) wait_for_all(Act::sum_gradients, loss_, a.micro, n);
        break;
      case Act::weight_gradient: wait(input_.at(a.stage, a.micro), n); break;
      case Act::send: wait((carries_activation(a) ? forward_ : input_).at(a.stage, a.micro), n); break;
      case Act::receive: break;
      case Act::store:
        wait(a.micro >= 0 ? forward_.at(a.stage, a.micro) : last_use_[static_cast<std::size_t>(a.stage)], n);
        break;
      case Act::load:
        if (a.micro >= 0) wait(stored_.at(a.stage, a.micro), n);
        break;
      case Act::reduce:
        for (int m = 0; m < s_.micros; ++m) wait(weight_.at(a.stage, m), n);
        wait(n, norm_);
        break;
      case Act::update: wait(norm_, n); break;
      default: break;
    }
  }

  void wait_for_share(const Action& a, int n) {
    const int last = s_.stages() - 1, m = a.micro;
    const auto first_of = [](int x, int y) { return x != kNone ? x : y; };
    switch (a.act) {
      case Act::sum_rows: wait(lookup_.at(a.stage, m), n); break;
      case Act::give_hidden: wait(forward_.at(last, m), n); break;
      case Act::logits: wait(first_of(of_all(Act::give_hidden, m), forward_.at(last, m)), n); break;
      case Act::combine: wait(logits_.at(a.stage, m), n); break;
      case Act::loss: wait_for_all(Act::combine, logits_, m, n), wait(n, norm_); break;
      case Act::sum_gradients: wait(loss_.at(a.stage, m), n); break;
      case Act::give_gradient: wait(input_.at(0, m), n); break;
      case Act::lookup_gradient:
        wait(first_of(of_all(Act::give_gradient, m), input_.at(0, m)), n), wait(n, norm_);
        break;
      default: break;
    }
  }

  /// As in Lowering::slots_of_share().
  void wait_for_memory_of_share(const Action& a, int n) {
    if (a.slot < 0) return;
    enum Pool { rows, logits, gradients };
    const int last = s_.stages() - 1, m = a.micro;
    const auto take = [&](Pool pool, int released, int also) {
      auto& holders = share_holders_[static_cast<std::size_t>(pool * s_.ranks() + a.stage)];
      holders.resize(std::max(holders.size(), static_cast<std::size_t>(a.slot) + 1), {kNone, kNone});
      const auto before = std::exchange(holders[static_cast<std::size_t>(a.slot)], std::pair(released, also));
      wait(before.first, n), wait(before.second, n);
    };
    if (a.act == Act::lookup)
      take(rows, a.stage == s_.first_rank() ? forward_.at(0, m) : of_all(Act::sum_rows, m), kNone);
    if (a.act == Act::give_hidden)
      take(logits, loss_.at(a.stage, m),
           a.stage == s_.last_rank() ? input_.at(last, m)
           : s_.barriers == 2        ? of_all(Act::sum_gradients, m)
                                     : kNone);
    if (a.act == Act::give_gradient) take(gradients, lookup_gradient_.at(a.stage, m), kNone);
  }

  /// Memory is free when the action that was the last to need it is done.
  void wait_for_memory(const Action& a, int n) {
    if (a.slot < 0) return;
    enum Pool { frame, loaded, activation, gradient };
    const auto take = [&](Pool pool, int released) {
      auto& holders = holders_[static_cast<std::size_t>(pool * s_.stages() + a.stage)];
      holders.resize(std::max(holders.size(), static_cast<std::size_t>(a.slot) + 1), kNone);
      wait(std::exchange(holders[static_cast<std::size_t>(a.slot)], released), n);
    };
    if (a.act == Act::forward) take(frame, (s_.on_host ? stored_ : weight_).at(a.stage, a.micro));
    if (a.act == Act::receive)
      carries_activation(a) ? take(activation, forward_.at(a.stage, a.micro))
                            : take(gradient, input_.at(a.stage, a.micro));
    if (a.act == Act::load && a.micro >= 0) take(loaded, weight_.at(a.stage, a.micro));
    if (s_.on_host && computes(a.act)) wait(values_at(a.stage), n);
    if (a.act == Act::load && a.micro < 0) {
      for (const auto& [stage, held] : values_)
        if (held.second == a.slot) wait(last_use_[static_cast<std::size_t>(stage)], n);
      std::erase_if(values_, [&](const auto& v) { return v.second.second == a.slot; });
      values_[a.stage] = {n, a.slot};
    }
  }

  /// The load of the values of a stage that are on the rank now.
  int values_at(int stage) const {
    const auto it = values_.find(stage);
    return it == values_.end() ? kNone : it->second.first;
  }

  const Schedule& s_;
  Wiring wiring_;
  std::span<const std::size_t> base_;
  Cells forward_, input_, weight_;                  // the actions that give an activation and the gradients
  Cells activation_, gradient_;                     // transfers, by the stage that receives
  Cells stored_, loaded_;                           // frames
  Cells lookup_, logits_, loss_, lookup_gradient_;  // of shares of a vocabulary, by rank
  Cells of_all_;                                    // exchanges of all ranks, by act
  int norm_;
  std::vector<int> queues_;                                      // of the rank: the last node of each
  std::map<int, std::pair<int, int>> values_;                    // of the rank, by stage: the load, and its slot
  std::vector<int> last_use_;                                    // of the rank, by stage
  std::vector<std::vector<int>> holders_;                        // by pool and stage, and by slot: what releases it
  std::vector<std::vector<std::pair<int, int>>> share_holders_;  // the same of shares: two actions release one
  std::vector<std::pair<int, int>> edges_;
};

}  // namespace

Waits::Waits(const Schedule& schedule, Wiring wiring) {
  base_.push_back(0);
  for (const auto& list : schedule.of_rank) base_.push_back(base_.back() + list.size());
  Builder builder(schedule, wiring, base_);
  node_ = builder.nodes();
  const auto edges = builder.edges(node_);
  first_.assign(base_.back() + 2, 0);
  for (const auto& [before, after] : edges) ++first_[static_cast<std::size_t>(before) + 1];
  for (std::size_t n = 1; n < first_.size(); ++n) first_[n] += first_[n - 1];
  followers_.resize(edges.size());
  auto at = first_;
  for (const auto& [before, after] : edges) followers_[at[static_cast<std::size_t>(before)]++] = after;
}

std::vector<int> Waits::order() const {
  std::vector<int> missing(size());
  for (const int follower : followers_) ++missing[static_cast<std::size_t>(follower)];
  std::vector<int> order;
  order.reserve(size());
  for (std::size_t n = 0; n < size(); ++n)
    if (missing[n] == 0) order.push_back(static_cast<int>(n));
  for (std::size_t i = 0; i < order.size(); ++i)
    for (const int follower : followers(order[i]))
      if (--missing[static_cast<std::size_t>(follower)] == 0) order.push_back(follower);
  return order;
}

std::vector<int> Waits::cycle() const {
  const auto done = order();
  if (done.size() == size()) return {};
  std::vector<char> stuck(size(), 1);
  for (const int n : done) stuck[static_cast<std::size_t>(n)] = 0;
  // Every stuck node waits for another one, so a walk along them comes back to a node that it has seen.
  std::vector<int> waits_for(size(), kNone);
  for (std::size_t n = 0; n < size(); ++n)
    if (stuck[n])
      for (const int follower : followers(static_cast<int>(n)))
        if (stuck[static_cast<std::size_t>(follower)])
          waits_for[static_cast<std::size_t>(follower)] = static_cast<int>(n);
  int at = static_cast<int>(std::find(stuck.begin(), stuck.end(), 1) - stuck.begin());
  std::vector<int> path;
  std::vector<char> seen(size());
  for (; !seen[static_cast<std::size_t>(at)]; at = waits_for[static_cast<std::size_t>(at)])
    seen[static_cast<std::size_t>(at)] = 1, path.push_back(at);
  path.erase(path.begin(), std::find(path.begin(), path.end(), at));
  return path;
}

}  // namespace hpcdl::pipe
