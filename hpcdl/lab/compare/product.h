#pragma once

#include <optional>

#include "hpcdl/lab/cases.h"

namespace hpcdl::lab::compare {

/// A case that is one bare matrix product: D (m, n) = op(A) op(B), all row-major and dense, on the memory of its run.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType dtype = DType::f32;
  const void *a = nullptr, *b = nullptr;
  const void* d = nullptr;  // the output of our kernel

  std::int64_t lda() const { return transpose_a ? m : k; }
  std::int64_t ldb() const { return transpose_b ? k : n; }
};

/// Nothing if the case does more than that: a bias, an activation, a batch, a backward pass.
std::optional<Product> product_of(const CaseRun& run);

}  // namespace hpcdl::lab::compare
