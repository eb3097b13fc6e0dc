#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/rank_order.h"

namespace hpcdl::pipe {

Schedule gpipe(const PipeShape& shape) {
  Schedule s = looping(shape.ranks, shape.stages(), shape.micros);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankOrder order(shape.stages(), shape.micros);
    for (int stage = rank; stage < shape.stages(); stage += shape.ranks)
      while (order.add(Act::forward, stage)) continue;
    for (int stage = shape.stages() - shape.ranks + rank; stage >= 0; stage -= shape.ranks)
      while (order.add(Act::backward, stage)) continue;
    s.of_rank.push_back(order.take());
  }
  return s;
}

}  // namespace hpcdl::pipe
