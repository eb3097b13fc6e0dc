#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hpcdl/io/file.h"
#include "hpcdl/pool.h"

namespace hpcdl::models {

struct ExtractedAdapter {
  std::int64_t layers = 0;               // that have an adapter, because they differ
  double squared = 0, left = 0;          // of the differences of these layers, and of what the adapter does not hold
  std::vector<std::string> others = {};  // tensors that differ and are in no such layer
  double relative_error() const;         // sqrt(left / squared)
};

/// Writes into the folder `to` the adapter of rank r whose products are nearest to the difference between two models of
/// one shape: the largest singular values of each matrix, by subspace iteration (Halko, Martinsson and Tropp, "Finding
/// structure with randomness", 2011), which is exact if the rank of the difference is at most r. Throws Error if the
/// models have other shapes, or if no linear layer differs.
ExtractedAdapter extract_adapter(Pool& pool, const io::fs::path& base, const io::fs::path& tuned,
                                 const io::fs::path& to, std::int64_t r);

}  // namespace hpcdl::models
