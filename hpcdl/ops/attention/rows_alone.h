#pragma once

#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {

/// Attention to pages for every query by itself, in one pass over its keys: its bits do not depend on others (decode.cu).
void attend_rows_alone(Stream& s, const PagedAttend& c);

}  // namespace hpcdl::cuda
