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

Simulation simulate(const Schedule& s, std::span<const PartCost> stages, const Rates& rates, Wiring wiring) {
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
      const auto bytes = bytes_of(list[i], stages);
      const double seconds = seconds_of(list[i], bytes, stages, rates);
      length[static_cast<std::size_t>(waits.node(rank, i))] = seconds;
      if (computes(list[i].act)) use.busy += seconds;
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
  return result;
}

}  // namespace hpcdl::pipe
