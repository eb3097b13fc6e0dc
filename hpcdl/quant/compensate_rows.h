#pragma once
// The loops of error compensation.

#include <cstdint>

#include "hpcdl/pool.h"
#include "hpcdl/quant/rounder.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::quant {

/// The lower triangle of a matrix (k, k), whose index i belongs to input order[i].
struct OrderedFactor {
  const double* l;
  const std::int64_t* order;
  std::int64_t k;
};

inline constexpr std::int64_t kIndicesTogether = 64;  // which are done before the others hear of them
inline constexpr std::int64_t kRowsTogether = 16;     // which read a part of L from the cache

}  // namespace hpcdl::quant

namespace hpcdl::cpu {

/// Replaces the lower triangle of a symmetric matrix (k, k) by L, of which it is L L^T. False if it is not positive
/// definite. scratch: kIndicesTogether * k.
template <class Isa> bool cholesky(Isa, Pool& pool, double* a, std::int64_t k, double* scratch);

/// Replaces `count` rows of k weights, at most kRowsTogether, by the values to which they are rounded, from the last index
/// to the first. `row`: the first one, for the rounder. sums, scratch: kRowsTogether * k, kRowsTogether * kIndicesTogether.
template <class Isa>
void compensate_rows(Isa, float* weights, std::int64_t row, std::int64_t count, const quant::OrderedFactor& f,
                     quant::Rounder& rounder, double* sums, double* scratch);

}  // namespace hpcdl::cpu
