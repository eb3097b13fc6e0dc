#pragma once
// Decoders for GPUs: one for each format, as those of decoders.h are for CPUs. A piece is eight values of a row, in two
// runs of four inputs, so that the threads of a warp read neighbouring bytes and neighbouring inputs. Values of rotated
// formats are those of rotated weights: read_weights() rotates them back.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/ops/quant_linear/quant_rotation.cuh"
#include "hpcdl/ops/quant_linear/quant_weights.cuh"

namespace hpcdl::cuda {

struct Piece {
  unsigned first, second;  // inputs at which the runs begin
  float v[8];
};

/// Whether the second run of a format's pieces follows the first one.
constexpr bool piece_is_one_run(QuantFormat f) {
  return f != QuantFormat::q4_0 && f != QuantFormat::q4_k && f != QuantFormat::q6_k && f != QuantFormat::rot3;
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
/// The value of an E4M3 code. Those of NaN read as 480.
__device__ inline float from_e4m3(int code) {
  const auto c = static_cast<unsigned>(code);
  return __uint_as_float((c & 0x80u) << 24 | (c & 0x7fu) << 20) * 0x1p120f;
}

/// Decodes pieces of one row. `values`: those of a table in memory of the block, for formats with one.
template <QuantFormat format, int alignment> class QuantRow {
 public:
  __device__ QuantRow(const QuantWeights& w, std::int64_t row, const float* values)
      : w_(w), codes_(w.codes + row * w.row_bytes), row_(row), values_(values) {}

  /// Piece p of k / 8.
  __device__ Piece operator()(unsigned p) const {
    if constexpr (format == QuantFormat::nf4 || format == QuantFormat::nf4_double) return four_bits(p);
    else if constexpr (format == QuantFormat::int8) return int8(p);
    else if constexpr (format == QuantFormat::fp8 || format == QuantFormat::fp8_blocks) return fp8(p);
    else if constexpr (format == QuantFormat::mxfp4) return mxfp4(p);
    else if constexpr (format == QuantFormat::rot3) return rot3(p);
    else if constexpr (format == QuantFormat::rot_ternary) return rot_ternary(p);
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
  __device__ Piece fp8(unsigned p) const {
    const std::int64_t at = format == QuantFormat::fp8 ? row_ : row_ / 128 * ((w_.k + 127) / 128) + p / 16;
    const float scale = static_cast<const float*>(w_.scale)[at];
    Piece out{8 * p, 8 * p + 4, {}};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned word = word_at<alignment>(codes_ + 8 * p + 4 * h);
#pragma unroll
      for (int i = 0; i < 4; ++i) out.v[4 * h + i] = from_e4m3(byte_of(word, i)) * scale;
    }
    return out;
  }
  __device__ Piece mxfp4(unsigned p) const {
    const unsigned word = word_at<alignment>(codes_ + 4 * p);
    const float scale = from_e8m0(static_cast<const std::uint8_t*>(w_.scale)[row_ * (w_.k / kMxBlock) + p / 4]);
    Piece out{8 * p, 8 * p + 4, {}};
#pragma unroll
    for (int i = 0; i < 8; ++i) out.v[i] = values_[word >> (4 * i) & 15] * scale;
    return out;
  }
  __device__ float block_scale(unsigned b) const {
    return static_cast<const float*>(w_.scale)[row_ * (w_.k / kRotated) + b];
  }
  __device__ Piece rot3(unsigned p) const {
    const unsigned b = p / 32, at = p % 16 * 4, pair = p % 32 / 16;
    const std::uint8_t* block = codes_ + b * 96;
    const unsigned low = word_at<alignment>(block + at) >> (4 * pair),
                   high = word_at<alignment>(block + 64 + at % 32) >> (4 * pair + at / 32);
    const float scale = block_scale(b);
    const unsigned first = b * kRotated + pair * 128 + at;
    Piece out{first, first + 64, {}};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int l = byte_of(low, i % 4) >> (i / 4 * 2) & 3, h = byte_of(high, i % 4) >> (i / 4 * 2) & 1;
      out.v[i] = values_[l | h << 2] * scale;
    }
    return out;
  }
  /// Run r of four inputs is digit r / 12 of word r % 12, or of the last four digits of word 12.
  __device__ Piece rot_ternary(unsigned p) const {
    const unsigned b = p / 32;
    const std::uint8_t* block = codes_ + b * kTernaryBytes;
    const float scale = block_scale(b);
    Piece out{8 * p, 8 * p + 4, {}};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned run = p % 32 * 2 + h, digit = run < 60 ? run / 12 : run - 60;
      const unsigned word = word_at<alignment>(block + (run < 60 ? run % 12 : 12) * 4);
      // 2^16 / 3^digit, rounded up: exact for bytes.
      const int part = digit == 0 ? 65536 : digit == 1 ? 21846 : digit == 2 ? 7282 : digit == 3 ? 2428 : 810;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out.v[4 * h + i] = static_cast<float>((byte_of(word, i) * part >> 16) % 3 - 1) * scale;
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

/// Piece p of the weights. If the format is rotated, the lanes of a warp call it together for the 32 pieces of a block.
template <QuantFormat format, int alignment>
__device__ inline Piece read_weights(const QuantRow<format, alignment>& row, unsigned p) {
  Piece piece = row(p);
  if constexpr (quant_format_info(format).rotated) {
    hadamard(piece.v);
    apply_signs(piece.v, piece.first, piece.second, 1.0f / 16);
  }
  return piece;
}

/// The table of formats that have one, in memory of the block. All threads call it.
template <QuantFormat format> __device__ inline const float* table_of_block(const QuantWeights& w) {
  if constexpr (!quant_format_info(format).table) return nullptr;
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = w.value(static_cast<int>(threadIdx.x));
  __syncthreads();
  return values;
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
