#pragma once
// What decoders for tensor cores have in common; they are in tiles_*.cu, one for each format. A warp has 16 rows of W, and its lane (g, t) = (lane / 4, lane % 4) has
// rows g and g + 8. Of each 16 inputs that a product takes at a time, the lane has a run of four neighbours. Which 16 they
// are is a decoder's choice, because a sum has no order: it takes those whose codes a lane finds in few words.
//
//   kGroup, kTogether   inputs with one scale; groups that are decoded at once, because their codes lie in the same bytes
//   kBytes              of the codes of a segment (kSegment inputs), which a stage holds
//   kStride             bytes of a row in a stage: free of bank conflicts, with room for scales
//   kScaleWords         of a row of a segment: scales that are no part of the codes, which follow these in a stage
//   kTableEntries       pairs of values that fill_tables() makes, for codes first_of(entry) and second_of(entry)
//   kInputStride        the same for a row of x
//   decode(...)         kTogether groups of one row: pairs of codes as numbers of type T, scales, minima
//   first(...)          the input at which a run begins
//
// Codes of integers are exact in T. The values of a table are rounded to T; in both cases scales stay f32.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/ops/quant_linear/quant_weights.cuh"

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

/// A lane's own copy of the pair of table values at kTableLine times an entry, which is the sum of the bytes of `codes` times
/// those of `of_bytes`: one instruction.
__device__ inline unsigned look_up(const SegmentRow& row, unsigned codes, unsigned of_bytes) {
  const unsigned at = __dp4a(codes, of_bytes, row.table);
  unsigned pair;
  asm("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(at));
  return pair;
}
/// Byte i is the entry.
__device__ constexpr unsigned entry_in_byte(int i) { return unsigned{kTableLine} << (i * 8); }

template <QuantFormat format, class T> struct Fragments;

}  // namespace hpcdl::cuda
