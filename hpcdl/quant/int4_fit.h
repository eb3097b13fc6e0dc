#pragma once
// The quantising kernel. Destination-passing: the results of each tile of 16 rows go to stats[tile].

#include "hpcdl/ops/int4_linear/int4_layout.h"
#include "hpcdl/pool.h"

namespace hpcdl::quant {

struct Int4TileStats {
  double squared = 0, origin = 0, largest = 0;
  std::int64_t bad_row = -1, bad_k = -1;  // a weight that is not finite
};

struct Int4Target {
  Tensor packed, scale, offset;  // offset null: symmetric
  std::int64_t n, k, group;
  bool search;
  const float* importance = nullptr;  // of each input, for the search; null: all are alike
};

}  // namespace hpcdl::quant

namespace hpcdl::cpu {
template <class Isa>
void quantize_int4(Isa, Pool&, const quant::Int4Target& to, View w, bool transposed, quant::Int4TileStats* stats);
}  // namespace hpcdl::cpu
