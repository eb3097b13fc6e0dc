#pragma once
// What the kernels of the gradient share: rows of choices expert by expert. The rows of each expert begin at a multiple of
// kRowTile, and those between its last choice and the next multiple are zero, so that products need no masks along them.

#include "hpcdl/ops/expert_mlp/tile_of_expert.cuh"

namespace hpcdl::cuda {

inline constexpr int kRowTile = static_cast<int>(ExpertMlp::kRowTile);

__host__ __device__ constexpr int whole_tiles(int rows) { return (rows + kRowTile - 1) / kRowTile * kRowTile; }

/// The row where an expert begins. Called by whole warps.
__device__ inline int first_row(const Choices& p, int expert) {
  int sum = 0;
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < expert; e += kWarp) sum += whole_tiles(p.count(e));
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  return sum;
}

/// to (rows, n) = the sum over terms of from (rows, k) times the matrix (k, n) of the rows' expert.
struct RowsProduct : Choices {
  static constexpr int kMostTerms = 2;
  struct Term {
    const void* from;
    const void* w[ExpertMlp::kMostExperts];
    std::int64_t stride;  // of w
  } term[kMostTerms];
  int terms;
  void* to;
  int n, k;
  int rows;  // memory has so many
};

/// to (m, n) (+)= the sum over the rows of an expert of left (rows, m)^T right (rows, n).
struct MatrixGradient : Choices {
  const void *left, *right;
  void* to[ExpertMlp::kMostExperts];  // contiguous; null: not wanted
  bool accumulate[ExpertMlp::kMostExperts];
  int m, n;
  int rows;  // memory has so many
};
static_assert(sizeof(RowsProduct) < 32 << 10 && sizeof(MatrixGradient) < 32 << 10);  // kernel parameters

// On Hopper's tensor cores (grouped_wide.cu).

/// Whether they can compute products of these widths in this type, of memory aligned to 16 bytes.
bool grouped_fits(const Stream& s, DType type, int m, int n);
void multiply_rows_wide(Stream& s, const RowsProduct& p, DType type);
void add_gradient_wide(Stream& s, const MatrixGradient& p, DType type, DType of_gradient);

}  // namespace hpcdl::cuda
