#pragma once
// The table of rope(), computed only as far as programs read it: for 131072 positions it takes a second and 64 MB.

#include <algorithm>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/rope/rope.h"

namespace hpcdl::models {

struct RopeAngles {
  OwnedTensor table;  // (positions, head_dim); has memory after the first request
  double theta = 0;
  RopeScaling scaling;
  std::int64_t filled = 0;  // rows
  bool described = false;   // never has memory

  RopeAngles(std::int64_t positions, std::int64_t head_dim, double theta_, const RopeScaling& scaling_)
      : theta(theta_), scaling(scaling_) {
    table.tensor = Tensor(nullptr, {{positions, head_dim}, DType::f32});
  }

  /// The table, with at least its first `rows` rows filled. Not thread-safe.
  const Tensor& first(std::int64_t rows) {
    rows = std::min(rows, table.tensor[0]);
    if (rows <= filled || described) return table.tensor;
    if (!table.tensor) table = OwnedTensor(table.tensor.spec());
    rope_rows(table.tensor, filled, rows, theta, scaling);
    filled = rows;
    return table.tensor;
  }
};

}  // namespace hpcdl::models
