#pragma once
// Who waits for whom in a schedule, as a graph. A cycle in it is a deadlock, and its longest path is the time that the
// schedule takes.

#include <cstddef>
#include <span>
#include <vector>

#include "hpcdl/pipe/schedule.h"

namespace hpcdl::pipe {

/// How transfers are carried out. A transfer always begins when both ends have come to it, and buffers nothing: large
/// messages do the same. Each wiring waits for everything for which the wirings before it wait.
enum class Wiring {
  links,     // a queue for each other rank and direction, next to the compute actions
  chain,     // all transfers of a rank are one queue, next to the compute actions
  blocking,  // a rank does one action after another
};

class Waits {
 public:
  Waits(const Schedule& schedule, Wiring wiring);

  /// Nodes are numbered from 0. The two ends of a transfer are one node.
  std::size_t size() const { return first_.size() - 1; }
  int node(int rank, std::size_t action) const { return node_[base_[static_cast<std::size_t>(rank)] + action]; }
  /// The nodes that wait for this one.
  std::span<const int> followers(int node) const {
    const auto n = static_cast<std::size_t>(node);
    return {followers_.data() + first_[n], followers_.data() + first_[n + 1]};
  }
  /// Every node after those for which it waits. Nodes that wait for a cycle are left out.
  std::vector<int> order() const;
  /// Nodes of which each waits for the next one, and the last one for the first; empty if there is no cycle.
  std::vector<int> cycle() const;

 private:
  std::vector<std::size_t> base_;   // by rank: number of its first action
  std::vector<int> node_;           // by action
  std::vector<std::size_t> first_;  // by node: its first follower
  std::vector<int> followers_;
};

}  // namespace hpcdl::pipe
