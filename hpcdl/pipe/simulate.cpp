#include "hpcdl/pipe/simulate.h"

#include <algorithm>
#include <cstddef>

#include "hpcdl/core/error.h"

namespace hpcdl::pipe {
namespace {

std::int64_t bytes_of(const Action& a, std::span<const PartCost> stages) {
  const auto& own = stages[static_cast<std::size_t>(a.stage)];
  switch (a.act) {
    case Act::send: return carries_activation(a) ? own.activation_bytes : own.gradient_bytes;
    case Act::receive: {
      const auto& sender = stages[static_cast<std::size_t>(a.peer)];
      return carries_activation(a) ? sender.activation_bytes : sender.gradient_bytes;
    }
    case Act::load:
    case Act::store: return a.micro >= 0 ? own.frame_bytes : own.value_bytes;  // gradients are like values
    default: return 0;
  }
}

double seconds_of(const Action& a, std::int64_t bytes, std::span<const PartCost> stages, const Rates& rates) {
  const auto& own = stages[static_cast<std::size_t>(a.stage)];
  switch (a.act) {
    case Act::forward: return own.forward;
    case Act::backward: return own.input_gradient + own.weight_gradient;
    case Act::input_gradient: return own.input_gradient;
    case Act::weight_gradient: return own.weight_gradient;
    case Act::send:
    case Act::receive: return rates.link.seconds(bytes);
    case Act::load:
    case Act::store: return rates.host.seconds(bytes);
    default: return 0;
  }
}

/// Sent from one rank to another.
std::int64_t bytes_of_exchange(Act act, const VocabularyCost& v) {
  return act == Act::combine ? v.statistics_bytes : v.hidden_bytes;
}

/// One rank sends something to all others, or all others to it: as many bytes pass one link as there are others.
double seconds_of_share(const Schedule& s, Act act, const VocabularyCost& v, const Rates& rates) {
  switch (act) {
    case Act::lookup: return v.lookup;
    case Act::logits: return v.logits;
    case Act::loss: return v.loss;
    case Act::lookup_gradient: return v.lookup_gradient;
    default: return s.ranks() == 1 ? 0 : rates.link.seconds((s.ranks() - 1) * bytes_of_exchange(act, v));
  }
}

/// What a rank sends in an exchange of all ranks.
std::int64_t sent_in_exchange(const Schedule& s, int rank, Act act, const VocabularyCost& v) {
  const auto bytes = bytes_of_exchange(act, v);
  const std::int64_t others = s.ranks() - 1;
  switch (act) {
    case Act::sum_rows: return rank == s.first_rank() ? 0 : bytes;
    case Act::sum_gradients: return rank == s.last_rank() ? 0 : bytes;
    case Act::give_hidden: return rank == s.last_rank() ? others * bytes : 0;
    case Act::give_gradient: return rank == s.first_rank() ? others * bytes : 0;
    default: return others * bytes;  // combine: around a ring
  }
}

/// Bytes that the shares of a vocabulary take on their ranks; the first and the last one also have what arrives there.
void add_memory_of_shares(const Schedule& s, const VocabularyCost& v, std::vector<RankUse>& ranks) {
  for (std::size_t rank = 0; rank < s.shares.size(); ++rank) {
    const auto& slots = s.shares[rank];
    const auto here = static_cast<int>(rank);
    const int arriving = (here == s.first_rank() ? slots.rows : 0) + (here == s.last_rank() ? slots.logits : 0);
    ranks[rank].peak_bytes += v.state_bytes + slots.rows * v.rows_bytes + slots.logits * v.head_bytes +
                              slots.gradients * v.gradient_bytes + arriving * (s.ranks() - 1) * v.hidden_bytes;
  }
}

/// Frames and bytes that the stages take on their ranks.
void add_memory(const Schedule& s, std::span<const PartCost> stages, std::vector<RankUse>& ranks) {
  std::vector<std::int64_t> values(ranks.size());  // of the largest stage, with its gradients
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& slots = s.slots[i];
    const auto& cost = stages[i];
    auto& forward = ranks[static_cast<std::size_t>(s.forward_rank[i])];
    auto& backward = ranks[static_cast<std::size_t>(s.backward_rank[i])];
    forward.frames += slots.frames;
    backward.frames += slots.loaded;
    forward.peak_bytes += slots.frames * cost.frame_bytes;
    backward.peak_bytes += slots.loaded * cost.frame_bytes;
    if (slots.activations > 0) forward.peak_bytes += slots.activations * stages[i - 1].activation_bytes;
    if (slots.gradients > 0) backward.peak_bytes += slots.gradients * stages[i + 1].gradient_bytes;
    if (!s.on_host) {
      forward.peak_bytes += cost.state_bytes;
      continue;
    }
    auto& one = values[static_cast<std::size_t>(s.forward_rank[i])];
    one = std::max(one, cost.value_bytes);
    auto& other = values[static_cast<std::size_t>(s.backward_rank[i])];
    other = std::max(other, cost.value_bytes);
  }
  // Two stages' values, of which one is being loaded, and the gradients of one.
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].peak_bytes += 3 * values[rank];
}

}  // namespace

Simulation simulate(const Schedule& s, std::span<const PartCost> stages, const Rates& rates, Wiring wiring,
                    const VocabularyCost& vocabulary) {
  require(s.lowered(), "pipe", "expected a schedule with transfers and frames, found one without: lower() it first");
  require(std::ssize(stages) == s.stages(), "pipe", "expected the costs of {} stages, found {}", s.stages(),
          stages.size());
  const Waits waits(s, wiring);
  std::vector<double> begin(waits.size()), length(waits.size());
  Simulation result;
  result.ranks.resize(s.of_rank.size());
  for (int rank = 0; rank < s.ranks(); ++rank) {
    const auto& list = s.of_rank[static_cast<std::size_t>(rank)];
    auto& use = result.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bool share = of_vocabulary(list[i].act);
      const auto bytes = share ? 0 : bytes_of(list[i], stages);
      const double seconds =
          share ? seconds_of_share(s, list[i].act, vocabulary, rates) : seconds_of(list[i], bytes, stages, rates);
      length[static_cast<std::size_t>(waits.node(rank, i))] = seconds;
      if (occupies(list[i].act)) use.busy += seconds;
      if (joins_ranks(list[i].act)) use.wire_bytes += sent_in_exchange(s, rank, list[i].act, vocabulary);
      if (list[i].act == Act::send) use.wire_bytes += bytes;
      if (list[i].act == Act::load || list[i].act == Act::store) use.host_bytes += bytes;
    }
  }
  const auto order = waits.order();
  require(order.size() == waits.size(), "pipe", "the schedule is a deadlock; deadlock() tells where");
  for (const int node : order) {
    const double end = begin[static_cast<std::size_t>(node)] + length[static_cast<std::size_t>(node)];
    result.makespan = std::max(result.makespan, end);
    for (const int next : waits.followers(node))
      begin[static_cast<std::size_t>(next)] = std::max(begin[static_cast<std::size_t>(next)], end);
  }
  double busy = 0;
  for (int rank = 0; rank < s.ranks(); ++rank) {
    auto& spans = result.spans.emplace_back();
    for (std::size_t i = 0; i < s.of_rank[static_cast<std::size_t>(rank)].size(); ++i) {
      const auto node = static_cast<std::size_t>(waits.node(rank, i));
      spans.push_back({begin[node], begin[node] + length[node]});
    }
    auto& use = result.ranks[static_cast<std::size_t>(rank)];
    use.idle = result.makespan - use.busy;
    busy += use.busy;
  }
  result.bubble = result.makespan > 0 ? 1 - busy / (result.makespan * s.ranks()) : 0;
  add_memory(s, stages, result.ranks);
  add_memory_of_shares(s, vocabulary, result.ranks);
  return result;
}

}  // namespace hpcdl::pipe
