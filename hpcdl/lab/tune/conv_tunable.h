#pragma once

#include "hpcdl/lab/tune/gpu.h"
#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::lab::tune {

std::array<std::int64_t, 14> fields_of(const cuda::Conv& c);
/// c's shape, pass and types; its addresses are not kept.
Wish wish_of(const cuda::Conv& c);

}  // namespace hpcdl::lab::tune
