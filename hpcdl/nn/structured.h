#pragma once

#include "hpcdl/nn/param.h"
#include "hpcdl/nn/structure.h"

namespace hpcdl::nn {

/// The factors of a compressed matrix (out, in), which are trained as a matrix is. Sources: Dao et al., "Monarch:
/// expressive structured matrices for efficient and accurate training", 2022; Lee et al., "BLAST: block-level adaptive
/// structured matrices for efficient deep neural network inference", 2024.
///
///   | method  | input              | scale                  | output              |
///   | svd     | (rank, in)         |                        | (out, rank)         |
///   | monarch | (B, B rank, in/B)  |                        | (B, out/B, B rank)  |
///   | blast   | (B, rank, in/B)    | (rank, B, B)           | (B, out/B, rank)    |
///
/// Part (i, j) of W, the outputs of block i and the inputs of block j, is in monarch the sum over t < rank of
/// output[i, :, j rank + t] input[j, i rank + t, :]^T, and in blast that of output[i, :, t] scale[t, i, j] input[j, t, :]^T.
struct Structured {
  Structure structure;
  std::int64_t in = 0, out = 0;
  Param input, scale, output;

  Structured() = default;
  /// Throws Error if the blocks do not divide the matrix, or if the rank is larger than that of a part.
  Structured(std::int64_t inputs, std::int64_t outputs, const Structure& s, float std);

  /// x W^T + bias + residual; both may be absent.
  Var operator()(const Var& x, const Var& bias, const Var& residual) const;
  void visit(auto&& f) {
    f("factor_in.weight", input);
    if (scale.spec) f("factor_scale.weight", scale);
    f("factor_out.weight", output);
  }
};

}  // namespace hpcdl::nn
