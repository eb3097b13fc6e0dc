#pragma once
// Matrix products of a warpgroup (wgmma): D (64, N) += A (64, 16) B (16, N) of bf16 or f16 with f32 sums in registers, A
// from shared memory or registers, B from shared memory. Kernels of sm_90a (arch.h).
//
//   wgmma_fence();                                  // registers are written: the products may begin
//   for k: wgmma<bf16, Major::k, Major::k>(d, a_desc + ..., b_desc + ..., k > 0);
//   wgmma_commit();
//   wgmma_wait<0>();                                // d may be read, the shared memory be written again
//
// D: thread t of the warpgroup holds row t / 32 * 16 + t % 32 / 4 and row + 8: d[4 j + 2 h + i] is row + 8 h,
// column 8 j + t % 4 * 2 + i. An A from registers has the same layout, 16 columns at a time: a[0] (row, k 0..7), a[1]
// (row + 8, k 0..7), a[2] (row, k 8..15), a[3] (row + 8, k 8..15), two neighbours each.

#include <cstdint>
#include <type_traits>

#include "hpcdl/cuda/mbarrier.cuh"
#include "hpcdl/dtype.h"

namespace hpcdl::cuda {

/// Which index of an operand is contiguous in memory: k, or m of A and n of B.
enum class Major { k = 0, mn = 1 };

// Operands in shared memory are tiles that the copy engine wrote with the 128-byte swizzle, at multiples of 1024
// bytes: rows of 128 bytes (64 elements of 16 bits), eight of which are one unit.
//   Major::k:  a row is one m (or n), its 64 elements run along k. Rows follow each other. The next 16 of k: + kStepK.
//   Major::mn: a row is one k, its 64 elements run along m (or n); `rows` of k are one block, and the next 64 of m or n
//              lie one block further. The next 16 of k: + kStepMn.

inline constexpr std::uint64_t kStepK = 32 >> 4, kStepMn = 2048 >> 4;  // 16 elements along k

template <Major kMajor> __device__ std::uint64_t wgmma_descriptor(const void* tile, int rows = 0) {
  const std::uint64_t at = (shared_address(tile) & 0x3ffffu) >> 4, unit = 1024 >> 4,
                      swizzle128 = std::uint64_t{1} << 62;
  const std::uint64_t block = kMajor == Major::mn ? static_cast<std::uint64_t>(rows * 128 >> 4) : 1;
  return at | block << 16 | unit << 32 | swizzle128;
}
template <Major kMajor> inline constexpr std::uint64_t wgmma_step = kMajor == Major::k ? kStepK : kStepMn;

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until all but the last kGroups groups are done.
template <int kGroups> __device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
/// Keeps the compiler from moving accesses of d across it: around waits that leave later groups running.
template <int kCount> __device__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The assembly names every register, so each N has its text: HPCDL_TEXT_r and HPCDL_LIST_r for r = N / 2 registers.
#define HPCDL_TEXT0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define HPCDL_TEXT1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define HPCDL_TEXT2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define HPCDL_TEXT3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define HPCDL_TEXT4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define HPCDL_TEXT5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define HPCDL_TEXT6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define HPCDL_TEXT7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define HPCDL_TEXT8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define HPCDL_TEXT9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define HPCDL_TEXT10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define HPCDL_TEXT11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define HPCDL_TEXT12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define HPCDL_TEXT13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define HPCDL_TEXT14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define HPCDL_TEXT15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define HPCDL_TEXT_8 HPCDL_TEXT0
#define HPCDL_TEXT_16 HPCDL_TEXT_8 "," HPCDL_TEXT1
#define HPCDL_TEXT_32 HPCDL_TEXT_16 "," HPCDL_TEXT2 "," HPCDL_TEXT3
#define HPCDL_TEXT_48 HPCDL_TEXT_32 "," HPCDL_TEXT4 "," HPCDL_TEXT5
#define HPCDL_TEXT_64 HPCDL_TEXT_48 "," HPCDL_TEXT6 "," HPCDL_TEXT7
#define HPCDL_TEXT_96 HPCDL_TEXT_64 "," HPCDL_TEXT8 "," HPCDL_TEXT9 "," HPCDL_TEXT10 "," HPCDL_TEXT11
#define HPCDL_TEXT_128 HPCDL_TEXT_96 "," HPCDL_TEXT12 "," HPCDL_TEXT13 "," HPCDL_TEXT14 "," HPCDL_TEXT15
#define HPCDL_EIGHT(i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define HPCDL_LIST_8 HPCDL_EIGHT(0)
#define HPCDL_LIST_16 HPCDL_LIST_8, HPCDL_EIGHT(8)
#define HPCDL_LIST_32 HPCDL_LIST_16, HPCDL_EIGHT(16), HPCDL_EIGHT(24)
#define HPCDL_LIST_48 HPCDL_LIST_32, HPCDL_EIGHT(32), HPCDL_EIGHT(40)
#define HPCDL_LIST_64 HPCDL_LIST_48, HPCDL_EIGHT(48), HPCDL_EIGHT(56)
#define HPCDL_LIST_96 HPCDL_LIST_64, HPCDL_EIGHT(64), HPCDL_EIGHT(72), HPCDL_EIGHT(80), HPCDL_EIGHT(88)
#define HPCDL_LIST_128 HPCDL_LIST_96, HPCDL_EIGHT(96), HPCDL_EIGHT(104), HPCDL_EIGHT(112), HPCDL_EIGHT(120)

// Operands follow the r registers of D: number p is the predicate "add to D", q0 ... the rest.
#define HPCDL_HEAD(n, kind, r, p)                                                                               \
  "{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." kind "." kind \
  " {" HPCDL_TEXT_##r "}, "
#define HPCDL_SHARED_A(n, kind, r, p, q0, q1, q2, q3)                                          \
  asm volatile(HPCDL_HEAD(n, kind, r, p) "%" #q0 ", %" #q1 ", p, 1, 1, %" #q2 ", %" #q3 ";\n}" \
               : HPCDL_LIST_##r                                                                \
               : "r"(int{add}), "l"(a), "l"(b), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))
#define HPCDL_REGISTER_A(n, kind, r, p, q0, q1, q2, q3, q4, q5)                                                   \
  asm volatile(HPCDL_HEAD(n, kind, r, p) "{%" #q0 ",%" #q1 ",%" #q2 ",%" #q3 "}, %" #q4 ", p, 1, 1, %" #q5 ";\n}" \
               : HPCDL_LIST_##r                                                                                   \
               : "r"(int{add}), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kB)))
#define HPCDL_WGMMA(n, r, p, q0, q1, q2, q3, q4, q5)                                                \
  template <class T, Major kA, Major kB>                                                            \
  __device__ inline void wgmma(float (&d)[r], std::uint64_t a, std::uint64_t b, bool add) {         \
    if constexpr (std::is_same_v<T, f16>) HPCDL_SHARED_A(n, "f16", r, p, q0, q1, q2, q3);           \
    else HPCDL_SHARED_A(n, "bf16", r, p, q0, q1, q2, q3);                                           \
  }                                                                                                 \
  template <class T, Major kB>                                                                      \
  __device__ inline void wgmma(float (&d)[r], const unsigned (&a)[4], std::uint64_t b, bool add) {  \
    if constexpr (std::is_same_v<T, f16>) HPCDL_REGISTER_A(n, "f16", r, p, q0, q1, q2, q3, q4, q5); \
    else HPCDL_REGISTER_A(n, "bf16", r, p, q0, q1, q2, q3, q4, q5);                                 \
  }
HPCDL_WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
HPCDL_WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
HPCDL_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
HPCDL_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
HPCDL_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
HPCDL_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
HPCDL_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef HPCDL_WGMMA
#undef HPCDL_REGISTER_A
#undef HPCDL_SHARED_A
#undef HPCDL_HEAD
#undef HPCDL_EIGHT
#undef HPCDL_TEXT0
#undef HPCDL_TEXT1
#undef HPCDL_TEXT2
#undef HPCDL_TEXT3
#undef HPCDL_TEXT4
#undef HPCDL_TEXT5
#undef HPCDL_TEXT6
#undef HPCDL_TEXT7
#undef HPCDL_TEXT8
#undef HPCDL_TEXT9
#undef HPCDL_TEXT10
#undef HPCDL_TEXT11
#undef HPCDL_TEXT12
#undef HPCDL_TEXT13
#undef HPCDL_TEXT14
#undef HPCDL_TEXT15
#undef HPCDL_TEXT_8
#undef HPCDL_LIST_8
#undef HPCDL_TEXT_16
#undef HPCDL_LIST_16
#undef HPCDL_TEXT_32
#undef HPCDL_LIST_32
#undef HPCDL_TEXT_48
#undef HPCDL_LIST_48
#undef HPCDL_TEXT_64
#undef HPCDL_LIST_64
#undef HPCDL_TEXT_96
#undef HPCDL_LIST_96
#undef HPCDL_TEXT_128
#undef HPCDL_LIST_128

}  // namespace hpcdl::cuda
