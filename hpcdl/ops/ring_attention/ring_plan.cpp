#include "hpcdl/ops/ring_attention/ring_plan.h"

#include <algorithm>

namespace hpcdl {

int RingPlan::place(int rank, int chunk) const {
  if (!zigzag) return 2 * rank + chunk;
  return chunk == 0 ? rank : 2 * ranks - 1 - rank;
}

std::vector<RingPlan::Pair> RingPlan::pairs(int rank, int step) const {
  const int other = (rank + ranks - step) % ranks;
  std::vector<Pair> list;
  for (int query = 0; query < 2; ++query)
    for (int key = 1; key >= 0; --key) {
      const auto distance = (place(rank, query) - place(other, key)) * tokens;
      if (distance < 0) continue;
      Pair pair{.query = query, .key = key, .rows = tokens};
      if (distance == 0) pair.causal = true, pair.window = window;
      else if (window > 0 && window < distance + tokens) {
        pair.rows = std::min(tokens, window + tokens - distance - 1);
        pair.causal = true, pair.window = window, pair.ahead = distance + pair.rows - tokens;
      }
      if (pair.rows > 0) list.push_back(pair);
    }
  return list;
}

int RingPlan::last_step() const {
  for (int step = ranks - 1; step > 0; --step)
    for (int rank = 0; rank < ranks; ++rank)
      if (!pairs(rank, step).empty()) return step;
  return 0;
}

}  // namespace hpcdl
