#pragma once
// Decoders for GPUs: one for each format, as those of decoders.h are for CPUs. A piece is eight values of a row, in two
// runs of four inputs, so that the threads of a warp read neighbouring bytes and neighbouring inputs.

#include <array>

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/ops/quant_linear/quant_format.h"

namespace hpcdl::cuda {

/// A matrix, as kernels receive it.
struct QuantWeights {
  const std::uint8_t* codes;
  const void* scale;
  const float *outer, *table;
  std::int64_t n, k, row_bytes;
  bool fp4;  // the values of a table are those of FP4, not of NF4

  explicit QuantWeights(const QuantMatrix& w)
      : codes(static_cast<const std::uint8_t*>(w.parts.codes.data())),
        scale(w.parts.scale.data()),
        outer(w.parts.outer.ptr<float>()),
        table(w.parts.table.ptr<float>()),
        n(w.n()),
        k(w.k()),
        row_bytes(w.parts.codes[1]),
        fp4(&four_bit_values(w.format) == &kFp4Values) {}

  /// Value `code` of the table. Kernels do not have tables of the host.
  __device__ float value(int code) const {
    constexpr auto kNf4 = std::to_array(kNf4Values), kFp4 = std::to_array(kFp4Values);
    return fp4 ? kFp4[static_cast<std::size_t>(code)] : kNf4[static_cast<std::size_t>(code)];
  }
};

struct Piece {
  unsigned first, second;  // inputs at which the runs begin
  float v[8];
};

/// Whether the second run of a format's pieces follows the first one.
constexpr bool piece_is_one_run(QuantFormat f) {
  return f == QuantFormat::nf4 || f == QuantFormat::nf4_double || f == QuantFormat::int8 || f == QuantFormat::q8_0;
}

/// The bytes at which every word of a format's codes is aligned if the matrix is.
constexpr int quant_alignment(QuantFormat f) {
  return f == QuantFormat::q8_0 || f == QuantFormat::q4_0 || f == QuantFormat::q6_k ? 2 : 4;
}

/// Four bytes at a multiple of `alignment`.
template <int alignment> __device__ inline unsigned word_at(const std::uint8_t* p) {
  if constexpr (alignment == 4) return *reinterpret_cast<const unsigned*>(p);
  if constexpr (alignment == 2) {
    const auto* h = reinterpret_cast<const std::uint16_t*>(p);
    return h[0] | static_cast<unsigned>(h[1]) << 16;
  }
  return p[0] | p[1] << 8 | p[2] << 16 | static_cast<unsigned>(p[3]) << 24;
}
__device__ inline float half_at(const std::uint8_t* p) {
  return __half2float(__ushort_as_half(static_cast<std::uint16_t>(p[0] | p[1] << 8)));
}
__device__ inline int byte_of(unsigned word, int i) { return static_cast<int>(word >> (8 * i) & 255u); }
__device__ inline int signed_byte_of(unsigned word, int i) {
  return static_cast<int>(static_cast<signed char>(byte_of(word, i)));
}

/// Decodes pieces of one row. `values`: those of a table in memory of the block, for formats with one.
template <QuantFormat format, int alignment> class QuantRow {
 public:
  __device__ QuantRow(const QuantWeights& w, std::int64_t row, const float* values)
      : w_(w), codes_(w.codes + row * w.row_bytes), row_(row), values_(values) {}

  /// Piece p of k / 8.
  __device__ Piece operator()(unsigned p) const {
    if constexpr (quant_format_info(format).table) return four_bits(p);
    else if constexpr (format == QuantFormat::int8) return int8(p);
    else if constexpr (format == QuantFormat::q8_0) return q8_0(p);
    else if constexpr (format == QuantFormat::q4_0) return q4_0(p);
    else if constexpr (format == QuantFormat::q4_k) return q4_k(p);
    else return q6_k(p);
  }

 private:
  __device__ Piece four_bits(unsigned p) const {
    const unsigned word = word_at<alignment>(codes_ + 4 * p);
    const std::int64_t block = row_ * (w_.k / 64) + p / 8;
    float scale;
    if constexpr (format == QuantFormat::nf4) {
      scale = static_cast<const float*>(w_.scale)[block];
    } else {
      const int code = static_cast<const std::uint8_t*>(w_.scale)[block];
      scale = __fadd_rn(__fmul_rn(w_.table[code], w_.outer[block / 256]), w_.table[256]);
    }
    Piece out{8 * p, 8 * p + 4, {}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int byte = byte_of(word, i);
      out.v[2 * i] = values_[byte >> 4] * scale, out.v[2 * i + 1] = values_[byte & 15] * scale;
    }
    return out;
  }
  __device__ Piece int8(unsigned p) const {
    const float scale = static_cast<const float*>(w_.scale)[row_];
    Piece out{8 * p, 8 * p + 4, {}};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned word = word_at<alignment>(codes_ + 8 * p + 4 * h);
#pragma unroll
      for (int i = 0; i < 4; ++i) out.v[4 * h + i] = static_cast<float>(signed_byte_of(word, i)) * scale * (1.0f / 127);
    }
    return out;
  }
  __device__ Piece q8_0(unsigned p) const {
    const std::uint8_t* block = codes_ + p / 4 * 34;
    const float scale = half_at(block);
    Piece out{8 * p, 8 * p + 4, {}};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned word = word_at<alignment>(block + 2 + p % 4 * 8 + 4 * h);
#pragma unroll
      for (int i = 0; i < 4; ++i) out.v[4 * h + i] = static_cast<float>(signed_byte_of(word, i)) * scale;
    }
    return out;
  }
  __device__ Piece q4_0(unsigned p) const {
    const std::uint8_t* block = codes_ + p / 4 * 18;
    const float scale = half_at(block);
    const unsigned word = word_at<alignment>(block + 2 + p % 4 * 4);
    const unsigned first = p / 4 * 32 + p % 4 * 4;
    Piece out{first, first + 16, {}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int byte = byte_of(word, i);
      out.v[i] = static_cast<float>((byte & 15) - 8) * scale;
      out.v[4 + i] = static_cast<float>((byte >> 4) - 8) * scale;
    }
    return out;
  }
  __device__ Piece q4_k(unsigned p) const {
    const std::uint8_t* block = codes_ + p / 32 * 144;
    const unsigned in_block = p % 32, pair = in_block / 8;
    const float d = half_at(block), dmin = half_at(block + 2);
    const std::uint8_t* six = block + 4;
    const auto scale_and_minimum = [&](unsigned g, float& scale, float& minimum) {
      const int s = g < 4 ? six[g] & 63 : (six[g + 4] & 15) | six[g - 4] >> 6 << 4;
      const int m = g < 4 ? six[g + 4] & 63 : six[g + 4] >> 4 | six[g] >> 6 << 4;
      scale = d * static_cast<float>(s), minimum = dmin * static_cast<float>(m);
    };
    float s0, m0, s1, m1;
    scale_and_minimum(2 * pair, s0, m0), scale_and_minimum(2 * pair + 1, s1, m1);
    const unsigned word = word_at<alignment>(block + 16 + in_block * 4);
    const unsigned first = p / 32 * 256 + pair * 64 + in_block % 8 * 4;
    Piece out{first, first + 32, {}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int byte = byte_of(word, i);
      out.v[i] = __fsub_rn(__fmul_rn(static_cast<float>(byte & 15), s0), m0);
      out.v[4 + i] = __fsub_rn(__fmul_rn(static_cast<float>(byte >> 4), s1), m1);
    }
    return out;
  }
  __device__ Piece q6_k(unsigned p) const {
    const std::uint8_t* block = codes_ + p / 32 * 210;
    const unsigned in_block = p % 32, half = in_block / 16, i0 = in_block % 16 * 4, j = i0 / 32, place = i0 % 32;
    const unsigned low = word_at<alignment>(block + half * 64 + i0),
                   high = word_at<alignment>(block + 128 + half * 32 + place);
    const float d = half_at(block + 208);
    const auto scale = [&](unsigned quarter) {
      const auto s = static_cast<signed char>(block[192 + half * 8 + 2 * quarter + place / 16]);
      return d * static_cast<float>(s);
    };
    const float s0 = scale(j), s1 = scale(j + 2);
    const unsigned first = p / 32 * 256 + half * 128 + j * 32 + place;
    Piece out{first, first + 64, {}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int l = byte_of(low, i), h = byte_of(high, i);
      out.v[i] = static_cast<float>(((l & 15) | (h >> (2 * j) & 3) << 4) - 32) * s0;
      out.v[4 + i] = static_cast<float>(((l >> 4) | (h >> (2 * j + 4) & 3) << 4) - 32) * s1;
    }
    return out;
  }

  const QuantWeights& w_;
  const std::uint8_t* codes_;
  std::int64_t row_;
  const float* values_;
};

/// The table of formats that have one, in memory of the block. All threads call it.
template <QuantFormat format> __device__ inline const float* table_of_block(const QuantWeights& w) {
  if constexpr (!quant_format_info(format).table) return nullptr;
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = w.value(static_cast<int>(threadIdx.x));
  __syncthreads();
  return values;
}

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
    case QuantFormat::rot3:
    case QuantFormat::rot_ternary:
    case QuantFormat::fp8:
    case QuantFormat::mxfp4: break;  // refused before: require_on_gpu()
  }
}
/// Calls f.operator()<format, alignment>(): the alignment that the address of the codes allows, or 1.
template <class F> void visit_quant_format(const QuantMatrix& w, F&& f) {
  visit_quant_format(w.format, [&]<QuantFormat format>() {
    constexpr int most = quant_alignment(format);
    const auto address = reinterpret_cast<std::uintptr_t>(w.parts.codes.data());
    if (address % most == 0) f.template operator()<format, most>();
    else f.template operator()<format, 1>();
  });
}

}  // namespace hpcdl::cuda
