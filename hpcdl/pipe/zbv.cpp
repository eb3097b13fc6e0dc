#include <algorithm>
#include <cstdint>
#include <vector>

#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/rank_order.h"

namespace hpcdl::pipe {
namespace {

/// The order of a rank, whose stages are `down` on the way to the last rank and `up` on the way back.
class VOrder {
 public:
  VOrder(const PipeShape& shape, int rank)
      : ranks_(shape.ranks),
        rank_(rank),
        down_(rank),
        up_(2 * shape.ranks - 1 - rank),
        micros_(shape.micros),
        order_(shape.stages(), shape.micros) {}

  std::vector<Action> make() {
    fill();
    while (left(Act::forward, down_) || left(Act::forward, up_)) {
      order_.add(Act::forward, down_);
      backward(down_);
      order_.add(Act::forward, up_);
      backward(up_);
    }
    drain();
    return order_.take();
  }

 private:
  bool left(Act act, int stage) const { return order_.count(act, stage) < micros_; }
  /// Both halves of a backward, if there is a forward that has none.
  void backward(int stage) {
    if (order_.count(Act::input_gradient, stage) == order_.count(Act::forward, stage)) return;
    order_.add(Act::input_gradient, stage);
    order_.add(Act::weight_gradient, stage);
  }
  /// Until the first gradient of the first stage arrives.
  void fill() {
    for (int i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) order_.add(Act::forward, down_);
    for (int i = 0; i < rank_; ++i) order_.add(Act::forward, up_), order_.add(Act::forward, down_);
    for (int i = rank_; i < ranks_; ++i) order_.add(Act::forward, up_), backward(up_);
  }
  /// No forwards are left: the gradients of weights fill the gaps and the end.
  void drain() {
    for (int i = 0; i < rank_; ++i) order_.add(Act::input_gradient, down_), order_.add(Act::input_gradient, up_);
    for (int i = rank_; i < ranks_; ++i) {
      order_.add(Act::input_gradient, down_);
      if (order_.count(Act::weight_gradient, down_) < order_.count(Act::input_gradient, down_))
        order_.add(Act::weight_gradient, down_);
    }
    while (left(Act::input_gradient, down_) || left(Act::input_gradient, up_))
      order_.add(Act::input_gradient, up_), order_.add(Act::input_gradient, down_);
    for (const int stage : {up_, down_})
      while (order_.add(Act::weight_gradient, stage)) continue;
  }

  int ranks_, rank_, down_, up_, micros_;
  RankOrder order_;
};

}  // namespace

Schedule zbv(const PipeShape& shape) {
  Schedule s{.micros = shape.micros};
  for (int stage = 0; stage < shape.stages(); ++stage)
    s.forward_rank.push_back(static_cast<std::int16_t>(std::min(stage, shape.stages() - 1 - stage)));
  s.backward_rank = s.forward_rank;
  for (int rank = 0; rank < shape.ranks; ++rank) s.of_rank.push_back(VOrder(shape, rank).make());
  return s;
}

}  // namespace hpcdl::pipe
