#pragma once
// Backward of rows whose scores are far from 0 (.cu files; ops/cross_entropy/far_lse.h describes the precision lost in
// their lse). Their largest score and the logarithm of their sum are recomputed separately, so a probability is
//   p = 2^((score - top) scale - log),  scale and log in units of log2
// Other rows have a top of 0 and a log of lse * log2 e: subtracting the top does not change any bit of them.

#include "hpcdl/cuda/relative_exp.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/attention/parts.h"
#include "hpcdl/ops/attention/problem.cuh"
#include "hpcdl/ops/cross_entropy/far_lse.h"

namespace hpcdl::cuda {

struct RowExponent {
  float top, log;
};

/// score - top. Tensor cores may round a score above the top that was found here; limiting the difference to 0 keeps
/// probabilities <= 1.
__device__ inline float below_top(float score, float top) { return top == 0 ? score : fminf(score - top, 0.0f); }

__device__ inline RowExponent near_exponent(float lse) { return {0, lse * kLog2e}; }

/// Whether the lse of a row is to be found again, which takes all keys that it is of.
__device__ inline bool is_far_row(const AttentionProblem& p, float lse) { return !p.part && is_far_lse(lse); }

/// For a row that sees keys [first, seen) with scores dot(key); called by kLanes neighbouring threads of a warp together.
/// scale: times log2 e.
template <int kLanes, class Dot>
__device__ RowExponent row_exponent(float lse, std::int64_t first, std::int64_t seen, float scale, Dot&& dot) {
  const bool far = is_far_lse(lse);
  float top = -__FLT_MAX__, sum = 0;
  const auto add = [&](float other, float count) {
    const float higher = fmaxf(top, other);
    sum = sum * fast_exp2((top - higher) * scale) + count * fast_exp2((other - higher) * scale);
    top = higher;
  };
#pragma unroll 1
  for (std::int64_t key = first + threadIdx.x % kLanes; far && key < seen; key += kLanes) add(dot(key), 1);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    add(__shfl_xor_sync(~0u, top, offset), __shfl_xor_sync(~0u, sum, offset));
  return far ? RowExponent{top, log2f(sum)} : near_exponent(lse);
}

/// Where statistics of rows (B, H, T) are stored.
struct RowStatistics {
  float *tops = nullptr, *logs = nullptr;
  float* deltas = nullptr;    // sum(dout out); null: not requested
  float* near_lse = nullptr;  // lse, +inf where the row is far; null: not requested
  int* any_far = nullptr;     // set to 1 if any row is far; null: not requested
};

/// For all rows of a call: far_rows.cu.
void find_statistics(Stream& s, const AttendBackward& c, const RowStatistics& to);
/// Adds the contribution of the far rows to the gradients, which do not contain it yet; does nothing if *rows.any_far
/// is 0: plain.cu.
void add_far_gradients(Stream& s, const AttendBackward& c, const RowStatistics& rows);

/// f(part, its statistics) for parts of a call that fit the scratch, or the workspace if there is no scratch.
template <class F> void with_statistics(Stream& s, const AttendBackward& c, bool deltas, F&& f) {
  const std::int64_t rows = c.q[0] * c.args.heads * c.q[1];
  const bool scratch = c.scratch && c.scratch.size() >= 3 * rows;
  auto* const to = scratch ? c.scratch.ptr<float>() : static_cast<float*>(workspace(s));
  const std::int64_t most = scratch ? rows : static_cast<std::int64_t>(kWorkspaceBytes) / 12;
  in_parts(c, most, [&](const AttendBackward& part) {
    const std::int64_t count = part.q[0] * part.args.heads * part.q[1];
    const RowStatistics statistics{.tops = to, .logs = to + count, .deltas = deltas ? to + 2 * count : nullptr};
    find_statistics(s, part, statistics);
    f(part, statistics);
  });
}

}  // namespace hpcdl::cuda
