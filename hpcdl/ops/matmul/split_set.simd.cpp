// Products of f32 on tile registers, which multiply bf16: every operand is the sum of three parts of bf16,
//
//   x = x0 + x1 + x2,   x0 = bf16(x), x1 = bf16(x - x0), x2 = x - x0 - x1,   |x1| <= 2^-8 |x|, |x2| <= 2^-16 |x|
//
// which is exact for 24 significant bits, and of the nine products of parts, the six that matter are summed in f32:
//
//   a b = a0 b0 + a0 b1 + a1 b0 + a1 b1 + a0 b2 + a2 b0 + e,   |e| <= 2^-23 |a b|, of either sign, typically 2^-26
//
// The method is that of Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for
// higher-precision computations" (2019), section III. Tile registers compute 512 products of bf16 per cycle where two
// vector units compute 32 of f32: with six per product still 2.7 times as many. A step of 32 elements of 32 rows and
// columns takes 384 cycles at best; 580 in a loop of tiles alone, whose panels are in L2.
//
// Difference from f32: parts and sums below 2^-126 are flushed to zero, so operands below 2^-110 have fewer bits.
#include <algorithm>

#include "hpcdl/ops/matmul/packing.h"
#include "hpcdl/ops/matmul/tile_registers.h"

namespace hpcdl::gemm {

#if defined(HPCDL_SIMD_AVX512)
namespace {

using simd::Avx512;
using SplitV = simd::Vec<Avx512>;

constexpr int kParts = 3, kStepWords = kParts * kSide, kStepElements = 2 * kSide;

template <int MT, int Part> [[gnu::always_inline]] inline void load_a(const std::byte* a, std::int64_t part_bytes) {
  simd::tile_load<4>(a + Part * part_bytes, kRowBytes);
  if constexpr (MT == 2) simd::tile_load<5>(a + Part * part_bytes + kSide * kRowBytes, kRowBytes);
}
template <int NT, int Part> [[gnu::always_inline]] inline void load_b(const std::byte* b) {
  constexpr std::int64_t kPart = Part * kSide * NT * kRowBytes;
  simd::tile_load<6>(b + kPart, NT * kRowBytes);
  if constexpr (NT == 2) simd::tile_load<7>(b + kPart + kRowBytes, NT * kRowBytes);
}
template <int MT, int NT> [[gnu::always_inline]] inline void multiply_parts() {
  simd::tile_dot_bf16<0, 4, 6>();
  if constexpr (NT == 2) simd::tile_dot_bf16<1, 4, 7>();
  if constexpr (MT == 2) simd::tile_dot_bf16<2, 5, 6>();
  if constexpr (MT == 2 && NT == 2) simd::tile_dot_bf16<3, 5, 7>();
}

/// For every lane, whether it is neither infinite nor NaN.
[[gnu::always_inline]] inline __mmask16 finite(SplitV x) {
  return _mm512_cmp_ps_mask((x * SplitV(0.0f)).v, _mm512_setzero_ps(), _CMP_EQ_OQ);
}

/// Joins the parts of an element in every lane; `Half`: which of the two elements of a word. The third part of infinity
/// is NaN.
template <int Half> [[gnu::always_inline]] inline SplitV joined(const __m512i (&word)[kParts]) {
  SplitV x[kParts];
  for (int q = 0; q < kParts; ++q)
    x[q] = _mm512_castsi512_ps(Half ? _mm512_and_si512(word[q], _mm512_set1_epi32(~0xffff))
                                    : _mm512_slli_epi32(word[q], 16));
  return _mm512_mask_blend_ps(finite(x[1]), x[1].v, (x[0] + (x[1] + x[2])).v);
}

/// Recomputes sums of a tile that are not finite as sums of products of f32: the products of an infinite operand's
/// parts are wrong, and sums of parts may overflow where no sum of products does.
[[gnu::noinline]] void mend(const TileArgs& t, int width, float* sums, std::int64_t ld) {
  const auto *a = reinterpret_cast<const std::uint32_t*>(t.a), *b = reinterpret_cast<const std::uint32_t*>(t.b);
  for (int row = 0; row < t.rows; ++row)
    for (int j = 0; j < width; j += kSide) {
      float* at = sums + row * ld + j;
      const __mmask16 wrong = _knot_mask16(finite(SplitV::load(at)));
      if (!wrong) continue;
      SplitV sum(0.0f);
      for (std::int64_t word = 0; word < t.k / kParts; ++word) {
        const std::int64_t step = word / kSide * kParts, i = word % kSide;
        __m512i x[kParts], y[kParts];
        for (int q = 0; q < kParts; ++q) {
          x[q] = _mm512_set1_epi32(static_cast<int>(a[((step + q) * t.rows + row) * kSide + i]));
          y[q] = _mm512_loadu_si512(b + ((step + q) * kSide + i) * width + j);
        }
        sum = fma(joined<0>(x), joined<0>(y), sum);
        sum = fma(joined<1>(x), joined<1>(y), sum);
      }
      _mm512_mask_storeu_ps(at, wrong, sum.v);
    }
}

template <int MT, int NT> void finish_sums(const TileArgs& t) {
  constexpr int kWidth = NT * kSide;
  alignas(64) float own[MT * kSide * kWidth];
  auto* out = static_cast<float*>(t.cout);
  float* sums = t.cin ? own : out;
  const std::int64_t ld = t.cin ? kWidth : t.cout_ld;
  store_sums<MT, NT>(reinterpret_cast<std::byte*>(sums), ld * 4);
  SplitV zero(0.0f);  // or NaN
  for (int i = 0; i < t.rows; ++i)
    for (int j = 0; j < kWidth; j += kSide) zero = fma(SplitV::load(sums + i * ld + j), SplitV(0.0f), zero);
  if (_mm512_cmp_ps_mask(zero.v, zero.v, _CMP_UNORD_Q)) mend(t, kWidth, sums, ld);
  if (!t.cin) return;
  const auto* in = static_cast<const float*>(t.cin);
  for (int i = 0; i < t.rows; ++i)
    for (int j = 0; j < kWidth; j += kSide)
      (SplitV::load(in + i * t.cin_ld + j) + SplitV::load(own + i * kWidth + j)).store(out + i * t.cout_ld + j);
}

/// In an order in which only one of the operands changes between consecutive products.
template <int MT, int NT> void split_tile(const TileArgs& t) {
  const std::int64_t part_a = t.rows * kRowBytes;
  simd::tile_zero<0>(), simd::tile_zero<1>(), simd::tile_zero<2>(), simd::tile_zero<3>();
  const std::byte *a = t.a, *b = t.b, *ahead = t.ahead;
  std::int64_t fetches = t.ahead_count;
  for (std::int64_t left = t.k / kStepWords; left > 0; --left) {
    load_b<NT, 0>(b);
    load_a<MT, 2>(a, part_a);
    multiply_parts<MT, NT>();
    load_a<MT, 1>(a, part_a);
    multiply_parts<MT, NT>();
    fetch(t, ahead, fetches);
    load_b<NT, 1>(b);
    multiply_parts<MT, NT>();
    load_a<MT, 0>(a, part_a);
    multiply_parts<MT, NT>();
    fetch(t, ahead, fetches);
    load_b<NT, 2>(b);
    multiply_parts<MT, NT>();
    load_b<NT, 0>(b);
    multiply_parts<MT, NT>();
    fetch(t, ahead, fetches);
    if (t.meanwhile) t.meanwhile(t.worker);
    a += kParts * part_a;
    b += kParts * kSide * NT * kRowBytes;
  }
  finish_sums<MT, NT>(t);
}

/// Words of the parts of two elements in every lane, `low` in the lower half. Infinity is in the second part, NaN in
/// the second or the third.
[[gnu::always_inline]] inline void split(SplitV low, SplitV high, __m512i (&word)[kParts]) {
  const __m512i upper = _mm512_set1_epi32(~0xffff), half = _mm512_set1_epi32(0x8000);
  const __m512 most = _mm512_set1_ps(0x1.fep127f);  // the largest bf16: larger values must not become infinite
  constexpr int kSmallerMagnitude = 2;              // with the sign of the first operand
  SplitV x[2] = {low, high};
  __m512i part[kParts][2];
  for (int i = 0; i < 2; ++i) {
    const __m512i bits = _mm512_castps_si512(_mm512_range_ps(x[i].v, most, kSmallerMagnitude));
    part[0][i] = _mm512_and_si512(_mm512_add_epi32(bits, half), upper);
    x[i] = x[i] - SplitV(_mm512_castsi512_ps(part[0][i]));
    part[1][i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x[i].v), half), upper);
    part[2][i] = _mm512_castps_si512((x[i] - SplitV(_mm512_castsi512_ps(part[1][i]))).v);
  }
  for (int q = 0; q < kParts; ++q)
    word[q] = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(part[q][0], 16), part[q][1]);
}

int upto(std::int64_t n, int most) { return static_cast<int>(std::clamp<std::int64_t>(n, 0, most)); }

template <bool Whole, class T> [[gnu::always_inline]] inline SplitV load(const T* p, int n) {
  if constexpr (Whole) return SplitV::load(p);
  else return n > 0 ? SplitV::load(p, n) : SplitV(0.0f);
}

using SplitRegisters = Registers<Avx512>;

/// A step of k of up to 16 rows (of A) or columns (of B). A word has elements i and i + 16 of the step: two vectors,
/// from one row or from two, become words lane by lane. Panels of A store a row's words of a step together, panels of B
/// a word's columns.
template <class T, bool IsA, bool Whole>
void split_block(const PackArgs& p, std::uint32_t* dst, const T* src, int cols, int kn, int room) {
  __m512i r[kParts][kSide];
  const auto put = [&](int q, int i, __m512i word) {
    if constexpr (IsA) SplitRegisters::store(dst + (q * p.width + i) * kSide, word, kSide);
    else SplitRegisters::store(dst + (q * kSide + i) * p.width, word, Whole ? kSide : room);
  };
  if (p.k_dense) {
    for (int i = 0; i < (IsA ? room : kSide); ++i) {
      const T* row = src + (Whole || i < cols ? i : 0) * p.ld;
      const int n = Whole || i < cols ? kn : 0;
      __m512i word[kParts];
      split(load<Whole>(row, upto(n, kSide)), load<Whole>(row + kSide, upto(n - kSide, kSide)), word);
      for (int q = 0; q < kParts; ++q) {
        if constexpr (IsA) put(q, i, word[q]);
        else r[q][i] = word[q];
      }
    }
  } else {
    for (int i = 0; i < kSide; ++i) {
      const T *low = src + i * p.ld, *high = low + kSide * p.ld;
      __builtin_prefetch(low + 2 * kStepElements * p.ld, 0, 2);
      __builtin_prefetch(high + 2 * kStepElements * p.ld, 0, 2);
      __m512i word[kParts];
      split(load<Whole>(low, i < kn ? cols : 0), load<Whole>(high, i + kSide < kn ? cols : 0), word);
      for (int q = 0; q < kParts; ++q) {
        if constexpr (IsA) r[q][i] = word[q];
        else put(q, i, word[q]);
      }
    }
  }
  if (p.k_dense == IsA) return;
  for (int q = 0; q < kParts; ++q) {
    SplitRegisters::transpose(r[q]);
    for (int i = 0; i < (IsA ? room : kSide); ++i) put(q, i, r[q][i]);
  }
}

template <class T, bool IsA> void split_pack_typed(const PackArgs& p) {
  const auto* src = static_cast<const T*>(p.src);
  for (int panel = 0; panel < p.panels; ++panel, src += (p.k_dense ? p.ld : 1) * p.width) {
    std::uint32_t* dst = p.dst + panel * p.panel_stride;
    for (std::int64_t k = 0; k < p.k; k += kStepElements, dst += p.width * kStepWords)
      for (int j = 0; j < p.width; j += kSide) {
        const int cols = upto(p.cols - j, kSide), room = std::min(p.width - j, kSide),
                  kn = upto(p.k - k, kStepElements);
        const T* at = p.k_dense ? src + j * p.ld + k : src + j + k * p.ld;
        std::uint32_t* to = dst + j * (IsA ? kSide : 1);
        if (cols == kSide && kn == kStepElements) split_block<T, IsA, true>(p, to, at, cols, kn, room);
        else split_block<T, IsA, false>(p, to, at, cols, kn, room);
      }
  }
}
template <bool IsA> void split_pack(const PackArgs& p) {
  p.dtype == DType::bf16  ? split_pack_typed<bf16, IsA>(p)
  : p.dtype == DType::f16 ? split_pack_typed<f16, IsA>(p)
                          : split_pack_typed<float, IsA>(p);
}

KernelSet make_split() {
  KernelSet s;
  s.rows = 2 * kSide, s.vectors = 2, s.lanes = kSide;
  s.group = 2, s.parts = kParts, s.k_step = kStepWords;
  s.block_words = 24 * kStepWords;
  s.pack_cost = 64;
  s.group_bytes = 384 << 10;
  s.few = &vector_set(Avx512{}, Compute::f32);
  s.few_rows = 192;  // amortises packing B
  // Little is gained there, and small models get the same bits from a product for any share of its rows that a rank
  // has.
  s.few_elements = 128 * 128;
  s.keeps_rows = true;
  for (int rows = 1; rows <= s.rows; ++rows) {
    const bool tall = rows > kSide;
    s.tile_packed[rows][1] = tall ? &split_tile<2, 1> : &split_tile<1, 1>;
    s.tile_packed[rows][2] = tall ? &split_tile<2, 2> : &split_tile<1, 2>;
  }
  s.prepare = &prepare<Avx512>, s.move_rows = s.few->move_rows;
  s.pack_a = &split_pack<true>, s.pack_b = &split_pack<false>;
  return s;
}

}  // namespace

template <class Isa> const KernelSet& split_set(Isa) {
  static const KernelSet set = make_split();
  return set;
}

template const KernelSet& split_set(Avx512);
#endif

}  // namespace hpcdl::gemm
