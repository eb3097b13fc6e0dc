#pragma once

#include "hpcdl/buffer.h"
#include "hpcdl/pool.h"
#include "hpcdl/tensor.h"

namespace hpcdl::models {

/// left^T right, of rank r: the nearest to a matrix.
struct LowRank {
  OwnedTensor left, right;  // (r, rows) and (r, columns), f32; both have the roots of the singular values
};

/// Of d (rows, columns), f32, contiguous; 1 <= r <= min(rows, columns).
LowRank nearest_of_rank(Pool& pool, const View& d, std::int64_t r);

}  // namespace hpcdl::models
