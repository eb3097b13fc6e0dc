#pragma once
// What stands before and behind the tiles of a product where a kernel needs help: operands brought into a form that the
// copy engine can read, and shares of sums brought together.

#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

/// Elements from one row of shares of sums to the next: rows begin at multiples of 16 bytes.
inline std::int64_t padded(std::int64_t cols) { return (cols + 7) / 8 * 8; }

enum class Side { a, b };
/// Bytes of a copy of an operand of g in g.compute, a multiple of 1024.
std::size_t copied_bytes(const Gemm& g, Side side);
/// The operand as a copy at `to`, whose rows begin at multiples of 128 bytes.
GemmOperand copied_operand(const Gemm& g, Side side, void* to);
/// Makes it.
void copy_operand(Stream& s, const Gemm& g, Side side, const GemmOperand& to);

/// D from `splits` shares of its sums per matrix: (batch, splits, m, ld) f32, added in order.
void add_parts_of(Stream& s, const Gemm& g, const float* parts, int splits, std::int64_t ld);

}  // namespace hpcdl::cuda
