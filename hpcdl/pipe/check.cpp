#include "hpcdl/pipe/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::pipe {
namespace {

/// Where an action is.
struct Spot {
  int rank = -1;
  std::size_t action = 0;
  bool there() const { return rank >= 0; }
};

std::string text(const Spot& spot) { return fmt::format("rank {}, action {}", spot.rank, spot.action); }

class Examination {
 public:
  Examination(const Schedule& s, std::size_t most)
      : s_(s),
        most_(most),
        rows_(std::max(s.stages(), s.divides_vocabulary() ? s.ranks() : 0)),
        seen_(static_cast<std::size_t>(s.lowered() || s.divides_vocabulary() ? kKinds : kComputeKinds) *
              static_cast<std::size_t>(rows_) * static_cast<std::size_t>(s.micros)) {}

  std::vector<std::string> run() {
    for (int rank = 0; rank < s_.ranks(); ++rank)
      for (std::size_t i = 0; i < list(rank).size(); ++i) look_at({rank, i}, list(rank)[i]);
    if (faults_.empty()) look_for_missing();
    if (faults_.empty() && s_.divides_vocabulary()) look_for_missing_shares();
    if (faults_.empty()) look_at_order();
    if (faults_.empty() && s_.divides_vocabulary()) look_at_order_of_shares();
    if (faults_.empty() && s_.lowered())
      for (int rank = 0; rank < s_.ranks(); ++rank) look_at_memory(rank);
    if (faults_.empty() && s_.lowered() && s_.divides_vocabulary())
      for (int rank = 0; rank < s_.ranks(); ++rank) look_at_memory_of_share(rank);
    if (faults_.size() > most_) faults_.resize(most_);
    return std::move(faults_);
  }

 private:
  static constexpr int kComputeKinds = 4, kKinds = kActs + 2;

  /// Where an action is, of those that are there once for each stage and micro-batch. Transfers to the next stage are
  /// other kinds than those to the one before.
  Spot& seen(Act act, int stage, int micro, int peer) {
    const bool transfer = act == Act::send || act == Act::receive;
    const int kind = transfer && peer > stage ? kActs + (act == Act::send) : static_cast<int>(act);
    return seen_[static_cast<std::size_t>((kind * rows_ + stage) * s_.micros + std::max(micro, 0))];
  }
  const std::vector<Action>& list(int rank) const { return s_.of_rank[static_cast<std::size_t>(rank)]; }
  template <class... A> void fault(fmt::format_string<A...> f, A&&... args) {
    faults_.push_back(fmt::format(f, std::forward<A>(args)...));
  }
  Spot find(Act act, int stage, int micro, int peer = -1) {
    return s_.lowered() || computes(act) || computes_share(act) ? seen(act, stage, micro, peer) : Spot();
  }

  bool possible(const Spot& spot, const Action& a) {
    if (of_vocabulary(a.act)) return possible_share(spot, a);
    const bool transfer = a.act == Act::send || a.act == Act::receive, whole = a.act >= Act::reduce;
    const bool stage = a.stage >= 0 && a.stage < s_.stages();
    const bool micro =
        whole ? a.micro == -1 : a.micro < s_.micros && a.micro >= (a.act == Act::load || a.act == Act::store ? -1 : 0);
    if (!stage || !micro) {
      fault("{}: there is no stage {} with micro-batch {}: expected stages 0 to {}, micro-batches 0 to {}", text(spot),
            a.stage, a.micro, s_.stages() - 1, s_.micros - 1);
      return false;
    }
    if (transfer && (a.peer < 0 || a.peer >= s_.stages() || (a.peer != a.stage + 1 && a.peer != a.stage - 1))) {
      fault("{}: stage {} exchanges nothing with stage {}", text(spot), a.stage, a.peer);
      return false;
    }
    return true;
  }

  bool possible_share(const Spot& spot, const Action& a) {
    if (!s_.divides_vocabulary()) {
      fault("{}: {} is there, but the ranks divide no vocabulary", text(spot), pipe::text(a));
      return false;
    }
    if (a.stage >= 0 && a.stage < s_.ranks() && a.micro >= 0 && a.micro < s_.micros &&
        (a.act != Act::sum_gradients || s_.barriers == 2))
      return true;
    fault("{}: there is no {}: expected ranks 0 to {}, micro-batches 0 to {}, and {} barriers", text(spot),
          pipe::text(a), s_.ranks() - 1, s_.micros - 1, s_.barriers);
    return false;
  }

  void look_at(const Spot& spot, const Action& a) {
    if (!possible(spot, a)) return;
    const bool host = a.act == Act::load || a.act == Act::store;
    if (const int rank = s_.rank_of(a); !host && rank != spot.rank)
      return fault("{}: {} belongs to rank {}", text(spot), pipe::text(a), rank);
    if (host && a.micro < 0) return;
    if (!s_.lowered() && !computes(a.act) && !computes_share(a.act))
      return fault("{}: {} is there before lower() has added what orders need", text(spot), pipe::text(a));
    auto& first = seen(a.act, a.stage, a.micro, a.peer);
    if (first.there()) return fault("{}: {} is there twice, first at {}", text(spot), pipe::text(a), text(first));
    first = spot;
  }

  void need(const Action& a) {
    if (!find(a.act, a.stage, a.micro, a.peer).there()) fault("rank {}: {} is missing", s_.rank_of(a), pipe::text(a));
  }

  void look_for_missing() {
    for (std::int16_t stage = 0; stage < s_.stages(); ++stage) {
      for (int micro = 0; micro < s_.micros; ++micro) look_for_missing(stage, micro);
      if (!s_.lowered()) continue;
      need({.act = Act::reduce, .stage = stage});
      need({.act = Act::update, .stage = stage});
    }
  }

  void look_for_missing(std::int16_t stage, int micro) {
    need({.act = Act::forward, .stage = stage, .micro = micro});
    const auto whole = find(Act::backward, stage, micro), input = find(Act::input_gradient, stage, micro),
               weight = find(Act::weight_gradient, stage, micro);
    if (whole.there() && (input.there() || weight.there()))
      fault("{}: the backward of stage {}, micro-batch {} is there as a whole and in halves", text(whole), stage,
            micro);
    else if (!whole.there() && !input.there() && !weight.there())
      need({.act = Act::backward, .stage = stage, .micro = micro});
    else if (!whole.there()) {
      need({.act = Act::input_gradient, .stage = stage, .micro = micro});
      need({.act = Act::weight_gradient, .stage = stage, .micro = micro});
    }
    if (!s_.lowered()) return;
    for (const std::int16_t peer : {static_cast<std::int16_t>(stage - 1), static_cast<std::int16_t>(stage + 1)}) {
      if (peer < 0 || peer >= s_.stages()) continue;
      const Action send{.act = Act::send, .stage = stage, .peer = peer, .micro = micro};
      const Action receive{.act = Act::receive, .stage = peer, .peer = stage, .micro = micro};
      if (s_.rank_of(send) != s_.rank_of(receive)) need(send), need(receive);
    }
  }

  void look_for_missing_shares() {
    for (std::int16_t rank = 0; rank < s_.ranks(); ++rank)
      for (int micro = 0; micro < s_.micros; ++micro)
        for (int act = static_cast<int>(Act::lookup); act < kActs; ++act) {
          const auto a = static_cast<Act>(act);
          if ((joins_ranks(a) && !s_.lowered()) || (a == Act::sum_gradients && s_.barriers == 1)) continue;
          need({.act = a, .stage = rank, .micro = micro});
        }
  }

  /// Of two actions on one rank, the second one cannot come first.
  void in_order(const Spot& first, const Spot& second) {
    if (!first.there() || !second.there() || first.rank != second.rank || first.action < second.action) return;
    fault("{}: {} comes before {}, which it needs", text(second), at(second), at(first));
  }
  std::string at(const Spot& spot) const { return pipe::text(list(spot.rank)[spot.action]); }

  void look_at_order() {
    for (int stage = 0; stage < s_.stages(); ++stage)
      for (int micro = 0; micro < s_.micros; ++micro) {
        const auto forward = find(Act::forward, stage, micro), input = find(Act::input_gradient, stage, micro);
        in_order(forward, find(Act::backward, stage, micro));
        in_order(forward, input);
        in_order(input, find(Act::weight_gradient, stage, micro));
        in_order(forward, find(Act::store, stage, micro));
        in_order(find(Act::receive, stage, micro, stage - 1), forward);
        in_order(forward, find(Act::send, stage, micro, stage + 1));
        for (const Act act : {Act::backward, Act::input_gradient}) {
          in_order(find(Act::receive, stage, micro, stage + 1), find(act, stage, micro));
          in_order(find(act, stage, micro), find(Act::send, stage, micro, stage - 1));
          in_order(find(Act::load, stage, micro), find(act, stage, micro));
        }
      }
  }

  void look_at_order_of_shares() {
    const int last = s_.stages() - 1;
    for (int micro = 0; micro < s_.micros; ++micro) {
      const auto first_forward = find(Act::forward, 0, micro), last_forward = find(Act::forward, last, micro);
      for (int rank = 0; rank < s_.ranks(); ++rank) {
        const auto of = [&](Act act) { return find(act, rank, micro); };
        in_order(of(Act::lookup), of(Act::sum_rows));
        in_order(of(Act::lookup), first_forward), in_order(of(Act::sum_rows), first_forward);
        in_order(last_forward, of(Act::give_hidden)), in_order(last_forward, of(Act::logits));
        in_order(of(Act::give_hidden), of(Act::logits));
        in_order(of(Act::logits), of(Act::combine)), in_order(of(Act::combine), of(Act::loss));
        in_order(of(Act::logits), of(Act::loss));
        in_order(of(Act::loss), of(Act::sum_gradients));
        in_order(of(Act::give_gradient), of(Act::lookup_gradient));
        for (const Act act : {Act::backward, Act::input_gradient}) {
          in_order(of(s_.barriers == 2 ? Act::sum_gradients : Act::combine), find(act, last, micro));
          in_order(of(s_.barriers == 2 ? Act::loss : Act::logits), find(act, last, micro));
          in_order(find(act, 0, micro), of(Act::give_gradient));
          in_order(find(act, 0, micro), of(Act::lookup_gradient));
        }
      }
    }
  }

  /// As look_at_memory().
  void look_at_memory_of_share(int rank) {
    enum Pool { rows, logits, gradients };
    std::map<std::pair<int, int>, int> held;          // pool, slot: the micro-batch
    std::map<std::pair<int, int>, int> first_of_two;  // what releases logits on the last rank: two actions
    const auto& slots = s_.shares[static_cast<std::size_t>(rank)];
    const int last = s_.stages() - 1;
    for (std::size_t i = 0; i < list(rank).size(); ++i) {
      const Action& a = list(rank)[i];
      const auto take = [&](Pool pool, int count) {
        if (a.slot < 0 || a.slot >= count)
          return fault("{}: {} names slot {} of {}", text({rank, i}), pipe::text(a), a.slot, count);
        const auto [it, free] = held.try_emplace({pool, a.slot}, a.micro);
        if (!free)
          fault("{}: {} takes slot {}, which micro-batch {} still needs", text({rank, i}), pipe::text(a), a.slot,
                it->second);
      };
      const auto release = [&](Pool pool) {
        std::erase_if(held, [&](const auto& h) { return h.first.first == pool && h.second == a.micro; });
      };
      const auto release_one = [&] {
        if (++first_of_two[{logits, a.micro}] == 2) release(logits);
      };
      const auto holds = [&](Pool pool) {
        const auto it = held.find({pool, a.slot});
        if (it == held.end() || it->second != a.micro)
          fault("{}: {} names slot {}, which does not hold its micro-batch", text({rank, i}), pipe::text(a), a.slot);
      };
      const bool on_last = rank == s_.last_rank();
      switch (a.act) {
        case Act::lookup: take(rows, slots.rows); break;
        case Act::sum_rows:
          holds(rows);
          if (rank != s_.first_rank()) release(rows);
          break;
        case Act::forward:
          if (a.stage == 0) release(rows);
          break;
        case Act::give_hidden: take(logits, slots.logits); break;
        case Act::logits:
        case Act::combine: holds(logits); break;
        case Act::loss:
          holds(logits);
          if (on_last) release_one();
          else if (s_.barriers == 1) release(logits);
          break;
        case Act::sum_gradients:
          holds(logits);
          if (!on_last) release(logits);
          break;
        case Act::give_gradient: take(gradients, slots.gradients); break;
        case Act::lookup_gradient: holds(gradients), release(gradients); break;
        default:
          if (a.stage == last && gives_input_gradient(a.act)) release_one();
      }
    }
  }

  /// Frames, and places where data arrive, hold one micro-batch at a time.
  void look_at_memory(int rank) {
    std::map<std::array<int, 3>, int> held;  // pool, stage, slot: the micro-batch
    enum Pool { frame, loaded, activation, gradient };
    for (std::size_t i = 0; i < list(rank).size(); ++i) {
      const Action& a = list(rank)[i];
      if (of_vocabulary(a.act)) continue;
      const auto& slots = s_.slots[static_cast<std::size_t>(a.stage)];
      const auto take = [&](Pool pool, int count) {
        if (a.slot < 0 || a.slot >= count)
          return fault("{}: {} names slot {} of {}", text({rank, i}), pipe::text(a), a.slot, count);
        const auto [it, free] = held.try_emplace({pool, a.stage, a.slot}, a.micro);
        if (!free)
          fault("{}: {} takes slot {}, which micro-batch {} still needs", text({rank, i}), pipe::text(a), a.slot,
                it->second);
      };
      const auto release = [&](Pool pool) {
        std::erase_if(
            held, [&](const auto& h) { return h.first[0] == pool && h.first[1] == a.stage && h.second == a.micro; });
      };
      const auto holds = [&](Pool pool) {
        const auto it = held.find({pool, a.stage, a.slot});
        if (it == held.end() || it->second != a.micro)
          fault("{}: {} names slot {}, which does not hold its micro-batch", text({rank, i}), pipe::text(a), a.slot);
      };
      if (a.act == Act::forward) take(frame, slots.frames), release(activation);
      if (a.act == Act::receive)
        carries_activation(a) ? take(activation, slots.activations) : take(gradient, slots.gradients);
      if (a.act == Act::load && a.micro >= 0) take(loaded, slots.loaded);
      if (a.act == Act::store && a.micro >= 0) holds(frame), release(frame);
      if (computes(a.act) && a.act != Act::forward) holds(s_.on_host ? loaded : frame);
      if (gives_input_gradient(a.act)) release(gradient);
      if (gives_weight_gradient(a.act)) release(s_.on_host ? loaded : frame);
    }
  }

  const Schedule& s_;
  std::size_t most_;
  int rows_;  // of seen_: stages, and ranks that divide a vocabulary
  std::vector<Spot> seen_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> faults(const Schedule& schedule, std::size_t most) {
  return Examination(schedule, most).run();
}

std::string out_of_turn(const Schedule& schedule) {
  enum Turn { forward, input, weight, kTurns };
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    std::map<std::pair<int, Turn>, Spot> last;
    const auto& list = schedule.of_rank[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto& a = list[i];
      const bool takes[kTurns] = {a.act == Act::forward, gives_input_gradient(a.act), gives_weight_gradient(a.act)};
      for (const Turn turn : {forward, input, weight}) {
        if (!takes[turn]) continue;
        auto& before = last[{a.stage, turn}];
        if (before.there() && list[before.action].micro > a.micro)
          return fmt::format("{}: {} comes after {}", text(Spot{rank, i}), text(a), text(list[before.action]));
        before = {rank, i};
      }
    }
  }
  return "";
}

std::vector<std::string> deadlock(const Schedule& schedule, Wiring wiring) {
  const Waits waits(schedule, wiring);
  const auto cycle = waits.cycle();
  std::vector<std::string> where(waits.size());
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& list = schedule.of_rank[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < list.size() && !cycle.empty(); ++i) {
      auto& words = where[static_cast<std::size_t>(waits.node(rank, i))];
      words += fmt::format("{}{}: {}", words.empty() ? "" : " with ", text({rank, i}), text(list[i]));
    }
  }
  std::vector<std::string> lines;
  for (const int node : cycle) lines.push_back(where[static_cast<std::size_t>(node)]);
  return lines;
}

void require_sound(const Schedule& orders) {
  if (const auto wrong = faults(orders, 1); !wrong.empty()) fail_usage("pipe", "{}", wrong.front());
  if (const auto cycle = deadlock(orders, Wiring::links); !cycle.empty())
    fail_usage("pipe", "the order is a deadlock: {}, which waits for the first",
               fmt::join(cycle, "; which waits for "));
}

}  // namespace hpcdl::pipe
