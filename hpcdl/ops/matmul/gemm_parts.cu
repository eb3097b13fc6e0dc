#include "hpcdl/ops/matmul/gemm_parts.h"

#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/matmul/plain_gemm.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;

struct Stored {
  std::int64_t rows, cols, matrices;  // as stored in memory
};
Stored stored(const Gemm& g, Side side) {
  const GemmOperand& o = side == Side::a ? g.a : g.b;
  const std::int64_t rows = side == Side::a ? g.m : g.n, matrices = g.batch > 1 && o.batch_stride != 0 ? g.batch : 1;
  const bool along_k = o.transposed == (side == Side::b);
  return along_k ? Stored{rows, g.k, matrices} : Stored{g.k, rows, matrices};
}

/// Elements between rows of a copy.
std::int64_t pitch(const Stored& x, DType d) {
  const std::int64_t line = 128 / dtype_bytes(d);
  return (x.cols + line - 1) / line * line;
}

/// Eight columns of one row per thread.
template <class To, class From>
__global__ void __launch_bounds__(kThreads)
    copy_rows(To* to, std::int64_t to_ld, const From* from, std::int64_t ld, std::int64_t stride, Stored x) {
  const std::int64_t per_row = to_ld / 8, i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= x.matrices * x.rows * per_row) return;
  const std::int64_t row = i / per_row, col = (i - row * per_row) * 8, matrix = row / x.rows, left = x.cols - col;
  const From* p = from + matrix * stride + (row - matrix * x.rows) * ld + col;
  store(to + row * to_ld + col, load<8>(p, left < 8 ? static_cast<int>(left) : 8));
}

/// One element of k per thread, of every row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_by_rows(T* to, std::int64_t to_ld, const T* from, std::int64_t ld, std::int64_t rows, std::int64_t k) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= k) return;
  for (std::int64_t row = 0; row < rows; ++row) to[row * to_ld + i] = from[i * ld + row];
}

/// Four columns of D per thread.
template <class T>
__global__ void __launch_bounds__(kThreads) add_shares(GemmResult o, const float* parts, int splits, std::int64_t m,
                                                       std::int64_t n, std::int64_t ld, std::int64_t quads) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= quads) return;
  const std::int64_t per_row = ld / 4, line = i / per_row, col = (i - line * per_row) * 4, batch = line / m,
                     row = line - batch * m;
  const float* p = parts + (batch * splits * m + row) * ld + col;
  Lanes<4> sum = load<4>(p);
  for (int s = 1; s < splits; ++s) sum = sum + load<4>(p + s * m * ld);
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (col + j < n) finish<T>(o, sum.v[j], row, col + j, batch);
}

/// The pointer advanced by `elements` of `d`, or null if it is null.
template <class T> T* later(T* p, std::int64_t elements, DType d) {
  return p ? reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(p) +
                                  static_cast<std::uintptr_t>(elements * dtype_bytes(d)))
           : nullptr;
}
}  // namespace

std::size_t copied_bytes(const Gemm& g, Side side) {
  const Stored x = stored(g, side);
  return static_cast<std::size_t>((x.matrices * x.rows * pitch(x, g.compute) * dtype_bytes(g.compute) + 1023) / 1024 *
                                  1024);
}

GemmOperand copied_operand(const Gemm& g, Side side, void* to) {
  const Stored x = stored(g, side);
  const std::int64_t ld = pitch(x, g.compute);
  return {to, g.compute, ld, (side == Side::a ? g.a : g.b).transposed, x.matrices > 1 ? x.rows * ld : 0};
}

void copy_operand(Stream& s, const Gemm& g, Side side, const GemmOperand& to) {
  const GemmOperand& o = side == Side::a ? g.a : g.b;
  const Stored x = stored(g, side);
  visit_dtype(g.compute, [&]<class To>() {
    visit_dtype(o.dtype, [&]<class From>() {
      copy_rows<<<blocks_for(x.matrices * x.rows * to.ld / 8, kThreads), kThreads, 0, queue(s)>>>(
          static_cast<To*>(const_cast<void*>(to.data)), to.ld, static_cast<const From*>(o.data), o.ld, o.batch_stride,
          x);
    });
  });
  launched("copy of a matmul's operand");
}

GemmOperand a_by_rows(const Gemm& g, void* to) { return {to, g.a.dtype, pitch({g.m, g.k, 1}, g.a.dtype), false, 0}; }

void copy_a_by_rows(Stream& s, const Gemm& g, const GemmOperand& to) {
  visit_dtype(g.a.dtype, [&]<class T>() {
    copy_by_rows<<<blocks_for(g.k, kThreads), kThreads, 0, queue(s)>>>(
        static_cast<T*>(const_cast<void*>(to.data)), to.ld, static_cast<const T*>(g.a.data), g.a.ld, g.m, g.k);
  });
  launched("copy of a matmul's operand");
}

void add_parts_of(Stream& s, const Gemm& g, const float* parts, int splits, std::int64_t ld) {
  const std::int64_t quads = g.batch * g.m * (ld / 4);
  visit_dtype(g.out.dtype, [&]<class T>() {
    add_shares<T><<<blocks_for(quads, kThreads), kThreads, 0, queue(s)>>>(g.out, parts, splits, g.m, g.n, ld, quads);
  });
  launched("shares of a matmul");
}

Gemm block_of(const Gemm& g, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) {
  Gemm p = g;
  p.m = rows, p.n = cols;
  p.a.data = later(g.a.data, g.a.transposed ? row : row * g.a.ld, g.a.dtype);
  p.b.data = later(g.b.data, g.b.transposed ? col * g.b.ld : col, g.b.dtype);
  p.out.d = later(g.out.d, row * g.out.ld + col, g.out.dtype);
  p.out.z = later(g.out.z, row * g.out.z_ld + col, g.out.dtype);
  p.out.residual = later(g.out.residual, row * g.out.residual_ld + col, g.out.dtype);
  p.out.bias = later(g.out.bias, col, g.out.bias_dtype);
  return p;
}

}  // namespace hpcdl::cuda
