#pragma once

#include <cstdint>

#include "hpcdl/comm/algo/reduction.h"
#include "hpcdl/simd/isa.h"

namespace hpcdl::comm::algo {

struct CombineArguments {
  DType dtype = DType::f32;
  Reduce op = Reduce::sum;  // avg: the sum is divided by `divisor`
  int divisor = 1;
  std::byte* const* out = nullptr;
  int outs = 0;
  const std::byte* const* in = nullptr;
  int ins = 0;
  std::int64_t n = 0;
  Sweep sweep = Sweep::up;
};

/// See reduction.h.
template <class Isa> void combine_kernel(Isa, const CombineArguments& a);

}  // namespace hpcdl::comm::algo
