#pragma once
// Decoders for tensor cores: one for each format. A warp has 16 rows of W, and its lane (g, t) = (lane / 4, lane % 4) has
// rows g and g + 8. Of each 16 inputs that a product takes at a time, the lane has a run of four neighbours. Which 16 they
// are is a decoder's choice, because a sum has no order: it takes those whose codes a lane finds in few words.
//
//   kGroup, kTogether   inputs with one scale; groups that are decoded at once, because their codes lie in the same bytes
//   kBytes              of the codes of a segment (kSegment inputs), which a stage holds
//   kStride             bytes of a row in a stage: free of bank conflicts, with room for scales
//   kInputStride        the same for a row of x
//   decode(...)         kTogether groups of one row: pairs of codes as numbers of type T, scales, minima
//   first(...)          the input at which a run begins
//
// Codes of integers are exact in T. The values of a table are rounded to T; in both cases scales stay f32.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/ops/quant_linear/quant_device.cuh"

namespace hpcdl::cuda {

inline constexpr int kSegment = 256;    // inputs of a stage
inline constexpr int kTableLine = 128;  // bytes of the copies of a pair of table values, one for each lane

/// Two neighbouring numbers of 16 bits, the first in the low half.
template <class T> struct Pairs;
template <> struct Pairs<bf16> {
  static constexpr unsigned kOnes = 0x3f803f80u, kHigh = 0x43434343u;  // 128 + q has the bytes 0x43, q for q < 128
  __device__ static unsigned minus(unsigned a, unsigned b) {
    const __nv_bfloat162 r =
        __hsub2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
    return reinterpret_cast<const unsigned&>(r);
  }
  /// Codes below 128 in bytes `select` of q, less `zero`.
  template <int zero> __device__ static unsigned of_codes(unsigned q, unsigned select) {
    return minus(__byte_perm(q, kHigh, select), 0x43004300u + zero * 0x00010001u);
  }
  /// Signed bytes: the seven low bits less the sign's 128. 128 + 128 has the bytes 0x43, 0x80, too.
  __device__ static unsigned of_signed(unsigned q, unsigned select) {
    const unsigned v = __byte_perm(q, kHigh, select);
    return minus(v & 0xff7fff7fu, v & 0xff80ff80u);
  }
};
template <> struct Pairs<f16> {
  static constexpr unsigned kOnes = 0x3c003c00u, kHigh = 0x64646464u;  // 1024 + q for q < 256
  __device__ static unsigned minus(unsigned a, unsigned b) {
    const __half2 r = __hsub2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
    return reinterpret_cast<const unsigned&>(r);
  }
  template <int zero> __device__ static unsigned of_codes(unsigned q, unsigned select) {
    return minus(__byte_perm(q, kHigh, select), 0x64006400u + zero * 0x00010001u);
  }
  __device__ static unsigned of_signed(unsigned q, unsigned select) {
    return minus(__byte_perm(q ^ 0x80808080u, kHigh, select), 0x64806480u);
  }
};
inline constexpr unsigned kLowTwo = 0x4140, kHighTwo = 0x4342;  // bytes of a word, each below a byte of kHigh

/// A row of a segment in shared memory.
struct SegmentRow {
  const std::uint8_t* codes;  // at a multiple of 16
  int shift;                  // where they begin; even. Formats with rows of whole 16 bytes: 0
  const std::uint8_t* scales;
  float of_row;               // the scale of a whole row
  unsigned table;             // address in shared memory: pairs of table values by byte, the lane's own copy
  const float* scale_values;  // what a code of a scale means

  template <class W> __device__ W aligned(int at) const { return *reinterpret_cast<const W*>(codes + at); }
  /// Four bytes, wherever they lie.
  __device__ unsigned word(int at) const {
    const int from = at + shift;
    const auto* w = reinterpret_cast<const unsigned*>(codes + (from & ~3));
    return __funnelshift_r(w[0], w[1], static_cast<unsigned>(from & 3) * 8);
  }
  __device__ uint2 words(int at) const {
    const int from = at + shift;
    const auto* w = reinterpret_cast<const unsigned*>(codes + (from & ~3));
    const unsigned bits = static_cast<unsigned>(from & 3) * 8;
    return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits)};
  }
  __device__ float half(int at) const { return __half2float(*reinterpret_cast<const __half*>(codes + shift + at)); }
  __device__ float signed_byte(int at) const {
    return static_cast<float>(reinterpret_cast<const signed char*>(codes)[shift + at]);
  }
};

/// Groups of one row: [group][product of 16 inputs][first and second pair].
template <int kTogether, int kProducts> struct Codes {
  unsigned pairs[kTogether][kProducts][2];
  float scale[kTogether], minimum[kTogether];
};

template <QuantFormat format, class T> struct Fragments;

template <class T> struct FourBitFragments {
  static constexpr int kGroup = 64, kTogether = 1, kBytes = 128, kStride = 160, kInputStride = 512 + 16;
  static constexpr int kScaleBytes = 16;  // four f32 after the codes; if nested, those of scales, and then their codes
  static constexpr bool kMinimum = false, kPaired = true, kUnaligned = false, kTable = true;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 64 + t * 16 + product * 4; }
  __device__ static void pairs(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    const uint2 two = row.aligned<uint2>(group * 32 + t * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // Byte i % 4 times kTableLine, plus where the table begins: one instruction.
      const unsigned at = __dp4a(i < 4 ? two.x : two.y, unsigned{kTableLine} << (i % 4 * 8), row.table);
      asm("ld.shared.b32 %0, [%1];" : "=r"(to.pairs[0][i / 2][i % 2]) : "r"(at));
    }
  }
};
template <class T> struct Fragments<QuantFormat::nf4, T> : FourBitFragments<T> {
  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    FourBitFragments<T>::pairs(to, row, group, t);
    to.scale[0] = reinterpret_cast<const float*>(row.scales)[group];
  }
};
template <class T> struct Fragments<QuantFormat::nf4_double, T> : FourBitFragments<T> {
  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    FourBitFragments<T>::pairs(to, row, group, t);
    const float outer = reinterpret_cast<const float*>(row.scales)[group];
    to.scale[0] = __fadd_rn(__fmul_rn(row.scale_values[row.scales[16 + group]], outer), row.scale_values[256]);
  }
};

template <class T> struct Fragments<QuantFormat::int8, T> {
  static constexpr int kGroup = 64, kTogether = 1, kBytes = 256, kStride = 320, kInputStride = 512 + 16;
  static constexpr int kScaleBytes = 0;
  static constexpr bool kMinimum = false, kPaired = true, kUnaligned = false, kTable = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 64 + t * 16 + product * 4; }
  __device__ static void decode(Codes<1, 4>& to, const SegmentRow& row, int group, int t) {
    const uint4 q = row.aligned<uint4>(group * 64 + t * 16);
    const unsigned words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to.pairs[0][i][0] = Pairs<T>::of_signed(words[i], kLowTwo);
      to.pairs[0][i][1] = Pairs<T>::of_signed(words[i], kHighTwo);
    }
    to.scale[0] = row.of_row;
  }
};

template <class T> struct Fragments<QuantFormat::q8_0, T> {
  static constexpr int kGroup = 32, kTogether = 1, kBytes = 272, kStride = 304, kInputStride = 512 + 64;
  static constexpr int kScaleBytes = 0;
  static constexpr bool kMinimum = false, kPaired = true, kUnaligned = true, kTable = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 32 + t * 8 + product * 4; }
  __device__ static void decode(Codes<1, 2>& to, const SegmentRow& row, int group, int t) {
    const uint2 q = row.words(group * 34 + 2 + t * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to.pairs[0][i][0] = Pairs<T>::of_signed(i ? q.y : q.x, kLowTwo);
      to.pairs[0][i][1] = Pairs<T>::of_signed(i ? q.y : q.x, kHighTwo);
    }
    to.scale[0] = row.half(group * 34);
  }
};

template <class T> struct Fragments<QuantFormat::q4_0, T> {
  static constexpr int kGroup = 32, kTogether = 1, kBytes = 144, kStride = 176, kInputStride = 512 + 32;
  static constexpr int kScaleBytes = 0;
  static constexpr bool kMinimum = false, kPaired = false, kUnaligned = true, kTable = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 32 + product * 16 + t * 4; }
  __device__ static void decode(Codes<1, 2>& to, const SegmentRow& row, int group, int t) {
    const unsigned q = row.word(group * 18 + 2 + t * 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned codes = q >> (4 * i) & 0x0f0f0f0fu;
      to.pairs[0][i][0] = Pairs<T>::template of_codes<8>(codes, kLowTwo);
      to.pairs[0][i][1] = Pairs<T>::template of_codes<8>(codes, kHighTwo);
    }
    to.scale[0] = row.half(group * 18);
  }
};

/// A number of one byte.
__device__ inline float small_float(unsigned word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u + static_cast<unsigned>(byte))) - 8388608.0f;
}

template <class T> struct Fragments<QuantFormat::q4_k, T> {
  static constexpr int kGroup = 32, kTogether = 2, kBytes = 144, kStride = 160, kInputStride = 512 + 64;
  static constexpr int kScaleBytes = 0;
  static constexpr bool kMinimum = true, kPaired = true, kUnaligned = false, kTable = false;
  static constexpr int kProducts = kGroup / 16;

  __device__ static int first(int group, int product, int t) { return group * 32 + t * 8 + product * 4; }
  /// Groups 2 pair and 2 pair + 1.
  __device__ static void decode(Codes<2, 2>& to, const SegmentRow& row, int pair, int t) {
    const uint4 head = row.aligned<uint4>(0);
    const float2 d = __half22float2(reinterpret_cast<const __half2&>(head.x));
    // Of groups 0 to 3, the low six bits; of the others, four bits of the last word and the two high ones of the first.
    const unsigned shift = static_cast<unsigned>(pair % 2) * 16;
    const unsigned a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
    const bool low = pair < 2;
    const unsigned scales = low ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u),
                   minima = low ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to.scale[i] = d.x * small_float(scales, i);
      to.minimum[i] = d.y * small_float(minima, i);
    }
    const uint2 q = row.aligned<uint2>(16 + pair * 32 + t * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int product = 0; product < 2; ++product) {
        const unsigned codes = (product ? q.y : q.x) >> (4 * i) & 0x0f0f0f0fu;
        to.pairs[i][product][0] = Pairs<T>::template of_codes<0>(codes, kLowTwo);
        to.pairs[i][product][1] = Pairs<T>::template of_codes<0>(codes, kHighTwo);
      }
  }
};

template <class T> struct Fragments<QuantFormat::q6_k, T> {
  static constexpr int kGroup = 16, kTogether = 4, kBytes = 210, kStride = 240, kInputStride = 512 + 32;
  static constexpr int kScaleBytes = 0;
  static constexpr bool kMinimum = false, kPaired = false, kUnaligned = true, kTable = false;
  static constexpr int kProducts = 1;

  /// Of the groups of 16, those that are decoded at once are 32 inputs apart: 4 (index / 2) + ... of a half.
  __device__ static int first(int group, int, int t) {
    const int set = group / 4, quarter = group % 4;
    return set / 2 * 128 + quarter * 32 + set % 2 * 16 + t * 4;
  }
  __device__ static void decode(Codes<4, 1>& to, const SegmentRow& row, int set, int t) {
    const int half = set / 2, part = set % 2;
    const unsigned low0 = row.word(half * 64 + part * 16 + t * 4), low1 = row.word(half * 64 + 32 + part * 16 + t * 4),
                   high = row.word(128 + half * 32 + part * 16 + t * 4);
    const float d = row.half(208);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned low = (j % 2 ? low1 : low0) >> (j / 2 * 4) & 0x0f0f0f0fu,
                     two = j < 2 ? high << (4 - 2 * j) : high >> (2 * j - 4);
      const unsigned codes = low | (two & 0x30303030u);
      to.pairs[j][0][0] = Pairs<T>::template of_codes<32>(codes, kLowTwo);
      to.pairs[j][0][1] = Pairs<T>::template of_codes<32>(codes, kHighTwo);
      to.scale[j] = d * row.signed_byte(192 + half * 8 + 2 * j + part);
    }
  }
};

}  // namespace hpcdl::cuda
