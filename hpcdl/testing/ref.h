#pragma once

#include <cstdint>
#include <vector>

#include "hpcdl/core/tensor.h"

namespace hpcdl::testing {

/// A tensor in double precision: what naive references compute on. shape of an absent operand: rank 0 and no elements.
struct Ref {
  Shape shape;
  std::vector<double> data;

  explicit operator bool() const { return !data.empty(); }
  double& operator[](std::int64_t i) { return data[static_cast<std::size_t>(i)]; }
  double operator[](std::int64_t i) const { return data[static_cast<std::size_t>(i)]; }
  std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }
};

}  // namespace hpcdl::testing
