#include "hpcdl/ops/matmul/tile.h"
#include "hpcdl/ops/matmul/words.h"

namespace hpcdl::gemm {
namespace {

template <class D, class W> void pack_float(const PackArgs& p) {
  if (p.dtype == DType::bf16) pack_typed<D, W, bf16>(p);
  else pack_typed<D, W, float>(p);
}
template <class D, class W> void pack_bytes(const PackArgs& p) { pack_typed<D, W, std::uint8_t>(p); }

template <class Isa, Compute c> KernelSet make() {
  using D = Dot<Isa, c>;
  using W = Words<Isa, c>;
  KernelSet s;
  if constexpr (D::kLanes == 16) fill_tiles<D, 8, 3>(s);       // 24 accumulators, 3 of B, 1 of A: 28 of 32 registers
  else if constexpr (D::kLanes == 8) fill_tiles<D, 6, 2>(s);   // 12 + 2 + 1 of 16
  else fill_tiles<D, 4, 2>(s);
  if constexpr (c == Compute::int8) {
    s.pack = &pack_bytes<D, W>;
    s.in_place = DType::u8;
  } else {
    s.pack = &pack_float<D, W>;
    if constexpr (c == Compute::f32) s.in_place = DType::f32;
    else if constexpr (D::kGroup == 2) s.in_place = DType::bf16;
  }
  return s;
}

}  // namespace

template <class Isa> const KernelSet& kernel_set(Isa, Compute c) {
  static const KernelSet f32 = make<Isa, Compute::f32>(), half = make<Isa, Compute::bf16>(),
                         bytes = make<Isa, Compute::int8>();
  return c == Compute::f32 ? f32 : c == Compute::bf16 ? half : bytes;
}

template const KernelSet& kernel_set(simd::Isa, Compute);

}  // namespace hpcdl::gemm
