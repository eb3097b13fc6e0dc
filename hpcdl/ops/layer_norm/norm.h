#pragma once
// Shared code of layer_norm and rms_norm: operands of the kernels, checks, scratch.

#include <algorithm>

#include "hpcdl/ops/require.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

/// Operands of a forward pass; absent ones are null.
struct NormForward {
  Tensor h = {}, y = {}, mean = {}, rstd = {};
  View x = {}, residual = {}, gamma = {}, beta = {};
  float eps = 0;
  float gamma_offset = 0;  // added to every element of gamma
};

/// Operands of a backward pass. `h` is the normalised tensor; `dh_in` is the gradient that reaches h from elsewhere.
struct NormBackward {
  Grad dx = {}, dresidual = {}, dgamma = {}, dbeta = {};
  View h = {}, mean = {}, rstd = {}, gamma = {}, dy = {}, dh_in = {};
  Tensor partial = {};     // (chunks or parts, 2, C) f32: dgamma and dbeta of fixed shares of the rows
  float gamma_offset = 0;  // added to every element of gamma
};

/// Rows are summed into at most 64 partial parameter gradients, by chunks that do not depend on the number of threads.
inline std::int64_t norm_chunk_rows(std::int64_t rows) {
  const std::int64_t even = (rows + 63) / 64;
  return even < 16 ? 16 : (even + 3) / 4 * 4;
}
inline std::int64_t norm_chunks(std::int64_t rows) {
  const auto per = norm_chunk_rows(rows);
  return (rows + per - 1) / per;
}

/// The GPU's shares of the rows: as many as blocks run at a time on a large GPU (with_backward_team), with at least four
/// rows each, or one where that would leave multiprocessors idle and no team takes four rows at a time. The number
/// depends only on the shape, so that results do not depend on the GPU.
inline std::int64_t norm_parts(const Spec& h) {
  const std::int64_t packs = (h[-1] * dtype_bytes(h.dtype) + 15) / 16, rows = h.shape.size() / h[-1];
  const std::int64_t most = packs <= 128   ? 1056
                            : packs <= 256 ? 528
                            : packs <= 512 ? 264
                                           : 132,
                     few = packs <= 32 ? 1 : std::min<std::int64_t>(rows, 132);
  return std::min(most, std::max((rows + 3) / 4, few));
}
inline std::int64_t norm_parts(const View& h) { return norm_parts(h.spec()); }

namespace detail {

struct NormArgs {
  float eps = 1e-5f;
};

void require_norm(std::string_view op, const Spec& x, const Spec& gamma, const Spec& beta, float eps);

inline Spec row_statistic(const Spec& x) {
  Shape s;
  for (int i = 0; i + 1 < x.shape.rank(); ++i) s.push_back(x[i]);
  if (s.rank() == 0) s.push_back(1);
  return {s, DType::f32};
}

inline Spec norm_scratch(const Spec& x) {
  const auto chunks = norm_chunks(x.shape.size() / x[-1]), parts = norm_parts(x);
  return {{chunks > parts ? chunks : parts, 2, x[-1]}, DType::f32};
}

}  // namespace detail

}  // namespace hpcdl
