#include "hpcdl/pipe/lower.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "hpcdl/pipe/check.h"
#include "hpcdl/pipe/vocabulary.h"
#include "hpcdl/pipe/waits.h"

namespace hpcdl::pipe {
namespace {

using Time = std::int64_t;

struct Interval {
  Time begin = 0, end = 0;
};

/// An action with its place in the one order of all ranks: at the same time transfers come first.
struct Issued {
  enum Kind { transfer, store, load, compute, update };
  Time time;
  Kind kind;
  std::int64_t id;  // the same at both ends of a transfer
  Action action;
  Time until = 0;  // when the memory that it takes is free again

  std::tuple<Time, Kind, std::int64_t> key() const { return {time, kind, id}; }
};

/// Memory of which the slot that has been free for the longest time is taken next.
class Slots {
 public:
  explicit Slots(int least = 0) : free_at_(static_cast<std::size_t>(least), std::numeric_limits<Time>::min()) {}

  std::int16_t take(Time now, Time until) {
    const auto free = std::min_element(free_at_.begin(), free_at_.end());
    if (free != free_at_.end() && *free <= now) {
      *free = until;
      return static_cast<std::int16_t>(free - free_at_.begin());
    }
    free_at_.push_back(until);
    return static_cast<std::int16_t>(free_at_.size() - 1);
  }
  int count() const { return static_cast<int>(free_at_.size()); }

 private:
  std::vector<Time> free_at_;
};

class Lowering {
 public:
  explicit Lowering(const Schedule& orders)
      : in_(orders),
        out_(orders),
        issued_(orders.of_rank.size()),
        forward_(cells()),
        input_(cells()),
        weight_(cells()),
        lookup_(share_cells()),
        logits_(share_cells()),
        loss_(share_cells()),
        lookup_gradient_(share_cells()) {}

  Schedule run() {
    take_times();
    for (int rank = 0; rank < in_.ranks(); ++rank) {
      add_compute(rank);
      if (in_.on_host) add_host(rank);
    }
    add_transfers();
    if (in_.divides_vocabulary()) add_exchanges();
    add_updates();
    for (std::size_t rank = 0; rank < issued_.size(); ++rank) {
      auto& list = issued_[rank];
      std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.key() < b.key(); });
      out_.of_rank[rank].clear();
      for (const auto& i : list) out_.of_rank[rank].push_back(i.action);
    }
    give_slots();
    return std::move(out_);
  }

 private:
  std::size_t cells() const { return static_cast<std::size_t>(in_.stages()) * static_cast<std::size_t>(in_.micros); }
  std::size_t share_cells() const {
    return in_.divides_vocabulary() ? in_.of_rank.size() * static_cast<std::size_t>(in_.micros) : 0;
  }
  std::size_t cell(int stage, int micro) const { return static_cast<std::size_t>(stage * in_.micros + micro); }
  std::vector<Issued>& list_of(const Action& a) { return issued_[static_cast<std::size_t>(in_.rank_of(a))]; }

  /// When each act would run if transfers took no time.
  void take_times() {
    const Waits waits(in_, Wiring::links);
    std::vector<Time> begin(waits.size()), length(waits.size());
    for (int rank = 0; rank < in_.ranks(); ++rank)
      for (std::size_t i = 0; i < order(rank).size(); ++i)
        length[static_cast<std::size_t>(waits.node(rank, i))] = units_of(order(rank)[i].act);
    for (const int node : waits.order()) {
      const Time end = begin[static_cast<std::size_t>(node)] + length[static_cast<std::size_t>(node)];
      for (const int next : waits.followers(node))
        begin[static_cast<std::size_t>(next)] = std::max(begin[static_cast<std::size_t>(next)], end);
    }
    for (int rank = 0; rank < in_.ranks(); ++rank)
      for (std::size_t i = 0; i < order(rank).size(); ++i) {
        const auto& a = order(rank)[i];
        const auto node = static_cast<std::size_t>(waits.node(rank, i));
        const Interval when{begin[node], begin[node] + length[node]};
        if (a.act == Act::forward) forward_[cell(a.stage, a.micro)] = when;
        if (gives_input_gradient(a.act)) input_[cell(a.stage, a.micro)] = when;
        if (gives_weight_gradient(a.act)) weight_[cell(a.stage, a.micro)] = when;
        if (computes_share(a.act)) share(a.act)[cell(a.stage, a.micro)] = when;
        end_ = std::max(end_, when.end);
      }
  }

  std::span<const Action> order(int rank) const { return in_.of_rank[static_cast<std::size_t>(rank)]; }

  std::vector<Interval>& share(Act act) {
    return act == Act::lookup ? lookup_ : act == Act::logits ? logits_ : act == Act::loss ? loss_ : lookup_gradient_;
  }

  Interval when(const Action& a) {
    const auto c = cell(a.stage, a.micro);
    if (computes_share(a.act)) return share(a.act)[c];
    return a.act == Act::forward ? forward_[c] : a.act == Act::weight_gradient ? weight_[c] : input_[c];
  }

  void add_compute(int rank) {
    for (const auto& a : order(rank)) {
      const Time until = in_.on_host || of_vocabulary(a.act) ? when(a).end : weight_[cell(a.stage, a.micro)].end;
      issued_[static_cast<std::size_t>(rank)].push_back({when(a).begin, Issued::compute, 0, a, until});
    }
  }

  /// A turn is a row of actions of one stage. Its values, and what it needs of each micro-batch, are loaded while the
  /// action before it runs.
  void add_host(int rank) {
    const auto list = order(rank);
    auto& to = issued_[static_cast<std::size_t>(rank)];
    Time turn = 0;  // begin of the turn before
    std::int16_t slot = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto& a = list[i];
      const bool first = i == 0 || list[i - 1].stage != a.stage;
      const bool last = i + 1 == list.size() || list[i + 1].stage != a.stage;
      if (first) {
        to.push_back({turn, Issued::load, -1, {.act = Act::load, .stage = a.stage, .slot = slot}});
        slot = static_cast<std::int16_t>(1 - slot);
        turn = when(a).begin;
      }
      if (a.act == Act::forward)
        to.push_back({when(a).end, Issued::store, a.micro, {.act = Act::store, .stage = a.stage, .micro = a.micro}});
      if (a.act == Act::backward || a.act == Act::input_gradient) {
        const Time ready = forward_[cell(a.stage, a.micro)].end, before = i == 0 ? 0 : when(list[i - 1]).begin;
        to.push_back({std::max(ready, before),
                      Issued::load,
                      a.micro,
                      {.act = Act::load, .stage = a.stage, .micro = a.micro},
                      weight_[cell(a.stage, a.micro)].end});
      }
      if (last && gives_weight_gradient(a.act))
        to.push_back({when(a).end, Issued::store, in_.micros, {.act = Act::store, .stage = a.stage}});
    }
  }

  void add_transfers() {
    for (int stage = 0; stage + 1 < in_.stages(); ++stage)
      for (int micro = 0; micro < in_.micros; ++micro) {
        add_transfer(stage, stage + 1, micro, forward_[cell(stage, micro)].end, forward_[cell(stage + 1, micro)].end);
        add_transfer(stage + 1, stage, micro, input_[cell(stage + 1, micro)].end, input_[cell(stage, micro)].end);
      }
  }

  void add_transfer(int from, int to, int micro, Time ready, Time consumed) {
    const Action send{.act = Act::send,
                      .stage = static_cast<std::int16_t>(from),
                      .peer = static_cast<std::int16_t>(to),
                      .micro = micro};
    const Action receive{.act = Act::receive, .stage = send.peer, .peer = send.stage, .micro = micro};
    if (in_.rank_of(send) == in_.rank_of(receive)) return;
    const auto id = static_cast<std::int64_t>(2 * cell(from, micro)) + to_next(from, to);
    list_of(send).push_back({ready, Issued::transfer, id, send});
    list_of(receive).push_back({ready, Issued::transfer, id, receive, consumed});
  }

  /// The exchanges of all ranks, each when the last rank is ready for it.
  void add_exchanges() {
    const auto all = [&](const std::vector<Interval>& list, int micro) {
      Time end = 0;
      for (int rank = 0; rank < in_.ranks(); ++rank) end = std::max(end, list[cell(rank, micro)].end);
      return end;
    };
    for (int m = 0; m < in_.micros; ++m) {
      std::int64_t id = static_cast<std::int64_t>(2 * cells()) + 5 * m;
      const auto add = [&](Act act, Time ready) {
        for (std::size_t rank = 0; rank < issued_.size(); ++rank)
          issued_[rank].push_back(
              {ready, Issued::transfer, id, {.act = act, .stage = static_cast<std::int16_t>(rank), .micro = m}});
        ++id;
      };
      add(Act::sum_rows, all(lookup_, m));
      add(Act::give_hidden, forward_[cell(in_.stages() - 1, m)].end);
      add(Act::combine, all(logits_, m));
      if (in_.barriers == 2) add(Act::sum_gradients, all(loss_, m));
      add(Act::give_gradient, input_[cell(0, m)].end);
    }
  }

  /// Rows are summed in the first stage, and gradients in the last one; on other ranks their memory is free when it has
  /// been sent, or when nothing needs it any more.
  void slots_of_share(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const int two = std::min(2, in_.micros), last = in_.stages() - 1;
    Slots rows(two), logits(two), gradients(two);
    std::vector<std::int16_t> of_rows(static_cast<std::size_t>(in_.micros)), of_logits(of_rows), of_gradients(of_rows);
    std::vector<Time> sent(of_rows.size());  // the gradient of the input of the head
    for (const auto& at : issued_[r])
      if (at.action.act == Act::sum_gradients) sent[static_cast<std::size_t>(at.action.micro)] = at.time;
    for (std::size_t i = 0; i < issued_[r].size(); ++i) {
      auto& a = out_.of_rank[r][i];
      if (!of_vocabulary(a.act)) continue;
      const auto now = issued_[r][i].time;
      const auto m = static_cast<std::size_t>(a.micro);
      const auto done = loss_[cell(rank, a.micro)].end;
      if (a.act == Act::lookup)
        of_rows[m] = rows.take(now, rank == in_.first_rank() ? forward_[cell(0, a.micro)].end : latest_lookup(a.micro));
      if (a.act == Act::give_hidden)
        of_logits[m] =
            logits.take(now, std::max(done, rank == in_.last_rank() ? input_[cell(last, a.micro)].end : sent[m]));
      if (a.act == Act::give_gradient) of_gradients[m] = gradients.take(now, lookup_gradient_[cell(rank, a.micro)].end);
      a.slot = a.act == Act::lookup || a.act == Act::sum_rows                 ? of_rows[m]
               : a.act == Act::give_gradient || a.act == Act::lookup_gradient ? of_gradients[m]
                                                                              : of_logits[m];
    }
    out_.shares.push_back({rows.count(), logits.count(), gradients.count()});
  }
  Time latest_lookup(int micro) const {
    Time end = 0;
    for (int rank = 0; rank < in_.ranks(); ++rank) end = std::max(end, lookup_[cell(rank, micro)].end);
    return end;
  }

  void add_updates() {
    for (int stage = 0; stage < in_.stages(); ++stage) {
      const auto first = weight_.begin() + static_cast<std::ptrdiff_t>(cell(stage, 0));
      const Time done = std::max_element(first, first + in_.micros, [](const Interval& a, const Interval& b) {
                          return a.end < b.end;
                        })->end;
      const Action reduce{.act = Act::reduce, .stage = static_cast<std::int16_t>(stage)},
          update{.act = Act::update, .stage = static_cast<std::int16_t>(stage)};
      list_of(reduce).push_back({done, Issued::store, in_.micros + 1 + stage, reduce});
      list_of(update).push_back({end_, Issued::update, stage, update});
    }
  }

  void give_slots() {
    struct Pools {
      Slots frames, loaded, activations, gradients;
    };
    const int two = std::min(2, in_.micros);
    std::vector<Pools> pools(static_cast<std::size_t>(in_.stages()));
    for (int stage = 0; stage < in_.stages(); ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      const bool from_before = stage > 0 && in_.forward_rank[s] != in_.forward_rank[s - 1];
      const bool from_next = stage + 1 < in_.stages() && in_.backward_rank[s] != in_.backward_rank[s + 1];
      pools[s] = {.frames = Slots(in_.on_host ? two : 0),
                  .loaded = Slots(in_.on_host ? two : 0),
                  .activations = Slots(from_before ? two : 0),
                  .gradients = Slots(from_next ? two : 0)};
    }
    std::vector<std::int16_t> frame(cells());
    for (std::size_t rank = 0; rank < issued_.size(); ++rank)
      for (std::size_t i = 0; i < issued_[rank].size(); ++i) {
        const auto& at = issued_[rank][i];
        auto& a = out_.of_rank[rank][i];
        if (of_vocabulary(a.act)) continue;
        auto& pool = pools[static_cast<std::size_t>(a.stage)];
        if (a.act == Act::forward) a.slot = frame[cell(a.stage, a.micro)] = pool.frames.take(at.time, at.until);
        if (a.act == Act::receive)
          a.slot = (carries_activation(a) ? pool.activations : pool.gradients).take(at.time, at.until);
        if (!in_.on_host && computes(a.act)) a.slot = frame[cell(a.stage, a.micro)];
        if (a.act == Act::store && a.micro >= 0) a.slot = frame[cell(a.stage, a.micro)];
      }
    if (in_.divides_vocabulary())
      for (int rank = 0; rank < in_.ranks(); ++rank) slots_of_share(rank);
    if (in_.on_host) give_loaded([&](int stage) -> Slots& { return pools[static_cast<std::size_t>(stage)].loaded; });
    for (const auto& p : pools)
      out_.slots.push_back({p.frames.count(), p.loaded.count(), p.activations.count(), p.gradients.count()});
  }

  template <class F> void give_loaded(F pool) {
    std::vector<std::int16_t> frame(cells());
    for (std::size_t rank = 0; rank < issued_.size(); ++rank)
      for (std::size_t i = 0; i < issued_[rank].size(); ++i) {
        const auto& at = issued_[rank][i];
        auto& a = out_.of_rank[rank][i];
        if (a.act == Act::load && a.micro >= 0)
          a.slot = frame[cell(a.stage, a.micro)] = pool(a.stage).take(at.time, at.until);
        if (computes(a.act) && a.act != Act::forward) a.slot = frame[cell(a.stage, a.micro)];
      }
  }

  const Schedule& in_;
  Schedule out_;
  std::vector<std::vector<Issued>> issued_;                         // by rank
  std::vector<Interval> forward_, input_, weight_;                  // by stage and micro-batch
  std::vector<Interval> lookup_, logits_, loss_, lookup_gradient_;  // by rank and micro-batch
  Time end_ = 0;
};

}  // namespace

Schedule lower(const Schedule& orders) {
  require_sound(orders);
  return Lowering(orders).run();
}

Schedule forward_only(const Schedule& schedule) {
  Schedule s{.micros = 1, .forward_rank = schedule.forward_rank, .backward_rank = schedule.forward_rank};
  s.of_rank.resize(schedule.of_rank.size());
  const auto add = [&](Act act, int stage) {
    s.of_rank[static_cast<std::size_t>(s.forward_rank[static_cast<std::size_t>(stage)])].push_back(
        {.act = act, .stage = static_cast<std::int16_t>(stage), .micro = 0});
  };
  for (int stage = 0; stage < s.stages(); ++stage) add(Act::forward, stage);
  for (int stage = s.stages(); stage-- > 0;) add(Act::backward, stage);
  if (schedule.divides_vocabulary()) s = with_vocabulary(s, {.barriers = schedule.barriers});
  s = lower(s);
  const auto stays = [](const Action& a) {
    switch (a.act) {
      case Act::forward:
      case Act::lookup:
      case Act::sum_rows:
      case Act::give_hidden:
      case Act::logits:
      case Act::combine:
      case Act::loss: return true;
      case Act::send:
      case Act::receive: return carries_activation(a);
      default: return false;
    }
  };
  for (auto& list : s.of_rank) std::erase_if(list, [&](const Action& a) { return !stays(a); });
  return s;
}

}  // namespace hpcdl::pipe
