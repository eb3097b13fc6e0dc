#include <algorithm>
#include <cstdint>
#include <vector>

#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/rank_order.h"

namespace hpcdl::pipe {

// A round takes the stages forward and then backward, which are 2 * stages turns. Rank r takes the turns r, r + ranks
// and so on. When a rank has computed a turn for one micro-batch per rank, its next turn can begin: the ranks between
// have computed theirs meanwhile.
Schedule round_robin(const PipeShape& shape) {
  const int stages = shape.stages(), turns = 2 * stages;
  Schedule s{.micros = shape.micros, .on_host = true};
  for (int stage = 0; stage < stages; ++stage) {
    s.forward_rank.push_back(static_cast<std::int16_t>(stage % shape.ranks));
    s.backward_rank.push_back(static_cast<std::int16_t>((turns - 1 - stage) % shape.ranks));
  }
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankOrder order(stages, shape.micros);
    for (int first = 0; first < shape.micros; first += shape.ranks)
      for (int turn = rank; turn < turns; turn += shape.ranks)
        for (int i = first; i < std::min(first + shape.ranks, shape.micros); ++i)
          turn < stages ? order.add(Act::forward, turn) : order.add(Act::backward, turns - 1 - turn);
    s.of_rank.push_back(order.take());
  }
  return s;
}

}  // namespace hpcdl::pipe
