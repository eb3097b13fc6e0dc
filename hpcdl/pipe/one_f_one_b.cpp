#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/rank_order.h"

namespace hpcdl::pipe {

Schedule one_f_one_b(const PipeShape& shape) {
  Schedule s = looping(shape.ranks, shape.stages(), shape.micros);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankOrder order(shape.stages(), shape.micros);
    for (int ahead = rank; ahead < shape.ranks + shape.ahead; ++ahead) order.add(Act::forward, rank);
    while (order.add(Act::backward, rank)) order.add(Act::forward, rank);
    s.of_rank.push_back(order.take());
  }
  return s;
}

}  // namespace hpcdl::pipe
