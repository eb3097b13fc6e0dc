#pragma once
// Shared host code of the mma.sync kernels (.cu files).

#include <algorithm>

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/shared_memory.h"
#include "hpcdl/ops/attention/mma_tiles.cuh"

namespace hpcdl::cuda::mma {

/// The operand type of the product; where a cache has another type than q, f32 represents both.
inline DType multiplied(const Attend& c) { return c.k.dtype() == c.q.dtype() ? c.q.dtype() : DType::f32; }

/// f.template operator()<kind of product>()
template <class F> void with_kind(const Stream& s, const Attend& c, F&& f) {
  const DType d = multiplied(c);
  if (d == DType::bf16) f.template operator()<Bits16<bf16>>();
  else if (d == DType::f16) f.template operator()<Bits16<f16>>();
  else if (s.numerics().products == F32Products::tf32) f.template operator()<Tf32>();
  else f.template operator()<TwoParts>();
}

/// Whether `x`, which may be absent, can be accessed in whole 16-byte pieces.
inline bool plain_pieces(const Heads& x, DType d) { return !x.data || (x.dtype == d && x.whole_pieces()); }

/// Enough heads for a few blocks per multiprocessor: the last blocks of a section, the shortest, end it together.
inline int section_of(const Stream& s, int tiles, std::int64_t heads) {
  return static_cast<int>(std::min<std::int64_t>((std::int64_t{multiprocessors(s)} * 8 + tiles - 1) / tiles, heads));
}

/// `rows` of each of `heads`, `per_block` of them per block.
template <class C> MmaProblem mma_problem(Stream& s, const C& c, std::int64_t rows, int heads, int per_block) {
  MmaProblem p{problem_of(c)};
  const DType d = multiplied(c);
  p.copies = plain_pieces(p.q, d) && plain_pieces(p.k, d) && plain_pieces(p.v, d) && plain_pieces(p.dout, d) &&
             p.width * dtype_bytes(d) % 16 == 0;
  p.vectors = plain_pieces(p.out, d) && plain_pieces(p.dq, d) && plain_pieces(p.dk, d) && plain_pieces(p.dv, d);
  p.tiles = static_cast<int>((rows + per_block - 1) / per_block);
  p.section = section_of(s, p.tiles, c.q[0] * heads);
  return p;
}

/// Pools of codes and queries of 16 bits: mma_codes.cu. Other calls with codes multiply f32.
bool codes_fit(const Stream& s, const PagedAttend& c);
void attend_codes(Stream& s, const PagedAttend& c);

template <class Shape, class Kernel, class Problem>
void start(Stream& s, Kernel kernel, const Problem& p, int heads, const char* name) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes), name);
  kernel<<<blocks_for(std::int64_t{p.tiles} * p.batch * heads, 1), kThreads, Shape::kBytes, queue(s)>>>(p);
  launched(name);
}

}  // namespace hpcdl::cuda::mma
