// Products of bf16 and of int8 on tile registers (simd/tiles.h). A tile of up to 32 x 32 sums stays in four registers
// over all of k; for every 16 words of k, two registers of A and two of B feed four products, which take 64 cycles.
//
// A register is loaded in 11 cycles from L1 and in 22 from L2 (Sapphire Rapids, loops of loads only), so one of the two
// panels has to come from L1: a step of 16 words then takes 70 cycles, and 103 in turns of 8 steps whose sums stay in
// L2; 24 steps at once, with neither panel in L1, take 140 each. Alternatives that were tried: a panel of B in L1 and
// packed tiles of A, 93 (A is read in place); prefetching the next turn's lines into L1, 130.
#include <cstring>

#include "hpcdl/ops/matmul/packing.h"
#include "hpcdl/ops/matmul/tile_registers.h"

namespace hpcdl::gemm {

#if defined(HPCDL_SIMD_AVX512)
namespace {

using simd::Avx512;

template <Compute c, int C, int A, int B> [[gnu::always_inline]] inline void dot() {
  if constexpr (c == Compute::int8) simd::tile_dot_u8s8<C, A, B>();
  else simd::tile_dot_bf16<C, A, B>();
}

/// MT x NT registers of sums.
template <Compute c, int MT, int NT, bool InPlace> void tile(const TileArgs& t) {
  const std::int64_t stride_a = InPlace ? t.lda : kRowBytes, step_a = InPlace ? kRowBytes : t.rows * kRowBytes;
  begin_sums<MT, NT>(t);
  const std::byte *a = t.a, *b = t.b, *ahead = t.ahead;
  std::int64_t fetches = t.ahead_count;
  for (std::int64_t left = t.k / kSide; left > 0; --left) {
    simd::tile_load<6>(b, NT * kRowBytes);
    simd::tile_load<4>(a, stride_a);
    dot<c, 0, 4, 6>();
    if constexpr (NT == 2) {
      simd::tile_load<7>(b + kRowBytes, NT * kRowBytes);
      dot<c, 1, 4, 7>();
    }
    if constexpr (MT == 2) {
      simd::tile_load<5>(a + kSide * stride_a, stride_a);
      dot<c, 2, 5, 6>();
    }
    if constexpr (MT == 2 && NT == 2) dot<c, 3, 5, 7>();
    fetch(t, ahead, fetches);
    if (t.meanwhile) t.meanwhile(t.worker);
    a += step_a;
    b += NT * kSide * kRowBytes;
  }
  end_sums<MT, NT>(t);
}

/// Words of k that a panel holds: whole steps.
constexpr std::int64_t padded(std::int64_t words) { return (words + kSide - 1) / kSide * kSide; }

/// Like pack_typed, padded with zeros to whole steps.
template <class D, class W, class T> void pack_b(const PackArgs& p) {
  pack_typed<D, W, T>(p);
  const std::int64_t words = (p.k + D::kGroup - 1) / D::kGroup, missing = padded(words) - words;
  for (int i = 0; missing && i < p.panels; ++i)
    std::memset(p.dst + i * p.panel_stride + words * p.width, 0, static_cast<std::size_t>(missing * p.width * 4));
}

template <class D, class W, class T> void pack_a(const PackArgs& p) {
  constexpr int kFull = kSide * D::kGroup;  // elements of k per step
  const auto* src = static_cast<const T*>(p.src);
  const auto upto = [](std::int64_t n, int most) { return static_cast<int>(n < most ? n : most); };
  for (int panel = 0; panel < p.panels; ++panel, src += (p.k_dense ? p.ld : 1) * p.width) {
    std::uint32_t* dst = p.dst + panel * p.panel_stride;
    for (std::int64_t k = 0; k < p.k; k += kFull, dst += p.width * kSide) {
      const int kn = upto(p.k - k, kFull);
      if (p.k_dense) {
        for (int j = 0; j < p.width; ++j) W::store(dst + j * kSide, W::along_k(src + j * p.ld + k, kn), kSide);
        continue;
      }
      for (int j = 0; j < p.width; j += kSide) {
        const int rows = upto(p.width - j, kSide);
        typename W::Reg r[kSide];
        for (int i = 0; i < kSide; ++i) {
          const int left = kn - i * D::kGroup;
          r[i] =
              left > 0 ? W::across(src + j + (k + i * D::kGroup) * p.ld, p.ld, upto(left, D::kGroup), rows) : W::zero();
        }
        W::transpose(r);
        for (int i = 0; i < rows; ++i) W::store(dst + (j + i) * kSide, r[i], kSide);
      }
    }
  }
}

template <class D, class W> struct Packs {
  static void a(const PackArgs& p) {
    p.dtype == DType::bf16  ? pack_a<D, W, bf16>(p)
    : p.dtype == DType::f16 ? pack_a<D, W, f16>(p)
                            : pack_a<D, W, float>(p);
  }
  static void b(const PackArgs& p) {
    p.dtype == DType::bf16  ? pack_b<D, W, bf16>(p)
    : p.dtype == DType::f16 ? pack_b<D, W, f16>(p)
                            : pack_b<D, W, float>(p);
  }
};

template <Compute c> KernelSet make() {
  using D = Dot<Avx512, c>;
  using W = Words<Avx512, c>;
  KernelSet s = vector_set(Avx512{}, c);  // its kernels for few rows are limited by memory, not by products
  s.rows = 2 * kSide, s.vectors = 2, s.k_step = kSide;
  s.pack_cost = 64;
  // What a group reads of B stays in L2. With turns, for which a tile's rows of A stay in L1, bf16 gains a quarter and
  // int8, whose k is half as many words, loses some (1024 x 3072 x 768 on 2 threads).
  s.group_bytes = 384 << 10;
  if (c == Compute::bf16) s.group_bytes = 192 << 10, s.turn_words = 128;
  for (int rows = 1; rows <= s.rows; ++rows) {
    const bool tall = rows > kSide;
    s.tile_in_place[rows][1] = tall ? &tile<c, 2, 1, true> : &tile<c, 1, 1, true>;
    s.tile_in_place[rows][2] = tall ? &tile<c, 2, 2, true> : &tile<c, 1, 2, true>;
    s.tile_packed[rows][1] = tall ? &tile<c, 2, 1, false> : &tile<c, 1, 1, false>;
    s.tile_packed[rows][2] = tall ? &tile<c, 2, 2, false> : &tile<c, 1, 2, false>;
  }
  s.prepare = &prepare<Avx512>;
  if constexpr (c == Compute::int8) s.pack_a = &pack_a<D, W, std::uint8_t>, s.pack_b = &pack_b<D, W, std::uint8_t>;
  else s.pack_a = &Packs<D, W>::a, s.pack_b = &Packs<D, W>::b;
  return s;
}

}  // namespace

template <class Isa> const KernelSet& tile_set(Isa, Compute c) {
  static const KernelSet half = make<Compute::bf16>(), bytes = make<Compute::int8>();
  return c == Compute::bf16 ? half : bytes;
}

template const KernelSet& tile_set(Avx512, Compute);
#endif

}  // namespace hpcdl::gemm
