#include "hpcdl/pipe/vocabulary.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/pipe/check.h"

namespace hpcdl::pipe {
namespace {

using Time = std::int64_t;
constexpr Time kNotYet = std::numeric_limits<Time>::max();
constexpr int kLookedUpAhead = 2;  // micro-batches that may be looked up before the first stage needs them
constexpr int kPostponed = 2;      // passes that no rank waits for; a rank postpones no more than this many

/// When all ranks have done something with each micro-batch.
class Common {
 public:
  Common(int ranks, int micros) : left_(static_cast<std::size_t>(micros), ranks), end_(left_.size(), 0) {}
  void done(int micro, Time end) {
    const auto m = static_cast<std::size_t>(micro);
    --left_[m], end_[m] = std::max(end_[m], end);
  }
  Time at(int micro) const {
    const auto m = static_cast<std::size_t>(micro);
    return left_[m] == 0 ? end_[m] : kNotYet;
  }

 private:
  std::vector<int> left_;
  std::vector<Time> end_;
};

/// What a rank can do next.
struct Candidate {
  Time start = kNotYet;
  int priority = 0;  // the smallest first
  Action action = {};

  bool before(const Candidate& other) const {
    return start != other.start ? start < other.start : priority < other.priority;
  }
};

/// Lets all ranks act in time, each as soon as it can.
class Merging {
 public:
  Merging(const Schedule& orders, const VocabularyPasses& passes)
      : in_(orders),
        passes_(passes),
        out_(orders),
        ranks_(orders.of_rank.size()),
        forward_(cells(), kNotYet),
        input_(cells(), kNotYet),
        lookup_(orders.ranks(), orders.micros),
        logits_(orders.ranks(), orders.micros),
        loss_(orders.ranks(), orders.micros) {
    out_.barriers = passes.barriers;
    for (auto& list : out_.of_rank) list.clear();
  }

  Schedule run() {
    while (true) {
      Candidate next;
      for (int rank = 0; rank < in_.ranks(); ++rank)
        if (const auto c = best(rank); c.before(next)) next = c, rank_ = rank;
      if (next.start == kNotYet) break;
      take(next);
    }
    return std::move(out_);
  }

 private:
  struct Rank {
    Time free = 0;
    std::size_t own = 0;  // actions of its order
    int lookups = 0, logits = 0, losses = 0, gradients = 0;
  };

  std::size_t cells() const { return static_cast<std::size_t>(in_.stages()) * static_cast<std::size_t>(in_.micros); }
  std::size_t cell(int stage, int micro) const { return static_cast<std::size_t>(stage * in_.micros + micro); }
  int last() const { return in_.stages() - 1; }

  Time ready(const Action& a) const {
    const auto c = cell(a.stage, a.micro);
    if (a.act == Act::forward) return a.stage == 0 ? lookup_.at(a.micro) : forward_[cell(a.stage - 1, a.micro)];
    if (a.act == Act::weight_gradient) return input_[c];
    const Time after = a.stage < last()        ? input_[cell(a.stage + 1, a.micro)]
                       : passes_.barriers == 1 ? logits_.at(a.micro)
                                               : loss_.at(a.micro);
    return std::max(forward_[c], after);
  }

  Candidate best(int rank) const {
    const auto& r = ranks_[static_cast<std::size_t>(rank)];
    Candidate found;
    const auto offer = [&](Act act, int micro, Time when, int priority) {
      if (when == kNotYet) return;
      const Candidate c{
          std::max(when, r.free), priority, {.act = act, .stage = static_cast<std::int16_t>(rank), .micro = micro}};
      if (c.before(found)) found = c;
    };
    const auto late = [&](int done, auto when) {  // whether too many are postponed
      const int m = done + kPostponed - 1;
      return m >= in_.micros || when(m) > r.free ? 5 : 1;
    };
    if (r.logits < in_.micros) offer(Act::logits, r.logits, forward_[cell(last(), r.logits)], 0);
    if (r.losses < in_.micros)
      offer(Act::loss, r.losses, logits_.at(r.losses),
            passes_.barriers == 2 ? 1 : late(r.losses, [&](int m) { return logits_.at(m); }));
    if (r.lookups < in_.micros)
      offer(Act::lookup, r.lookups, r.lookups < kLookedUpAhead ? 0 : forward_[cell(0, r.lookups - kLookedUpAhead)], 2);
    if (const auto& own = in_.of_rank[static_cast<std::size_t>(rank)]; r.own < own.size()) {
      const auto when = ready(own[r.own]);
      if (const Candidate c{when == kNotYet ? kNotYet : std::max(when, r.free), 3, own[r.own]}; c.before(found))
        found = c;
    }
    if (r.gradients < in_.micros && (!passes_.tied || r.losses == in_.micros))
      offer(Act::lookup_gradient, r.gradients, input_[cell(0, r.gradients)],
            late(r.gradients, [&](int m) { return input_[cell(0, m)]; }) + 1);
    return found;
  }

  void take(const Candidate& c) {
    auto& r = ranks_[static_cast<std::size_t>(rank_)];
    const auto& a = c.action;
    const Time end = r.free = c.start + units_of(a.act);
    out_.of_rank[static_cast<std::size_t>(rank_)].push_back(a);
    switch (a.act) {
      case Act::lookup: lookup_.done(r.lookups++, end); break;
      case Act::logits: logits_.done(r.logits++, end); break;
      case Act::loss: loss_.done(r.losses++, end); break;
      case Act::lookup_gradient: ++r.gradients; break;
      default:
        ++r.own;
        if (a.act == Act::forward) forward_[cell(a.stage, a.micro)] = end;
        if (gives_input_gradient(a.act)) input_[cell(a.stage, a.micro)] = end;
    }
  }

  const Schedule& in_;
  const VocabularyPasses& passes_;
  Schedule out_;
  std::vector<Rank> ranks_;
  std::vector<Time> forward_, input_;  // ends, by stage and micro-batch
  Common lookup_, logits_, loss_;
  int rank_ = 0;
};

}  // namespace

int units_of(Act act) {
  switch (act) {
    case Act::backward: return 8;
    case Act::lookup:
    case Act::lookup_gradient: return 1;
    case Act::logits:
    case Act::loss: return 2;
    default: return 4;
  }
}

Schedule with_vocabulary(const Schedule& orders, const VocabularyPasses& passes) {
  require(!orders.lowered() && !orders.divides_vocabulary(), "pipe",
          "expected orders without passes of a vocabulary, and not lowered");
  require_sound(orders);
  if (orders.on_host)
    fail_usage("pipe", "stages in host memory do not divide a vocabulary: choose another schedule than round_robin");
  if (orders.first_rank() != 0)
    fail_usage("pipe",
               "ranks that divide a vocabulary need the first stage on rank 0, found it on rank {}: let the first line "
               "of the order have stage 0",
               orders.first_rank());
  return Merging(orders, passes).run();
}

Schedule make_schedule(const ScheduleKind& kind, PipeShape shape, const VocabularyPasses& passes) {
  shape.ahead = passes.barriers;
  return with_vocabulary(make_schedule(kind, shape), passes);
}

}  // namespace hpcdl::pipe
