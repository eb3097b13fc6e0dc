#pragma once
// The table of rope(), computed only as far as programs read it: for 131072 positions it takes a second and 64 MB.

#include <algorithm>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/rope/rope.h"

namespace hpcdl::models {

struct RopeAngles {
  OwnedTensor table;  // (positions, rotated elements of a head); has memory after the first request
  double theta = 0;
  RopeScaling scaling;
  std::int64_t filled = 0;  // rows
  bool long_texts = false;  // whether it is for texts beyond the original context of the scaling
  bool described = false;   // never has memory

  RopeAngles(std::int64_t positions, std::int64_t rotated, double theta_, const RopeScaling& scaling_ = {},
             bool for_long_texts = false)
      : theta(theta_), scaling(scaling_), long_texts(for_long_texts) {
    table.tensor = Tensor(nullptr, {{positions, rotated}, DType::f32});
  }

  /// The table, with at least its first `rows` rows filled. Not thread-safe.
  const Tensor& first(std::int64_t rows) {
    rows = std::min(rows, table.tensor[0]);
    if (rows <= filled || described) return table.tensor;
    if (!table.tensor) table = OwnedTensor(table.tensor.spec());
    rope_rows(table.tensor, filled, rows, theta, scaling, long_texts);
    filled = rows;
    return table.tensor;
  }
};

}  // namespace hpcdl::models
