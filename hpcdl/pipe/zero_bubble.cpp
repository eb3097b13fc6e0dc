#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/rank_order.h"

namespace hpcdl::pipe {

Schedule zero_bubble(const PipeShape& shape) {
  Schedule s = looping(shape.ranks, shape.stages(), shape.micros);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankOrder order(shape.stages(), shape.micros);
    for (int ahead = rank + 1; ahead < shape.ranks + shape.ahead; ++ahead) order.add(Act::forward, rank);
    for (int i = 0; i < shape.micros; ++i) {
      order.add(Act::forward, rank);
      order.add(Act::input_gradient, rank);
      if (i >= rank) order.add(Act::weight_gradient, rank);  // later ranks keep more for the end
    }
    while (order.add(Act::weight_gradient, rank)) continue;
    s.of_rank.push_back(order.take());
  }
  return s;
}

}  // namespace hpcdl::pipe
