#pragma once
// Queues of records. The records of one lane run in their order; a record waits for a record of another lane only if
// both touch the same memory (graph/lanes.h). On a GPU each lane is a stream. On a CPU only records whose op can start
// them and leave them to other threads keep their lane; all others run one after the other.

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
