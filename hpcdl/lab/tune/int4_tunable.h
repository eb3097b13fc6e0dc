#pragma once

#include "hpcdl/lab/tune/gpu.h"
#include "hpcdl/ops/int4_linear/int4_ways.h"

namespace hpcdl::lab::tune {

std::array<std::int64_t, 5> fields_of(const cuda::Int4Shape& shape);
Wish wish_of(const cuda::Int4Shape& shape);

}  // namespace hpcdl::lab::tune
