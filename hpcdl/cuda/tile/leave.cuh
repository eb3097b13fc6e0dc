#pragma once
// The way of 16-bit results out of registers: packed in pairs, through pieces of shared memory of 64 rows x 128 bytes
// with the 128-byte swizzle, to global memory by the copy engine. v[4 j + 2 h + i] of a warpgroup's piece is row + 8 h,
// column 8 j + lane % 4 * 2 + i (wgmma.cuh).

#include "hpcdl/cuda/tma.cuh"
#include "hpcdl/cuda/warpgroup.cuh"
#include "hpcdl/dtype.h"

namespace hpcdl::cuda {

inline constexpr int kPieceBytes = 64 * 128;

/// Packs two floats into one register of 16-bit elements, the first in the lower half.
template <class T> __device__ unsigned pack_pair(float x, float y) {
  unsigned r;
  if constexpr (std::is_same_v<T, f16>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
  return r;
}
template <class T> __device__ float unpack_low(unsigned x) {
  if constexpr (std::is_same_v<T, f16>) return __half2float(__ushort_as_half(static_cast<unsigned short>(x)));
  else return __uint_as_float(x << 16);
}
template <class T> __device__ float unpack_high(unsigned x) {
  if constexpr (std::is_same_v<T, f16>) return __half2float(__ushort_as_half(static_cast<unsigned short>(x >> 16)));
  else return __uint_as_float(x & 0xffff0000u);
}

/// The byte of a piece where this lane's row of four 8 x 8 matrices begins: from column 16 j on. I: int or unsigned.
/// Which one makes shorter code depends on the kernel: unsigned would add 3 % to that of GEMM, int makes attention
/// backward spill.
template <class I> __device__ unsigned matrix_at(int j) {
  const I lane = static_cast<I>(threadIdx.x) % 32, row = static_cast<I>(threadIdx.x) % 128 / 32 * 16 + lane % 16;
  return static_cast<unsigned>(row * 128 + ((static_cast<I>(j) * 2 + lane / 16) ^ (row % 8)) * 16);
}
/// Called by a warpgroup, for 64 columns.
template <class T> __device__ void put_piece(const void* piece, const float (&v)[32]) {
  const unsigned base = shared_address(piece);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float* x = v + j * 8;
    store_matrices(base + matrix_at<int>(j), pack_pair<T>(x[0], x[1]), pack_pair<T>(x[2], x[3]),
                   pack_pair<T>(x[4], x[5]), pack_pair<T>(x[6], x[7]));
  }
}

/// The stores of a warpgroup, one group of them after the other.
struct Leaving {
  int barrier;  // named barrier of this warpgroup

  __device__ static bool leader() { return threadIdx.x % 128 == 0; }
  __device__ void sync() const { named_sync(barrier, 128); }
  /// Waits until the copy engine has read the pieces of all but the last kGroups groups.
  template <int kGroups> __device__ void reuse() const {
    if (leader()) tma_wait_read<kGroups>();
    sync();
  }
  /// One thread calls store() when all have written their part of the pieces of a group.
  template <class F> __device__ void leave(F&& store) const {
    fence_async_proxy();
    sync();
    if (!leader()) return;
    store();
    tma_commit();
  }
};

}  // namespace hpcdl::cuda
