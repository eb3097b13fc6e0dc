#pragma once
// Like wgmma.cuh, for 8-bit floats: D (64, N) += A (64, 32) B (32, N), both from shared memory with Major::k, rows of
// 128 of k, the next 32 of k: + kStepK. The tensor cores keep about 14 bits of a sum while they add to it: kernels move
// it to f32 registers every 128 of k. Kernels of sm_90a (arch.h).

#include "hpcdl/cuda/wgmma.cuh"

namespace hpcdl::cuda {

#define HPCDL_TEXT_48                                                                                              \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define HPCDL_TEXT_64 HPCDL_TEXT_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HPCDL_EIGHT(i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define HPCDL_LIST_48 HPCDL_EIGHT(0), HPCDL_EIGHT(8), HPCDL_EIGHT(16), HPCDL_EIGHT(24), HPCDL_EIGHT(32), HPCDL_EIGHT(40)
#define HPCDL_LIST_64 HPCDL_LIST_48, HPCDL_EIGHT(48), HPCDL_EIGHT(56)
// D (64, n) in r registers; p: the predicate "add to D"; q0 and q1: A and B.
#define HPCDL_F8(n, kinds, r, p, q0, q1)                                                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k32.f32." kinds \
               " {" HPCDL_TEXT_##r "}, %" #q0 ", %" #q1 ", p, 1, 1;\n}"                                              \
               : HPCDL_LIST_##r                                                                                      \
               : "r"(int{add}), "l"(a), "l"(b))
#define HPCDL_WGMMA(n, r, p, q0, q1)                                                           \
  /** One of them is E4M3. */                                                                  \
  template <class A, class B = f8_e4m3>                                                        \
  __device__ inline void wgmma_f8(float (&d)[r], std::uint64_t a, std::uint64_t b, bool add) { \
    if constexpr (std::is_same_v<A, f8_e5m2>) HPCDL_F8(n, "e5m2.e4m3", r, p, q0, q1);          \
    else if constexpr (std::is_same_v<B, f8_e5m2>) HPCDL_F8(n, "e4m3.e5m2", r, p, q0, q1);     \
    else HPCDL_F8(n, "e4m3.e4m3", r, p, q0, q1);                                               \
  }
HPCDL_WGMMA(96, 48, 48, 49, 50)
HPCDL_WGMMA(128, 64, 64, 65, 66)
#undef HPCDL_WGMMA
#undef HPCDL_F8
#undef HPCDL_LIST_64
#undef HPCDL_LIST_48
#undef HPCDL_EIGHT
#undef HPCDL_TEXT_64
#undef HPCDL_TEXT_48

}  // namespace hpcdl::cuda
