#pragma once
// Formats of quantised matrices that kernels read as files hold them, so that a mapped file is used in place.
//
// W is (N, K): N outputs, K inputs. A row is a sequence of blocks, and a block holds the codes of some consecutive
// inputs. A code is a number, or the index of one of 16 values; a group of inputs shares a scale, and perhaps a minimum.
// Scales lie in the blocks, or in a tensor of their own; they may be quantised themselves, with scales of their own.
// Decoders are in decode_*.h. To add a format: a row here, a decoder, and a line in decoders.h; for GPUs, pieces
// (quant_device.cuh) and fragments for tensor cores (tiles_*.cu).
//
//   nf4         U8 (N, K/2), the first of two inputs in the high four bits; F32 (N, K/64). The layout of bitsandbytes.
//   fp4         the same with other values
//   nf4_double, fp4_double: as nf4 and fp4; scales U8 (N, K/64); F32 (S), S = N K/64 / 256 rounded up, their scales; F32 (257), what a
//               code of a scale means, and last the number that is added: scale = table[code] * outer + table[256]
//   int8        I8 (N, K); F32 (N): w = code * scale / 127. LLM.int8 of bitsandbytes.
//   fp8         U8 (N, K), E4M3; F32 (N): w = code * scale
//   fp8_blocks  U8 (N, K), E4M3; F32 (N/128, K/128), rounded up, a scale for each block. Files of others: quant_method fp8.
//   mxfp4       U8 (N, K/2), E2M1, the first of two inputs in the low four bits; U8 (N, K/32), E8M0 (core/mx.h)
//   rot3, rot_ternary: U8 (N, 96 K/256), U8 (N, 52 K/256), codes of rotated weights (rotation.h, rotated_values.h);
//               F32 (N, K/256)
//   q8_0 ...    U8 (N, bytes of a row): blocks of GGUF, whose scales lie in the blocks

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "hpcdl/ops/require.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

enum class QuantFormat : std::uint8_t {
  nf4,
  nf4_double,
  int8,
  q8_0,
  q4_0,
  q4_k,
  q6_k,
  fp4,
  fp4_double,
  rot3,
  rot_ternary,
  fp8,
  mxfp4,
  fp8_blocks
};
inline constexpr int kQuantFormats = 14;

struct QuantFormatInfo {
  std::string_view name;
  int bits;                          // of a code
  bool table = false;                // a code is the index of one of up to 16 values
  std::int64_t block = 1;            // inputs whose codes lie together; K is a multiple of it
  std::int64_t block_bytes = 1;      // of the first tensor
  std::int64_t group = 0;            // inputs with one scale; 0: a whole row
  std::int64_t rows = 1;             // that share their scales
  DType scale = DType::f32;          // type of a scale, or of what scales it
  bool minimum = false;              // a group has a minimum, too
  std::int64_t scales_together = 0;  // that have one scale of their own; 0: they have none
  bool scales_in_blocks = false;
  bool rotated = false;  // values are those of rotated weights (rotation.h)
};

[[gnu::always_inline]] constexpr QuantFormatInfo quant_format_info(QuantFormat f) {
  switch (f) {
    case QuantFormat::nf4:
      return {.name = "nf4", .bits = 4, .table = true, .block = 64, .block_bytes = 32, .group = 64};
    case QuantFormat::nf4_double:
      return {.name = "nf4_double",
              .bits = 4,
              .table = true,
              .block = 64,
              .block_bytes = 32,
              .group = 64,
              .scales_together = 256};
    case QuantFormat::int8: return {.name = "int8", .bits = 8, .block = 32, .block_bytes = 32};
    case QuantFormat::q8_0:
      return {.name = "q8_0",
              .bits = 8,
              .block = 32,
              .block_bytes = 34,
              .group = 32,
              .scale = DType::f16,
              .scales_in_blocks = true};
    case QuantFormat::q4_0:
      return {.name = "q4_0",
              .bits = 4,
              .block = 32,
              .block_bytes = 18,
              .group = 32,
              .scale = DType::f16,
              .scales_in_blocks = true};
    case QuantFormat::q4_k:
      return {.name = "q4_k",
              .bits = 4,
              .block = 256,
              .block_bytes = 144,
              .group = 32,
              .scale = DType::f16,
              .minimum = true,
              .scales_together = 8,
              .scales_in_blocks = true};
    case QuantFormat::q6_k:
      return {.name = "q6_k",
              .bits = 6,
              .block = 256,
              .block_bytes = 210,
              .group = 16,
              .scale = DType::f16,
              .scales_together = 16,
              .scales_in_blocks = true};
    case QuantFormat::rot3:
      return {.name = "rot3", .bits = 3, .table = true, .block = 256, .block_bytes = 96, .group = 256, .rotated = true};
    case QuantFormat::rot_ternary:
      return {.name = "rot_ternary", .bits = 2, .block = 256, .block_bytes = 52, .group = 256, .rotated = true};
    case QuantFormat::fp8: return {.name = "fp8", .bits = 8, .block = 32, .block_bytes = 32};
    case QuantFormat::fp8_blocks:
      return {.name = "fp8_blocks", .bits = 8, .block = 32, .block_bytes = 32, .group = 128, .rows = 128};
    case QuantFormat::mxfp4:
      return {
          .name = "mxfp4", .bits = 4, .table = true, .block = 32, .block_bytes = 16, .group = 32, .scale = DType::u8};
    case QuantFormat::fp4: {
      QuantFormatInfo info = quant_format_info(QuantFormat::nf4);
      info.name = "fp4";
      return info;
    }
    case QuantFormat::fp4_double: {
      QuantFormatInfo info = quant_format_info(QuantFormat::nf4_double);
      info.name = "fp4_double";
      return info;
    }
  }
  return {};
}

/// The tensors of a matrix; those that its format does not have are absent. T: View or Spec.
template <class T> struct QuantParts {
  T codes, scale, outer, table;
};

/// Precondition: k is a multiple of the format's block.
constexpr QuantParts<Spec> quant_parts(QuantFormat f, std::int64_t n, std::int64_t k) {
  const auto info = quant_format_info(f);
  const std::int64_t row = k / info.block * info.block_bytes;
  if (info.scales_in_blocks) return {.codes = {{n, row}, DType::u8}, .scale = {}, .outer = {}, .table = {}};
  if (info.group == 0)
    return {.codes = {{n, k}, f == QuantFormat::int8 ? DType::i8 : DType::u8},
            .scale = {{n}, DType::f32},
            .outer = {},
            .table = {}};
  const Shape scales{(n + info.rows - 1) / info.rows, (k + info.group - 1) / info.group};
  if (info.scales_together == 0)
    return {.codes = {{n, row}, DType::u8}, .scale = {scales, info.scale}, .outer = {}, .table = {}};
  const std::int64_t outer = (scales.size() + info.scales_together - 1) / info.scales_together;
  return {.codes = {{n, row}, DType::u8},
          .scale = {scales, DType::u8},
          .outer = {{outer}, DType::f32},
          .table = {{257}, DType::f32}};
}

/// A matrix as kernels receive it.
struct QuantMatrix {
  QuantFormat format = QuantFormat::nf4;
  QuantParts<View> parts = {};

  std::int64_t n() const { return parts.codes[0]; }
  std::int64_t k() const {
    const auto info = quant_format_info(format);
    return parts.codes[1] / info.block_bytes * info.block;
  }
};

/// Checks the tensors of a matrix; returns K.
inline std::int64_t require_quantized(std::string_view op, QuantFormat f, const QuantParts<Spec>& p) {
  const auto info = quant_format_info(f);
  const DType codes = f == QuantFormat::int8 ? DType::i8 : DType::u8;
  require(p.codes.dtype == codes && p.codes.shape.rank() == 2 && p.codes[1] % info.block_bytes == 0, op,
          "codes of {} must be {} with rows of whole blocks of {} bytes, got {}", info.name, dtype_name(codes),
          info.block_bytes, to_string(p.codes));
  const std::int64_t k = p.codes[1] / info.block_bytes * info.block;
  const auto expected = quant_parts(f, p.codes[0], k);
  const auto check = [&](std::string_view what, const Spec& want, const Spec& got) {
    require(want == got, op, "{} of {} ({}, {}) must be {}, got {}", what, info.name, p.codes[0], k,
            want ? to_string(want) : "absent", got ? to_string(got) : "none");
  };
  check("scales", expected.scale, p.scale);
  check("scales of scales", expected.outer, p.outer);
  check("the table of scales", expected.table, p.table);
  return k;
}

}  // namespace hpcdl
