#pragma once
// Queues of records. The records of one lane run in their order; a record waits for those of other lanes only where both
// touch the same memory (graph/lanes.h). On a GPU each lane is a stream. On a CPU records run where the program is
// walked, except those that their op can begin and leave to other threads: these keep their lane.

#include <cstdint>
#include <string_view>

namespace hpcdl {

enum class Lane : std::uint8_t {
  compute,
  weights,  // gradients of weights, next to those of activations
  reduce,   // sums of gradients over ranks
};
inline constexpr int kLanes = 3;

inline std::string_view lane_name(Lane lane) {
  constexpr std::string_view names[kLanes] = {"compute", "weights", "reduce"};
  return names[static_cast<int>(lane)];
}

}  // namespace hpcdl
