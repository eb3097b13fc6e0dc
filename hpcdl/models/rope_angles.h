#pragma once
// The table of rope(), worked out as far as programs read it: that of 131072 positions takes a second and 64 MB.

#include <algorithm>

#include "hpcdl/core/imagined_memory.h"
#include "hpcdl/ops/rope/rope.h"

namespace hpcdl::models {

struct RopeAngles {
  OwnedTensor table;  // (positions, head_dim)
  double theta = 0;
  RopeScaling scaling;
  std::int64_t filled = 0;  // rows

  RopeAngles(std::int64_t positions, std::int64_t head_dim, double theta_, const RopeScaling& scaling_)
      : table({{positions, head_dim}, DType::f32}), theta(theta_), scaling(scaling_) {}

  /// The table, with at least its first rows filled. Not by two threads at once.
  const Tensor& first(std::int64_t rows) {
    rows = std::min(rows, table.tensor[0]);
    if (rows > filled && !ImaginedMemory::active()) {
      rope_rows(table.tensor, filled, rows, theta, scaling);
      filled = rows;
    }
    return table.tensor;
  }
};

}  // namespace hpcdl::models
