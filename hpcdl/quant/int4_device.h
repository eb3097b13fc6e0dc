#pragma once
// 4-bit weights on a GPU: quantises, unpacks and packs them, queued.

#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/stream.h"

namespace hpcdl::cuda {

/// Like quant::quantize_int4, w (N, K) with dense rows, into the memory of `to`. errors: f32 (N, K/G, 2), the squared
/// error and the squared weights of each group. A weight that is not finite makes scale and error of its group NaN:
/// calls do not wait to check this.
void quantize_int4(Stream& s, const int4::Weight& to, Tensor errors, View w, bool search);

/// Like quant::pack_int4 and quant::unpack_int4; values above 15 lose their upper bits, because calls do not wait to
/// check.
void pack_int4(Stream& s, Tensor packed, View q);
void unpack_int4(Stream& s, Tensor q, View packed);

/// out (N, K), f32 or bf16, contiguous.
void dequantize_int4(Stream& s, Tensor out, const int4::Weight& w);

}  // namespace hpcdl::cuda
