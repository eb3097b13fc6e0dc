#pragma once
// Like wgmma.h, for signed bytes with exact integer sums: K is 32, rows of B in shared memory hold 128 of them
// (Major::k), the next 32 of k: + kStepK. A from registers: a[0] (row, k 0..15), a[1] (row + 8, the same), a[2] (row, k
// 16..31), a[3] (row + 8), four neighbours in each. Kernels of sm_90a (arch.h).

#include "hpcdl/cuda/wgmma.cuh"

namespace hpcdl::cuda {

/// Like that of floats.
template <int kCount> __device__ void wgmma_pin(int (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

#define HPCDL_TEXT_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define HPCDL_TEXT_32 HPCDL_TEXT_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define HPCDL_TEXT_48 HPCDL_TEXT_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define HPCDL_TEXT_64 HPCDL_TEXT_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HPCDL_EIGHT(i)                                                                                        \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), \
      "+r"(d[i + 7])
#define HPCDL_LIST_16 HPCDL_EIGHT(0), HPCDL_EIGHT(8)
#define HPCDL_LIST_32 HPCDL_LIST_16, HPCDL_EIGHT(16), HPCDL_EIGHT(24)
#define HPCDL_LIST_64 HPCDL_LIST_32, HPCDL_EIGHT(32), HPCDL_EIGHT(40), HPCDL_EIGHT(48), HPCDL_EIGHT(56)
// D (64, n) in r registers; q0 .. q3 and q4: the operands A and B, p: the predicate "add to D".
#define HPCDL_WGMMA(n, r, q0, q1, q2, q3, q4, p)                                                              \
  __device__ inline void wgmma(int (&d)[r], const unsigned (&a)[4], std::uint64_t b, bool add) {              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n         \
                 "k32.s32.s8.s8 {" HPCDL_TEXT_##r "}, {%" #q0 ",%" #q1 ",%" #q2 ",%" #q3 "}, %" #q4 ", p;\n}" \
                 : HPCDL_LIST_##r                                                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}));                        \
  }
HPCDL_WGMMA(32, 16, 16, 17, 18, 19, 20, 21)
HPCDL_WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
HPCDL_WGMMA(128, 64, 64, 65, 66, 67, 68, 69)
#undef HPCDL_WGMMA
#undef HPCDL_LIST_64
#undef HPCDL_LIST_32
#undef HPCDL_LIST_16
#undef HPCDL_EIGHT
#undef HPCDL_TEXT_48
#undef HPCDL_TEXT_64
#undef HPCDL_TEXT_32
#undef HPCDL_TEXT_16

}  // namespace hpcdl::cuda
