#include <algorithm>
#include <cstddef>
#include <vector>

#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/rank_order.h"

namespace hpcdl::pipe {
namespace {

/// Micro-batches go through all chunks in groups. Groups of at least as many micro-batches as there are ranks keep all
/// ranks at work, and smaller ones can deadlock, so the rest of a division is dealt to the groups.
std::vector<int> group_sizes(const PipeShape& shape) {
  const int groups = std::max(1, shape.micros / shape.ranks);
  std::vector<int> sizes(static_cast<std::size_t>(groups), shape.micros / groups);
  for (int i = 0; i < shape.micros % groups; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

/// The chunks in the order in which a rank computes them forward.
std::vector<int> chunk_order(const PipeShape& shape, const std::vector<int>& groups) {
  std::vector<int> chunks;
  for (const int size : groups)
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      chunks.insert(chunks.end(), static_cast<std::size_t>(size), chunk);
  return chunks;
}

}  // namespace

Schedule interleaved(const PipeShape& shape) {
  Schedule s = looping(shape.ranks, shape.stages(), shape.micros);
  const auto groups = group_sizes(shape);
  const auto chunks = chunk_order(shape, groups);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankOrder order(shape.stages(), shape.micros);
    auto ahead = chunks.begin();
    const auto forward = [&] {
      if (ahead != chunks.end()) order.add(Act::forward, *ahead++ * shape.ranks + rank);
    };
    // The first backward needs all chunks of its micro-batch; two more forwards for each rank between here and the end
    // cover the way there and back.
    const int first = 2 * (shape.ranks - rank - 1) + (shape.chunks - 1) * groups.front() + 1 + shape.ahead;
    for (int i = 0; i < first; ++i) forward();
    for (const int chunk : chunks) {
      order.add(Act::backward, (shape.chunks - 1 - chunk) * shape.ranks + rank);
      forward();
    }
    s.of_rank.push_back(order.take());
  }
  return s;
}

}  // namespace hpcdl::pipe
