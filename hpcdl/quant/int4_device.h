#pragma once
// 4-bit weights on a GPU: taking them apart and putting them together, queued. Making them (quantize_int4) is the host's.

#include "hpcdl/core/stream.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"

namespace hpcdl::cuda {

/// As quant::pack_int4 and quant::unpack_int4; of values above 15 the low four bits are taken, as nobody waits to look.
void pack_int4(Stream& s, Tensor packed, View q);
void unpack_int4(Stream& s, Tensor q, View packed);

/// out (N, K), f32 or bf16, contiguous.
void dequantize_int4(Stream& s, Tensor out, const int4::Weight& w);

}  // namespace hpcdl::cuda
