#pragma once
// The tensor copy engine (TMA) from inside a kernel: tiles between global and shared memory by one thread, through a
// tensor map that the host made (tensor_map.h) and passed as a `const __grid_constant__ TensorMap` parameter. Kernels
// of sm_90 (arch.h). Coordinates count elements, innermost dim first; elements outside of the tensor are read as 0 and
// not written. Shared memory is aligned to 128 bytes, to 1024 with the 128-byte swizzle.

#include <cuda.h>

#include "hpcdl/cuda/mbarrier.cuh"

namespace hpcdl::cuda {

using TensorMap = CUtensorMap;

/// To be called before the first use, so that it need not wait for the map itself.
__device__ inline void tma_prefetch(const TensorMap& m) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&m) : "memory");
}

/// Loads a tile to `to`; its bytes count at `b`, which expects them.
__device__ inline void tma_load(void* to, const TensorMap& m, Barrier* b, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(to)),
      "l"(&m), "r"(shared_address(b)), "r"(c0), "r"(c1)
      : "memory");
}
__device__ inline void tma_load(void* to, const TensorMap& m, Barrier* b, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared_address(to)),
      "l"(&m), "r"(shared_address(b)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ inline void tma_load(void* to, const TensorMap& m, Barrier* b, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(&m), "r"(shared_address(b)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Loads the same tile to the same address in every block of the cluster whose bit is set in `blocks`; each counts it
/// at its own barrier.
__device__ inline void tma_load_to(unsigned short blocks, void* to, const TensorMap& m, Barrier* b, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(&m), "r"(shared_address(b)), "r"(c0), "r"(c1), "h"(blocks)
      : "memory");
}
__device__ inline void tma_load_to(unsigned short blocks, void* to, const TensorMap& m, Barrier* b, int c0, int c1,
                                   int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(&m), "r"(shared_address(b)), "r"(c0), "r"(c1), "r"(c2), "h"(blocks)
      : "memory");
}

/// Stores a tile from shared memory, in pieces of 16 bytes: if the innermost extent ends inside of one, the memory
/// after it is overwritten with zeros. Threads that wrote it call fence_async_proxy(), then meet at a barrier,
/// then one of them stores and commits; the memory may be written again after tma_wait_read().
__device__ inline void tma_store(const TensorMap& m, const void* from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&m),
               "r"(shared_address(from)), "r"(c0), "r"(c1)
               : "memory");
}
__device__ inline void tma_store(const TensorMap& m, const void* from, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&m),
               "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
__device__ inline void tma_store(const TensorMap& m, const void* from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&m),
               "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
/// Like tma_store, but adds. One addition per element keeps results repeatable; several in one kernel do
/// not.
__device__ inline void tma_add(const TensorMap& m, const void* from, int c0, int c1, int c2) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&m),
               "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
__device__ inline void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all but the last kGroups groups of this thread have read their shared memory.
template <int kGroups> __device__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}
/// Waits until they are done.
template <int kGroups> __device__ void tma_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// `bytes` consecutive bytes, without a map; both addresses and `bytes` are multiples of 16.
__device__ inline void bulk_load(void* to, const void* from, unsigned bytes, Barrier* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(b))
               : "memory");
}
__device__ inline void bulk_store(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}

/// Between ordinary writes to shared memory and reads of it by the copy engine or wgmma; for every thread that wrote.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Position of byte `offset` of a tile with rows of 128 bytes under the 128-byte swizzle: 16-byte piece p of row r is
/// at p ^ (r % 8).
__device__ constexpr unsigned swizzled128(unsigned offset) { return offset ^ ((offset >> 3) & 0x70u); }

}  // namespace hpcdl::cuda
