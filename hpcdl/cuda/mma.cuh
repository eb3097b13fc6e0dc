#pragma once
// Products of a warp (mma.sync) of 16-bit operands in registers, with f32 sums (.cu files).

#include <type_traits>

#include "hpcdl/dtype.h"

namespace hpcdl::cuda {

/// c (16, 8) += a (16, 16) b (16, 8). With g = lane / 4 and t = lane % 4: c[0], c[1] are row g, columns 2 t and 2 t + 1;
/// c[2], c[3] row g + 8. a[0]: row g, k 2 t and the next; a[1]: row g + 8; a[2], a[3]: the same with k 8 further. b0:
/// column g, k 2 t and the next; b1: k 8 further.
template <class T> __device__ void mma_16x8x16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The transpose of 8 x 8 numbers of 16 bits: thread 4 g + t has row g, columns 2 t and 2 t + 1, before and after.
__device__ inline unsigned transpose_8x8(unsigned a) {
  unsigned r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a));
  return r;
}

}  // namespace hpcdl::cuda
