#pragma once
// Attention over pages on Hopper's tensor cores: 16-bit operands of one type, widths up to 128 that are multiples of 8,
// sequences of several queries (paged_wgmma.cu).

#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {

bool wgmma_fits(const Stream& s, const PagedAttend& c);
void attend_wgmma(Stream& s, const PagedAttend& c);

}  // namespace hpcdl::cuda
