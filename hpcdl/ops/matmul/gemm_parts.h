#pragma once
// Steps before and after the tiles of a product for cases that the kernels do not handle directly: copies of operands
// in a form that the copy engine can read, and the addition of shares of sums.

#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

/// Elements between rows of shares of sums: rows are aligned to 16 bytes.
inline std::int64_t padded(std::int64_t cols) { return (cols + 7) / 8 * 8; }

enum class Side { a, b };
/// Bytes of a copy of an operand of g in g.compute, a multiple of 1024.
std::size_t copied_bytes(const Gemm& g, Side side);
/// Describes the operand as a copy at `to`, whose rows are aligned to 128 bytes.
GemmOperand copied_operand(const Gemm& g, Side side, void* to);
/// Makes that copy.
void copy_operand(Stream& s, const Gemm& g, Side side, const GemmOperand& to);

/// The same for an a of few rows that is stored column by column: its copy is stored row by row.
GemmOperand a_by_rows(const Gemm& g, void* to);
void copy_a_by_rows(Stream& s, const Gemm& g, const GemmOperand& to);

/// Rows [row, row + rows) and columns [col, col + cols) of a product of two matrices.
Gemm block_of(const Gemm& g, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols);

/// D from `splits` shares of its sums per matrix: (batch, splits, m, ld) f32, added in order.
void add_parts_of(Stream& s, const Gemm& g, const float* parts, int splits, std::int64_t ld);

}  // namespace hpcdl::cuda
