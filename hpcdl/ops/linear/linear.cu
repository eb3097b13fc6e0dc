#include "hpcdl/ops/linear/linear.h"

#include <algorithm>

#include "hpcdl/cuda/columns.cuh"
#include "hpcdl/cuda/whole_packs.cuh"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/fuse/operand.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {
namespace {

static_assert(static_cast<int>(Activation::gelu_erf) == static_cast<int>(GemmActivation::gelu_erf));

GemmOperand operand(const View& v, bool transposed) { return {v.data(), v.dtype(), v.row_stride(), transposed}; }

struct OnePass {
  fuse::In dy, z;
  fuse::Out dz, dresidual;
  std::int64_t rows, cols;
  Activation activation;
};

template <int N> __device__ Lanes<N> slope(const Lanes<N>& z, Activation a) {
  switch (a) {
    case Activation::relu: return fuse::Relu::slope(z);
    case Activation::gelu_tanh: return fuse::GeluTanh::slope(z);
    case Activation::gelu_erf: return fuse::GeluErf::slope(z);
    default: return Lanes<N>(1.0f);
  }
}

/// dz = dy act'(z), dresidual (+)= dy, and each column's sum of dz over the block's rows to parts[blockIdx.y]. A block
/// covers `rows_per_block` rows of 32 threads' columns; the parts are added in order afterwards.
template <class T>
__global__ void __launch_bounds__(kColumnThreads* kRowThreads)
    one_pass(OnePass o, std::int64_t rows_per_block, float* parts) {
  constexpr int N = kLanes<T>;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * N;
  const std::int64_t first = blockIdx.y * rows_per_block,
                     end = first + rows_per_block < o.rows ? first + rows_per_block : o.rows;
  const int n = static_cast<int>(o.cols - col < N ? o.cols - col : N);
  Lanes<N> sum(0.0f);
  if (n > 0)
#pragma unroll 4
    for (std::int64_t r = first + threadIdx.y; r < end; r += kRowThreads) {
      auto v = load<N>(o.dy.at<T>(r, col), n);
      if (o.dresidual) {
        T* to = o.dresidual.at<T>(r, col);
        store(to, o.dresidual.accumulate ? v + load<N>(static_cast<const T*>(to), n) : v, n);
      }
      if (o.activation != Activation::none) {
        v = v * slope(load<N>(o.z.at<T>(r, col), n), o.activation);
        store(o.dz.at<T>(r, col), v, n);
      }
      sum = sum + v;
    }
  if (!parts) return;
  sum = sum_over_row_threads(sum);
  if (threadIdx.y != 0 || n <= 0) return;
  store(parts + blockIdx.y * o.cols + col, sum, n);
}

/// Only the sums of one_pass(), with the same bits, for rows of whole packs: without branches between them, several
/// loads are in flight.
template <class T>
__global__ void __launch_bounds__(kColumnThreads* kRowThreads, 6)
    column_sums(fuse::In dy, std::int64_t rows, std::int64_t cols, std::int64_t rows_per_block, float* parts) {
  constexpr int N = kLanes<T>;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * N;
  const std::int64_t first = blockIdx.y * rows_per_block,
                     end = first + rows_per_block < rows ? first + rows_per_block : rows;
  Lanes<N> sum(0.0f);
  if (col < cols)
#pragma unroll 4
    for (std::int64_t r = first + threadIdx.y; r < end; r += kRowThreads)
      sum = sum + widen(read_aligned<N>(dy.at<T>(r, col)));
  sum = sum_over_row_threads(sum);
  if (threadIdx.y == 0 && col < cols) store(parts + blockIdx.y * cols + col, sum);
}

/// to[col] (+)= the sum of `shares` parts; every row of threads adds a share of them.
template <class T>
__global__ void __launch_bounds__(kColumnThreads* kRowThreads)
    add_bias_parts(T* to, bool accumulate, const float* parts, int shares, std::int64_t cols) {
  const std::int64_t col = std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  Lanes<1> sum(0.0f);
  if (col < cols)
#pragma unroll 8
    for (int p = static_cast<int>(threadIdx.y); p < shares; p += kRowThreads) sum.v[0] += parts[p * cols + col];
  sum = sum_over_row_threads(sum);
  if (threadIdx.y == 0 && col < cols) to[col] = narrow<T>(accumulate ? widen(to[col]) + sum.v[0] : sum.v[0]);
}

/// Rows per block: enough blocks to fill any GPU, and enough rows per block that adding the parts is cheap.
std::int64_t rows_of_a_block(std::int64_t rows, std::int64_t column_blocks) {
  constexpr std::int64_t kBlocks = 792, kFewest = 4 * kRowThreads;
  const std::int64_t shares = std::max<std::int64_t>(1, kBlocks / column_blocks), wanted = (rows + shares - 1) / shares;
  return std::max(kFewest, (wanted + kRowThreads - 1) / kRowThreads * kRowThreads);
}

void run_one_pass(Stream& s, const OnePass& o, const Grad& dbias, DType dtype) {
  visit_dtype(dtype, [&]<class T>() {
    const unsigned columns = blocks_for(o.cols, kColumnThreads * kLanes<T>);
    std::int64_t rows = rows_of_a_block(o.rows, columns);
    const std::int64_t most =
        std::min<std::int64_t>(65535, static_cast<std::int64_t>(kWorkspaceBytes / 4) / o.cols);  // rows of parts
    rows = std::max(rows, (o.rows + most - 1) / most);
    const unsigned shares = blocks_for(o.rows, rows);
    float* parts = dbias ? static_cast<float*>(workspace(s)) : nullptr;
    const dim3 blocks(columns, shares), threads(kColumnThreads, kRowThreads);
    if (shares > 0 && !o.dresidual && o.activation == Activation::none &&
        whole_packs<T>(o.cols, {{o.dy.data, o.dy.stride}}))
      column_sums<T><<<blocks, threads, 0, queue(s)>>>(o.dy, o.rows, o.cols, rows, parts);
    else if (shares > 0) one_pass<T><<<blocks, threads, 0, queue(s)>>>(o, rows, parts);
    launched("linear_backward");
    if (!dbias) return;
    visit_dtype(dbias.dtype(), [&]<class B>() {
      add_bias_parts<<<blocks_for(o.cols, kColumnThreads), dim3(kColumnThreads, kRowThreads), 0, queue(s)>>>(
          dbias.ptr<B>(), dbias.accumulate(), parts, static_cast<int>(shares), o.cols);
    });
    launched("linear_backward");
  });
}

/// If `z` is given, d is multiplied by the derivative of `activation` at z.
void product(Stream& s, const Grad& d, const GemmOperand& a, const GemmOperand& b, std::int64_t k, DType compute,
             const View& z = {}, Activation activation = Activation::none) {
  gemm(s, {.m = d.rows(),
           .n = d.cols(),
           .k = k,
           .compute = compute,
           .a = a,
           .b = b,
           .out = {.d = d.data(),
                   .dtype = d.dtype(),
                   .ld = d.row_stride(),
                   .accumulate = d.accumulate(),
                   .activation = static_cast<GemmActivation>(activation),
                   .residual = z.data(),
                   .residual_ld = z ? z.row_stride() : 0,
                   .residual_is_z = static_cast<bool>(z)}});
}

}  // namespace

void linear(Stream& s, Tensor y, Tensor z, View x, View w, View bias, View residual, const LinearArgs& a) {
  gemm(s, {.m = x.rows(),
           .n = y.cols(),
           .k = x.cols(),
           .compute = x.dtype(),
           .a = operand(x, false),
           .b = operand(w, !a.conv1d),
           .out = {.d = y.data(),
                   .dtype = y.dtype(),
                   .ld = y.row_stride(),
                   .bias = bias.data(),
                   .bias_dtype = bias.dtype(),
                   .z = z.data(),
                   .z_ld = z ? z.row_stride() : 0,
                   .activation = static_cast<GemmActivation>(a.activation),
                   .residual = residual.data(),
                   .residual_ld = residual ? residual.row_stride() : 0},
           .constant_b = a.constant_weights});
}

void linear_backward(Stream& s, const LinearGradients& g, const LinearArgs& a) {
  const bool activated = a.activation != Activation::none;
  if ((g.dbias || g.dresidual || activated) && g.dy.cols() > 0) {
    const OnePass o{g.dy,
                    g.z ? fuse::In(g.z) : fuse::In(),
                    g.dz ? fuse::Out(g.dz) : fuse::Out(),
                    g.dresidual ? fuse::Out(g.dresidual) : fuse::Out(),
                    g.dy.rows(),
                    g.dy.cols(),
                    a.activation};
    run_one_pass(s, o, g.dbias, g.dy.dtype());
  }
  const View dz = activated ? View(g.dz) : g.dy;
  const auto compute = g.x.dtype();
  if (g.dx) product(s, g.dx, operand(dz, false), operand(g.w, a.conv1d), dz.cols(), compute, g.x_z, g.x_activation);
  if (g.dw && a.conv1d) product(s, g.dw, operand(g.x, true), operand(dz, false), g.x.rows(), compute);
  else if (g.dw) product(s, g.dw, operand(dz, true), operand(g.x, false), g.x.rows(), compute);
}

}  // namespace hpcdl::cuda
