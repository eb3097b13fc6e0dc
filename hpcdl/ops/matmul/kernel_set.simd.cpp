#include <type_traits>

#include "hpcdl/ops/matmul/packing.h"
#include "hpcdl/ops/matmul/small.h"
#include "hpcdl/ops/matmul/tile.h"

namespace hpcdl::gemm {
namespace {

/// Words from elements of T. A word that holds one element as f32 rounds it to the type of `c` first; if T is that type,
/// nothing is rounded, and the kernels are those of f32.
template <class Isa, Compute c, class T>
using WordsFrom = Words<Isa, Dot<Isa, c>::kGroup == 1 && compute_of(dtype_of<T>) == c ? Compute::f32 : c>;

template <class D, class Isa, Compute c> void pack_float(const PackArgs& p) {
  if (p.dtype == DType::bf16) pack_typed<D, WordsFrom<Isa, c, bf16>, bf16>(p);
  else if (p.dtype == DType::f16) pack_typed<D, WordsFrom<Isa, c, f16>, f16>(p);
  else pack_typed<D, WordsFrom<Isa, c, float>, float>(p);
}
template <class D, class W> void pack_bytes(const PackArgs& p) { pack_typed<D, W, std::uint8_t>(p); }

template <class D, class Isa, Compute c> void small_float(const SmallArgs& s) {
  if (s.dtype == DType::bf16) small_rows<D, WordsFrom<Isa, c, bf16>, bf16>(s);
  else if (s.dtype == DType::f16) small_rows<D, WordsFrom<Isa, c, f16>, f16>(s);
  else small_rows<D, WordsFrom<Isa, c, float>, float>(s);
}
template <class D, class W> void small_bytes(const SmallArgs& s) { small_rows<D, W, std::uint8_t>(s); }

template <class D, class Isa, Compute c>
void words_of_floats(std::uint32_t* dst, const void* src, DType dtype, std::int64_t k) {
  if (dtype == DType::bf16) to_words<D, WordsFrom<Isa, c, bf16>>(dst, static_cast<const bf16*>(src), k);
  else if (dtype == DType::f16) to_words<D, WordsFrom<Isa, c, f16>>(dst, static_cast<const f16*>(src), k);
  else to_words<D, WordsFrom<Isa, c, float>>(dst, static_cast<const float*>(src), k);
}
template <class D, class W> void words_of_bytes(std::uint32_t* dst, const void* src, DType, std::int64_t k) {
  to_words<D, W>(dst, static_cast<const std::uint8_t*>(src), k);
}

template <class Isa, Compute c> KernelSet make() {
  using Own = Dot<Isa, c>;
  using D = std::conditional_t<Own::kGroup == 1, Dot<Isa, Compute::f32>, Own>;  // 16-bit types held as f32 share its
                                                                                // kernels
  KernelSet s;
  if constexpr (D::kLanes == 16) fill_tiles<D, 8, 3>(s);      // 24 accumulators, 3 of B, 1 of A: 28 of 32 registers
  else if constexpr (D::kLanes == 8) fill_tiles<D, 6, 2>(s);  // 12 + 2 + 1 of 16
  else fill_tiles<D, 4, 2>(s);
  if constexpr (c == Compute::int8) {
    using W = Words<Isa, c>;
    s.pack_a = s.pack_b = &pack_bytes<D, W>;
    s.small = &small_bytes<D, W>;
    s.to_words = &words_of_bytes<D, W>;
    s.in_place = DType::u8;
  } else {
    s.pack_a = s.pack_b = &pack_float<D, Isa, c>;
    s.small = &small_float<D, Isa, c>;
    s.to_words = &words_of_floats<D, Isa, c>;
    if constexpr (c == Compute::f32) s.in_place = DType::f32;
    else if constexpr (D::kGroup == 2) s.in_place = DType::bf16;
  }
  return s;
}

}  // namespace

template <class Isa> const KernelSet& vector_set(Isa, Compute c) {
  static const KernelSet f32 = make<Isa, Compute::f32>(), half = make<Isa, Compute::bf16>(),
                         half16 = make<Isa, Compute::f16>(), bytes = make<Isa, Compute::int8>();
  return c == Compute::f32 ? f32 : c == Compute::bf16 ? half : c == Compute::f16 ? half16 : bytes;
}

template <class Isa> const KernelSet& kernel_set(Isa isa, Compute c) {
  if constexpr (std::is_same_v<Isa, simd::Avx512>)
    if (simd::has_tiles() && c != Compute::f16) return c == Compute::f32 ? split_set(isa) : tile_set(isa, c);
  return vector_set(isa, c);
}

template const KernelSet& vector_set(simd::Isa, Compute);
template const KernelSet& kernel_set(simd::Isa, Compute);

}  // namespace hpcdl::gemm
