#pragma once
// D = epilogue(A x B) on raw memory: A (M, K) and B (K, N) may each be transposed, f32, bf16 or f16 (or u8 x s8), sums
// in f32 (or s32). This is the kernel-level interface; ops/linear/linear.h and matmul.h are the ops that programs
// record.
//
// The method is that of Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (2008): k is divided
// into blocks, a block of A stays in L2, panels of B are packed and pass through L1, a tile of C stays in registers. B
// is packed while it is used, so that a weight which changes every step needs no separate pass. The order of every sum
// depends only on the shape: results do not depend on the number of threads.

#include <cstddef>
#include <cstdint>

#include "hpcdl/ops/matmul/epilogue.h"
#include "hpcdl/ops/matmul/kernel_set.h"
#include "hpcdl/pool.h"

namespace hpcdl::gemm {

/// Rows with stride `ld` elements. As A (M, K): element (m, k) at m * ld + k, or at k * ld + m if transposed. As B (K,
/// N): (k, n) at k * ld + n, or at n * ld + k if transposed.
struct Operand {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t ld = 0;
  bool transposed = false;
};

/// `compute` determines how products are computed (see kernel_set.h); operands of another dtype are converted while
/// packing. For int8, A is u8 and B is i8.
struct Problem {
  std::int64_t m = 0, n = 0, k = 0;
  Compute compute = Compute::f32;
  Operand a{}, b{};
  const std::byte* packed_b = nullptr;  // instead of b: from pack_b() for the same instruction set, n, k, compute
  /// Neither the kernels nor the order of a sum depend on m: few rows then cost the packing of B.
  bool row_invariant = false;
};

/// Applies the epilogue to rows x cols finished sums (f32, or s32 for int8) of row stride ld that belong at (row, col).
using TileEpilogue = void (*)(const void* epilogue, const void* tile, std::int64_t ld, std::int64_t row,
                              std::int64_t col, int rows, int cols);

/// What is done with the sums. `plain`: they are stored unchanged, as 32-bit words, so tiles may write to D directly.
struct Finish {
  const void* epilogue = nullptr;
  TileEpilogue apply = nullptr;
  std::byte* d = nullptr;
  std::int64_t d_ld = 0;  // bytes
  int d_element = 4;      // bytes
  bool plain = false;
  bool cold = false;  // D is not read soon
};

/// The blocked driver.
void run(const KernelSet& set, Pool& pool, const Problem& p, const Finish& f);

/// The same on the calling thread alone, with scratch_bytes() of working memory: for many small products in parallel.
/// Gives the same bits.
void run_alone(const KernelSet& set, std::byte* scratch, const Problem& p, const Finish& f);
std::int64_t scratch_bytes(const KernelSet& set, const Problem& p);

/// Bytes of a packed B, and the packing itself. A weight that stays the same over many calls should be packed once.
/// Sets that keep rows (KernelSet::keeps_rows) still pack it in every call, from a copy in f32.
std::int64_t packed_b_bytes(const KernelSet& set, std::int64_t n, std::int64_t k);
void pack_b(const KernelSet& set, Pool& pool, std::byte* dst, const Operand& b, std::int64_t n, std::int64_t k);

/// D = epilogue(A x B) in one pass. `Epilogue` is an epilogue::Into<T, F>; the combinations instantiated in the library
/// are listed at the end of gemm_epilogues.simd.cpp; for others include gemm_kernel.h in a .simd.cpp.
template <class Isa, class Epilogue> void gemm(Isa, Pool& pool, const Problem& p, const Epilogue& e);
template <class Isa, class Epilogue> void gemm_alone(Isa, std::byte* scratch, const Problem& p, const Epilogue& e);
/// The same for u8 x s8: the epilogue receives the s32 sums as floats, unless it ends in Into<std::int32_t>, which
/// stores them.
template <class Isa, class Epilogue> void gemm_int8(Isa, Pool& pool, const Problem& p, const Epilogue& e);

}  // namespace hpcdl::gemm
