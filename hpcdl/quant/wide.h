#pragma once
// Kernels in double for decompositions of matrices (leading.h).

#include <cstdint>
#include <span>

#include "hpcdl/pool.h"

namespace hpcdl::quant {

/// A matrix whose element (i, j) is at i * row + j * column: double, or float if `single`.
struct Wide {
  const void* data = nullptr;
  std::int64_t row = 0, column = 1;
  bool single = false;

  Wide transposed() const { return {data, column, row, single}; }
};

/// A turn of rows i and i + 1: (c x - s y, s x + c y).
struct Turn {
  double c = 1, s = 0;
  std::int64_t i = 0;
};

}  // namespace hpcdl::quant

namespace hpcdl::cpu {

/// c (m, n) with rows `ld` apart = factor * a (m, k) b (k, n), + c if `add`. The order of every sum depends on the shape
/// alone.
template <class Isa>
void wide_product(Isa, Pool& pool, double* c, std::int64_t ld, const quant::Wide& a, const quant::Wide& b,
                  std::int64_t m, std::int64_t n, std::int64_t k, double factor, bool add);
template <class Isa> double wide_dot(Isa, const double* a, const double* b, std::int64_t n);
/// y += factor * x.
template <class Isa> void wide_add(Isa, double* y, double factor, const double* x, std::int64_t n);
/// p = a v for rows of a that are `ld` apart.
template <class Isa>
void wide_rows(Isa, Pool& pool, double* p, const double* a, std::int64_t ld, const double* v, std::int64_t n);
/// a -= v w^T + w v^T.
template <class Isa>
void wide_update(Isa, Pool& pool, double* a, std::int64_t ld, const double* v, const double* w, std::int64_t n);
/// Applies turns, one after another, to the rows of z (rows, n).
template <class Isa> void wide_turns(Isa, Pool& pool, double* z, std::int64_t n, std::span<const quant::Turn> turns);

}  // namespace hpcdl::cpu
