#pragma once
// 4-bit weights on a GPU: making them, taking them apart and putting them together, queued.

#include "hpcdl/core/stream.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"

namespace hpcdl::cuda {

/// As quant::quantize_int4, w (N, K) with dense rows, into the memory of `to`. errors: f32 (N, K/G, 2), the squared
/// error and the squared weights of each group. A weight that is not finite makes scale and error of its group NaN:
/// no call waits to check.
void quantize_int4(Stream& s, const int4::Weight& to, Tensor errors, View w, bool search);

/// As quant::pack_int4 and quant::unpack_int4; of values above 15 the low four bits are taken: no call waits to check.
void pack_int4(Stream& s, Tensor packed, View q);
void unpack_int4(Stream& s, Tensor q, View packed);

/// out (N, K), f32 or bf16, contiguous.
void dequantize_int4(Stream& s, Tensor out, const int4::Weight& w);

}  // namespace hpcdl::cuda
