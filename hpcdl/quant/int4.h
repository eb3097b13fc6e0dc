#pragma once
// Quantises weights to 4 bits, and back. The format and its bits per weight: ops/int4_linear/int4_layout.h.

#include <span>
#include <string_view>

#include "hpcdl/buffer.h"
#include "hpcdl/nn/codec.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/pool.h"

namespace hpcdl::quant {

struct Int4Matrix {
  OwnedTensor packed, scale, offset;  // offset: no tensor if symmetric

  Int4Matrix() = default;
  /// Uninitialised memory for a matrix (n, k).
  Int4Matrix(std::int64_t n, std::int64_t k, const nn::CodecOptions& options);
  int4::Weight weight() const { return {packed.tensor, scale.tensor, offset.tensor}; }
  std::int64_t bytes() const { return packed.tensor.bytes() + scale.tensor.bytes() + offset.tensor.bytes(); }
};

/// Quantises w (N, K), or (K, N) when `transposed`; f32, bf16 or f16, dense rows. Throws Error that names `name` and
/// the position when a weight is NaN or infinite. Groups whose largest magnitude is below 2^-118 become zero. `search`
/// tries a grid around the full range of a group, then least squares: without it the error of every weight is at most
/// half a step; with it the largest weights of a group may be off by more and the sum of squares is never larger. With
/// `importance`, K numbers, it is the sum of squares that are multiplied by them. The result does not depend on the number
/// of threads.
Int4Matrix quantize_int4(Pool& pool, View w, const nn::CodecOptions& options, bool transposed = false,
                         nn::RoundingError* error = nullptr, std::string_view name = "weight",
                         std::span<const float> importance = {});

/// out (N, K), f32 or bf16.
void dequantize_int4(Pool& pool, Tensor out, const int4::Weight& w);

/// Packs the values q, U8 (N, K) of 0 .. 15, into `packed`, U8 (N, K/2), K a multiple of 8; and unpacks them. Exact.
void pack_int4(Pool& pool, Tensor packed, View q);
void unpack_int4(Pool& pool, Tensor q, View packed);

}  // namespace hpcdl::quant
