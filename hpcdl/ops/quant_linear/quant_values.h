#pragma once
// The values of quantised matrices by the formulas of their formats, one at a time and in double: what kernels are
// compared with.

#include <bit>
#include <cmath>
#include <vector>

#include "hpcdl/core/mx.h"
#include "hpcdl/ops/contract.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/ops/quant_linear/quant_format.h"
#include "hpcdl/ops/quant_linear/rotated_values.h"
#include "hpcdl/ops/quant_linear/rotation.h"

namespace hpcdl::contract {

inline float rounded_to(DType type, float value) {
  return type == DType::bf16  ? static_cast<float>(bf16(value))
         : type == DType::f16 ? static_cast<float>(f16(value))
                              : value;
}

/// What is rounded to the type of x when weights are decoded.
enum class QuantRounding : std::uint8_t {
  none,
  table,    // the values of a table, before they are scaled
  products  // these, scales and minima, and then what they give
};

/// The tensors of a matrix as operands.
struct QuantValues {
  QuantFormat format;
  const Values &codes, &scale, &outer, &table;
  DType type = DType::f32;  // of x
  QuantRounding rounding = QuantRounding::none;

  std::int64_t n() const { return codes.dim(0); }
  std::int64_t k() const { return codes.dim(1) / info().block_bytes * info().block; }
  QuantFormatInfo info() const { return quant_format_info(format); }

  double at(std::int64_t row, std::int64_t column) const { return terms(row, column).value; }
  /// at() and what terms() adds to its magnitude, for all columns. Rotated blocks are rotated back in one go: a reference
  /// that is differentiated reads its weights often.
  void read_row(std::int64_t row, std::vector<double>& values, std::vector<double>& more) const {
    const bool rotated = info().rotated;
    for (std::size_t c = 0; c < values.size(); ++c) values[c] = by_code(row, static_cast<std::int64_t>(c)), more[c] = 0;
    for (std::size_t first = 0; rotated && first < values.size(); first += kRotated) {
      double size = 0;
      for (std::size_t c = first; c < first + kRotated; ++c) size += std::fabs(values[c]) / 16;
      rotate_back(values.data() + first);
      for (std::size_t c = first; c < first + kRotated; ++c) more[c] = size - std::fabs(values[c]);
    }
  }
  /// A value, and the sum of the magnitudes from which it is computed.
  Sum terms(std::int64_t row, std::int64_t column) const {
    Sum sum;
    if (!info().rotated) {
      sum.add(by_code(row, column));
      return sum;
    }
    const auto first = column / kRotated * kRotated;
    const int i = static_cast<int>(column - first);
    for (int j = 0; j < kRotated; ++j)
      sum.add((std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1 : -1) * (rotation_flips(i) ? -1 : 1) *
              by_code(row, first + j) / 16);
    return sum;
  }

 private:
  double by_code(std::int64_t row, std::int64_t column) const {
    const auto b = column / info().block, i = column % info().block;
    const auto byte = [&](std::int64_t j) {
      return static_cast<int>(codes[row * codes.dim(1) + b * info().block_bytes + j]);
    };
    const auto half = [&](std::int64_t j) {
      const int bits = byte(j) | byte(j + 1) << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
      const double value = exponent > 0 ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
      return bits >> 15 ? -value : value;
    };
    const auto signed_byte = [&](std::int64_t j) { return byte(j) < 128 ? byte(j) : byte(j) - 256; };
    switch (format) {
      case QuantFormat::nf4:
      case QuantFormat::fp4: return product(four_bits(byte(i / 2), i), scale[row * scale.dim(1) + b]);
      case QuantFormat::nf4_double:
      case QuantFormat::fp4_double: {
        const auto at = row * scale.dim(1) + b;
        const double of_scales = table[static_cast<std::int64_t>(scale[at])], outer_scale = outer[at / 256];
        if (rounding != QuantRounding::products)
          return four_bits(byte(i / 2), i) * (of_scales * outer_scale + table[256]);
        const auto in_f32 = static_cast<float>(of_scales * outer_scale);
        return product(four_bits(byte(i / 2), i), static_cast<float>(static_cast<double>(in_f32) + table[256]));
      }
      case QuantFormat::int8:
        if (rounding == QuantRounding::products) return product(byte(i), static_cast<float>(scale[row]) * (1.0f / 127));
        return byte(i) * scale[row] / 127;
      case QuantFormat::q8_0: return product(signed_byte(2 + i), half(0));
      case QuantFormat::q4_0: return product((byte(2 + i % 16) >> (i < 16 ? 0 : 4) & 15) - 8, half(0));
      case QuantFormat::q4_k: {
        const auto g = i / 32;
        const int q = byte(16 + i / 64 * 32 + i % 32) >> (g % 2 * 4) & 15;
        const int s = g < 4 ? byte(4 + g) & 63 : (byte(8 + g) & 15) | byte(g) >> 6 << 4;
        const int m = g < 4 ? byte(8 + g) & 63 : byte(8 + g) >> 4 | byte(4 + g) >> 6 << 4;
        return rounded(q * rounded(half(0) * s) - rounded(half(2) * m));
      }
      case QuantFormat::q6_k: {
        const auto part = i / 128, quarter = i % 128 / 32, place = i % 32;
        const int low = byte(part * 64 + quarter % 2 * 32 + place) >> (quarter / 2 * 4) & 15;
        const int high = byte(128 + part * 32 + place) >> (quarter * 2) & 3;
        return product((low | high << 4) - 32, half(208) * signed_byte(192 + i / 16));
      }
      case QuantFormat::rot3: {
        const int low = byte(i % 64) >> (2 * (i / 64)) & 3, high = byte(64 + i % 32) >> (i / 32) & 1;
        return product(of_table(kRot3Values[low | high << 2]), scale[row * scale.dim(1) + b]);
      }
      case QuantFormat::rot_ternary: {
        const auto at = i < 240 ? i % 48 : 48 + (i - 240) % 4, d = i < 240 ? i / 48 : (i - 240) / 4;
        return (byte(at) / static_cast<int>(std::pow(3, d)) % 3 - 1) * scale[row * scale.dim(1) + b];
      }
      case QuantFormat::fp8:
      case QuantFormat::fp8_blocks: {
        const int exponent = byte(i) >> 3 & 15, fraction = byte(i) & 7;
        const double value = exponent > 0 ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
        const auto at = format == QuantFormat::fp8 ? row : row / 128 * scale.dim(1) + column / 128;
        return product(byte(i) < 128 ? value : -value, scale[at]);
      }
      case QuantFormat::mxfp4:
        return product(of_table(kE2m1Values[byte(i / 2) >> (i % 2 * 4) & 15]),
                       std::ldexp(1.0, static_cast<int>(scale[row * scale.dim(1) + b]) - 127));
    }
    return 0;
  }

  /// v in the type of x, if products are.
  double rounded(double v) const {
    return rounding == QuantRounding::products ? rounded_to(type, static_cast<float>(v)) : v;
  }
  double product(double code, double of_group) const { return rounded(code * rounded(of_group)); }
  double of_table(float value) const { return rounding == QuantRounding::none ? value : rounded_to(type, value); }
  double four_bits(int byte, std::int64_t i) const {
    return of_table(four_bit_values(format)[i % 2 == 0 ? byte >> 4 : byte & 15]);
  }
};

/// (N, K) as inputs of a graph.
auto quant_inputs(const auto& v, QuantFormat format) {
  const auto info = quant_format_info(format);
  require(v.dim('K') % info.block == 0, "shape",
          "a row of {} is whole blocks of {} inputs: K must be a multiple of {}, got {}", info.name, info.block,
          info.block, v.dim('K'));
  const auto p = quant_parts(format, v.dim('N'), v.dim('K'));
  const auto input = [&](const char* name, const Spec& s) { return s ? v.graph.input(name, s) : v.none(); };
  return QuantParts<std::remove_cvref_t<decltype(input("", Spec()))>>{input("codes", p.codes), input("scale", p.scale),
                                                                      input("outer", p.outer), input("table", p.table)};
}

}  // namespace hpcdl::contract
