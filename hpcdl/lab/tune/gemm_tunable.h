#pragma once

#include "hpcdl/lab/tune/gpu.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::lab::tune {

std::array<std::int64_t, 19> fields_of(const cuda::Gemm& g);
/// g's shape, types and epilogue; its addresses are not kept.
Wish wish_of(const cuda::Gemm& g);

}  // namespace hpcdl::lab::tune
