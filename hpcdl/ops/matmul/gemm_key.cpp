#include <fmt/format.h>

#include "hpcdl/core/ways.h"
#include "hpcdl/op.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {
namespace {

/// The alignment that matters for copy engines and wide stores.
bool wide(const void* p, std::int64_t ld, std::int64_t batch_stride, DType d) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && ld * dtype_bytes(d) % 16 == 0 &&
         batch_stride * dtype_bytes(d) % 16 == 0;
}

}  // namespace

std::array<std::int64_t, 19> fields_of(const Gemm& g) {
  const auto type = [](DType d) { return static_cast<std::int64_t>(d); };
  const auto& o = g.out;
  const std::int64_t parts = (o.accumulate ? 1 : 0) | (o.bias ? 2 : 0) | (o.z ? 4 : 0) | (o.residual ? 8 : 0) |
                             (o.residual_inside ? 16 : 0) | (o.residual_is_z ? 32 : 0) | (g.tf32 ? 64 : 0);
  const std::int64_t wide_ones = (wide(g.a.data, g.a.ld, g.a.batch_stride, g.a.dtype) ? 1 : 0) |
                                 (wide(g.b.data, g.b.ld, g.b.batch_stride, g.b.dtype) ? 2 : 0) |
                                 (wide(o.d, o.ld, o.batch_stride, o.dtype) ? 4 : 0) |
                                 (wide(o.z, o.z_ld, 0, o.dtype) ? 8 : 0) |
                                 (wide(o.residual, o.residual_ld, o.residual_batch_stride, o.dtype) ? 16 : 0) |
                                 (reinterpret_cast<std::uintptr_t>(o.bias) % 16 == 0 ? 32 : 0);
  return {bucket(g.m),
          bucket(g.n),
          bucket(g.k),
          bucket(g.batch),
          g.m % 8 == 0,
          g.n % 8 == 0,
          g.k % 8 == 0,
          type(g.compute),
          type(g.a.dtype),
          g.a.transposed,
          type(g.b.dtype),
          g.b.transposed,
          g.b.batch_stride == 0,
          type(o.dtype),
          type(o.bias_dtype),
          static_cast<std::int64_t>(o.activation),
          parts,
          wide_ones,
          g.a.batch_stride == 0};
}

std::string words_of(const Gemm& g) {
  std::string text = fmt::format("{}x{}x{}", g.m, g.n, g.k);
  if (g.batch > 1) text = fmt::format("{} of {}", g.batch, text);
  if (g.a.transposed || g.b.transposed)
    text += fmt::format(" {}{}", g.a.transposed ? 't' : 'n', g.b.transposed ? 't' : 'n');
  if (g.out.bias) text += " +bias";
  if (g.out.activation != GemmActivation::none) text += g.out.activation == GemmActivation::relu ? " relu" : " gelu";
  if (g.out.z) text += " keeps z";
  if (g.out.residual) text += g.out.residual_is_z ? " times slope" : " +residual";
  if (g.out.accumulate) text += " adds up";
  if (g.tf32) text += " tf32";
  if (g.out.dtype != g.compute) text += fmt::format(" to {}", unit_name(unit_of(g.out.dtype)));
  return text;
}

}  // namespace hpcdl::cuda
