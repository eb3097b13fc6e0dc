#include "hpcdl/ops/grad_norm/grad_norm.h"

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/many_tensors.cuh"
#include "hpcdl/cuda/reduce.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;
using Table = TensorTable<1, 1000>;

__device__ double block_sum(double x, double* memory) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  if (threadIdx.x % kWarp == 0) memory[threadIdx.x / kWarp] = x;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) sum += memory[i];
  return sum;
}

/// This thread's share of a block of n <= kTensorBlock elements, with four accesses in flight at a time, summed in float.
template <class T> __device__ double squares(const T* x, std::int64_t n) {
  constexpr int N = kLanes<T>, K = 4;
  constexpr std::int64_t kTurn = std::int64_t{kThreads} * N * K;
  static_assert(kTensorBlock % kTurn == 0);
  Lanes<N> acc(0.0f);
#pragma unroll
  for (std::int64_t turn = 0; turn < kTensorBlock; turn += kTurn) {
    Pack<T, N> v[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const std::int64_t at = turn + (k * kThreads + static_cast<int>(threadIdx.x)) * N, left = n - at;
      v[k] = read<N>(x + at, 0, static_cast<int>(left < N ? left : N), T{});
    }
#pragma unroll
    for (int k = 0; k < K; ++k) acc = fma(widen(v[k]), widen(v[k]), acc);
  }
  return static_cast<double>(sum(acc));
}

__global__ void __launch_bounds__(kThreads) block_squares(const __grid_constant__ Table table, double* partial) {
  __shared__ double memory[kThreads / kWarp];
  const TensorShare share(table, kTensorBlock);
  const std::int64_t begin = share.begin, n = share.end - begin;
  double mine = 0;
  switch (static_cast<DType>(table.flags[share.i])) {
    case DType::bf16: mine = squares(static_cast<const bf16*>(table.pointer[0][share.i]) + begin, n); break;
    case DType::f16: mine = squares(static_cast<const f16*>(table.pointer[0][share.i]) + begin, n); break;
    default: mine = squares(static_cast<const float*>(table.pointer[0][share.i]) + begin, n);
  }
  const double sum = block_sum(mine, memory);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// GradNorm::finish() on the device.
__global__ void __launch_bounds__(kThreads)
    finish(const double* partial, std::int64_t blocks, StepParams* p, GradNorm::Args a) {
  __shared__ double memory[kThreads / kWarp];
  double mine = 0;
  for (std::int64_t b = threadIdx.x; b < blocks; b += kThreads) mine += partial[b];
  const double squares = block_sum(mine, memory);
  if (threadIdx.x != 0) return;
  const auto norm = static_cast<float>(::sqrt(squares) * ::fabs(static_cast<double>(p->grad_scale)));
  p->grad_norm = norm;
  p->clip_factor = a.max_norm > 0 ? fminf(1.0f, a.max_norm / (norm + 1e-6f)) : 1.0f;
  if (a.skip_nonfinite) p->skip = isfinite(norm) ? 0 : 1;
}

__global__ void __launch_bounds__(kThreads) add_up(double* total, const double* partial, std::int64_t blocks) {
  __shared__ double memory[kThreads / kWarp];
  double mine = 0;
  for (std::int64_t b = threadIdx.x; b < blocks; b += kThreads) mine += partial[b];
  const double sum = block_sum(mine, memory);
  if (threadIdx.x == 0) *total = sum;
}

std::int64_t blocks_of(const Grad* gradients, std::int64_t count) {
  std::int64_t blocks = 0;
  for (std::int64_t i = 0; i < count; ++i) blocks += tensor_blocks(gradients[i].size());
  return blocks;
}

}  // namespace

void squares_of_blocks(Stream& s, Tensor partial, const Grad* gradients, std::int64_t count) {
  std::int64_t done = 0;
  for_tables<Table>(
      gradients, count, kTensorBlock,
      [](const Grad* g, std::int64_t) { return static_cast<unsigned char>(g->dtype()); },
      [&](const Table& table, unsigned blocks) {
        block_squares<<<blocks, kThreads, 0, queue(s)>>>(table, partial.ptr<double>() + done);
        launched("grad_norm");
        done += blocks;
      });
}

void sum_blocks(Stream& s, Tensor total, View partial) {
  add_up<<<1, kThreads, 0, queue(s)>>>(total.ptr<double>(), partial.ptr<double>(), partial.size());
  launched("grad_norm.sum");
}

void grad_norm(Stream& s, Tensor partial, const Grad* gradients, std::int64_t count, const GradNorm::Args& args) {
  squares_of_blocks(s, partial, gradients, count);
  finish_norm(s, View(partial.data(), {{blocks_of(gradients, count)}, DType::f64}, s.device()), args);
}

void sum_of_squares(Stream& s, Tensor partial, Tensor total, const Grad* gradients, std::int64_t count) {
  squares_of_blocks(s, partial, gradients, count);
  sum_blocks(s, total, View(partial.data(), {{blocks_of(gradients, count)}, DType::f64}, s.device()));
}

void finish_norm(Stream& s, View totals, const GradNorm::Args& args) {
  finish<<<1, kThreads, 0, queue(s)>>>(totals.ptr<double>(), totals.size(), s.kernel_params(), args);
  launched("grad_norm.finish");
}

}  // namespace hpcdl::cuda
