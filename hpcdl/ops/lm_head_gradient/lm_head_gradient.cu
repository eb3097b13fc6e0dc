#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"

#include <cuda_pipeline.h>

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/cuda/relative_exp.cuh"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/cross_entropy/far_lse.h"
#include "hpcdl/ops/fuse/device.cuh"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 512;
/// 16-byte pieces of a row that a thread keeps in shared memory from the first sweep to the last: rows of up to 53,248
/// 16-bit logits are read once and written once, by two blocks that alternate on a multiprocessor. Elements beyond that
/// are read three times.
constexpr int kHeld = 13;

/// A block replaces one row of logits by (softmax - onehot(target)) * unit in place, and stores its loss.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    loss_and_gradient(T* logits, std::int64_t vocab, std::int64_t pitch, const std::int32_t* targets, float* row_loss,
                      float unit, bool gradient) {
  constexpr int N = kLanes<T>;
  __shared__ float memory[2][kThreads / kWarp];
  T* x = logits + blockIdx.x * pitch;
  const std::int64_t target = targets[blockIdx.x];
  const auto at = [](int k) { return (std::int64_t{k} * kThreads + threadIdx.x) * N; };
  const auto left = [&](int k) { return static_cast<int>(vocab - at(k) < N ? vocab - at(k) : N); };
  if (target < 0) {
    if (threadIdx.x == 0) row_loss[blockIdx.x] = 0;
    for (int k = 0; gradient && at(k) < vocab; ++k) store(x + at(k), Lanes<N>(0.0f), left(k));
    return;
  }
  const float at_target = target < vocab ? widen(x[target]) : __builtin_nanf("");
  constexpr float kInf = __builtin_inff();
  extern __shared__ uint4 held[];
  const auto mine = [&](int k) { return held + k * kThreads + threadIdx.x; };
  const bool aligned = one_access<N>(x);
  float top = -kInf;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (aligned && left(k) >= N) {
      __pipeline_memcpy_async(mine(k), x + at(k), 16);
    } else {
      *mine(k) = __builtin_bit_cast(uint4, read<N>(static_cast<const T*>(x + at(k)), 0, left(k), narrow<T>(-kInf)));
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);  // a thread reads only what it copied itself
  const auto row = [&](int k, auto&& f) { f(k, widen(__builtin_bit_cast(Pack<T, N>, *mine(k)))); };
  const auto sweep = [&](auto&& f) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) row(k, f);
    for (int k = kHeld; at(k) < vocab; ++k) f(k, load<N>(static_cast<const T*>(x + at(k)), left(k), -kInf));
  };
  sweep([&](int, const Lanes<N>& v) { top = fmaxf(top, largest(v)); });
  top = block_reduce<kThreads>(top, Max{}, memory[0]);
  float total = 0;
  sweep([&](int, const Lanes<N>& v) {
#pragma unroll
    for (int i = 0; i < N; ++i) total += relative_exp(v.v[i], top);
  });
  total = block_reduce<kThreads>(total, Sum{}, memory[1]);  // every thread has read the target's logit by now
  const float log_sum = logf(total);
  if (threadIdx.x == 0) row_loss[blockIdx.x] = (top - at_target) + log_sum;
  if (!gradient) return;
  const float shift = top + log_sum, rest = lse_rest(top, log_sum);
  sweep([&](int k, const Lanes<N>& v) {
    if (left(k) > 0)
      store(x + at(k), map<N>([&](int i) {
              return (exp2f(((v.v[i] - shift) - rest) * kLog2e) - (at(k) + i == target ? 1.0f : 0.0f)) * unit;
            }),
            left(k));
  });
}

struct Scale {
  fuse::Out to;
  fuse::In from;
  const float* dloss;
  float unit;
};

template <class From> struct ScaleFrom : Scale {
  template <class At> __device__ void operator()(const At& at) const {
    const float factor = (dloss ? *dloss : 0.0f) / unit;
    at.store(to, at.template load<From>(from) * Lanes<At::N>(factor));
  }
};

GemmOperand whole(const View& v, bool transposed) { return {v.data(), v.dtype(), v.row_stride(), transposed}; }
const void* rows_of(const View& v, std::int64_t row) {
  return static_cast<const std::byte*>(v.data()) + row * v.row_stride() * dtype_bytes(v.dtype());
}

/// Rows of logits. The fastest kernels write whole pieces of 16 bytes: the last few columns are a product of their own.
void logits_of(Stream& s, const Tensor& logits, std::int64_t rows, const GemmOperand& h, const View& w) {
  const std::int64_t vocab = w[0], whole_columns = dtype_bytes(h.dtype) == 2 ? vocab / 8 * 8 : vocab;
  const auto columns = [&](std::int64_t begin, std::int64_t end) {
    gemm(s, {.m = rows,
             .n = end - begin,
             .k = w[1],
             .compute = h.dtype,
             .a = h,
             .b = {rows_of(w, begin), w.dtype(), w.row_stride(), true},
             .out = {.d = static_cast<std::byte*>(logits.data()) + begin * dtype_bytes(h.dtype),
                     .dtype = h.dtype,
                     .ld = LmHeadGradient::pitch(vocab)}});
  };
  columns(0, whole_columns), columns(whole_columns, vocab);
}

}  // namespace

void lm_head_gradient(Stream& s, Tensor loss, Tensor count, Tensor dh, Tensor dw, View h, View w, View targets,
                      Tensor logits, Tensor row_loss) {
  const auto rows = h.rows(), cols = h.cols(), vocab = w[0], block = LmHeadGradient::block(rows, vocab),
             pitch = LmHeadGradient::pitch(vocab);
  const float unit = LmHeadGradient::unit(h.dtype());
  for (std::int64_t at = 0; at < rows; at += block) {
    const auto n = rows - at < block ? rows - at : block;
    const GemmOperand here{rows_of(h, at), h.dtype(), h.row_stride(), false}, d{logits.data(), h.dtype(), pitch, false};
    logits_of(s, logits, n, here, w);
    visit_dtype(h.dtype(), [&]<class T>() {
      constexpr int kBytes = kHeld * kThreads * 16;
      check(cudaFuncSetAttribute(loss_and_gradient<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
            "lm_head_gradient");
      loss_and_gradient<T><<<blocks_for(n, 1), kThreads, kBytes, queue(s)>>>(
          logits.ptr<T>(), vocab, pitch, targets.ptr<std::int32_t>() + at, row_loss.ptr<float>() + at, unit, dh || dw);
    });
    launched("lm_head_gradient");
    if (dh)
      gemm(s, {.m = n,
               .n = cols,
               .k = vocab,
               .compute = h.dtype(),
               .a = d,
               .b = whole(w, false),
               .out = {.d = const_cast<void*>(rows_of(dh, at)), .dtype = dh.dtype(), .ld = dh.row_stride()}});
    auto across = d;
    across.transposed = true;
    if (dw)
      gemm(s, {.m = vocab,
               .n = cols,
               .k = n,
               .compute = h.dtype(),
               .a = across,
               .b = here,
               .out = {.d = dw.data(), .dtype = dw.dtype(), .ld = dw.row_stride(), .accumulate = at > 0}});
  }
  if (rows == 0 && dw.size() > 0)
    check(cudaMemsetAsync(dw.data(), 0, static_cast<std::size_t>(dw.bytes()), queue(s)), "lm_head_gradient");
  cross_entropy_sum(s, loss, count, View(row_loss.data(), Spec{{rows}, DType::f32}, s.device()), targets);
}

void scale_gradient(Stream& s, Grad to, View from, View dloss, float unit) {
  const auto plane = fuse::plane_of(to, from);
  visit_dtype(to.dtype(), [&]<class T>() {
    visit_dtype(from.dtype(), [&]<class From>() {
      fuse::for_each<T>(s, plane, ScaleFrom<From>{{to, from, dloss ? dloss.ptr<float>() : nullptr, unit}},
                        "lm_head_gradient_backward");
    });
  });
}

}  // namespace hpcdl::cuda
