#pragma once
// Quantised matrices, as kernels of GPUs receive them.

#include <array>

#include "hpcdl/core/mx.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/ops/quant_linear/quant_format.h"
#include "hpcdl/ops/quant_linear/rotated_values.h"

namespace hpcdl::cuda {

struct QuantWeights {
  const std::uint8_t* codes;
  const void* scale;
  const float *outer, *table;
  std::int64_t n, k, row_bytes;
  QuantFormat format;

  explicit QuantWeights(const QuantMatrix& w)
      : codes(static_cast<const std::uint8_t*>(w.parts.codes.data())),
        scale(w.parts.scale.data()),
        outer(w.parts.outer.ptr<float>()),
        table(w.parts.table.ptr<float>()),
        n(w.n()),
        k(w.k()),
        row_bytes(w.parts.codes[1]),
        format(w.format) {}

  /// Value `code` of the format's table. Kernels do not have tables of the host.
  __device__ float value(int code) const {
    static constexpr auto kNf4 = std::to_array(kNf4Values), kFp4 = std::to_array(kFp4Values),
                          kE2m1 = std::to_array(kE2m1Values), kRot3 = std::to_array(kRot3Values);
    const auto i = static_cast<std::size_t>(code);
    switch (format) {
      case QuantFormat::fp4:
      case QuantFormat::fp4_double: return kFp4[i];
      case QuantFormat::mxfp4: return kE2m1[i];
      case QuantFormat::rot3: return kRot3[i];
      default: return kNf4[i];
    }
  }
};

/// Calls f.operator()<format>(), with the format of the same layout whose table QuantWeights has.
template <class F> void visit_quant_format(QuantFormat format, F&& f) {
  switch (format) {
    case QuantFormat::nf4:
    case QuantFormat::fp4: return f.template operator()<QuantFormat::nf4>();
    case QuantFormat::nf4_double:
    case QuantFormat::fp4_double: return f.template operator()<QuantFormat::nf4_double>();
    case QuantFormat::int8: return f.template operator()<QuantFormat::int8>();
    case QuantFormat::q8_0: return f.template operator()<QuantFormat::q8_0>();
    case QuantFormat::q4_0: return f.template operator()<QuantFormat::q4_0>();
    case QuantFormat::q4_k: return f.template operator()<QuantFormat::q4_k>();
    case QuantFormat::q6_k: return f.template operator()<QuantFormat::q6_k>();
    case QuantFormat::rot3: return f.template operator()<QuantFormat::rot3>();
    case QuantFormat::rot_ternary: return f.template operator()<QuantFormat::rot_ternary>();
    case QuantFormat::fp8: return f.template operator()<QuantFormat::fp8>();
    case QuantFormat::fp8_blocks: return f.template operator()<QuantFormat::fp8_blocks>();
    case QuantFormat::mxfp4: return f.template operator()<QuantFormat::mxfp4>();
  }
}

}  // namespace hpcdl::cuda
