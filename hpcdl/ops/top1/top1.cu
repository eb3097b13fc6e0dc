#include "hpcdl/ops/top1/top1.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;

/// One block: a thread takes a row at a time. Classifiers have few rows and few classes.
template <class T> __global__ void __launch_bounds__(kThreads) count_right(float* correct, const T* logits, std::int64_t stride, std::int64_t rows, std::int64_t cols, const std::int32_t* targets) {
  __shared__ int right[kThreads];
  int mine = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += kThreads) {
    const T* x = logits + r * stride;
    std::int64_t best = -1;
    float largest = -__builtin_inff();
    for (std::int64_t c = 0; c < cols; ++c) {
      const float v = widen(x[c]);
      if (v > largest || (best < 0 && v == largest)) best = c, largest = v;
    }
    mine += best >= 0 && best == targets[r];
  }
  right[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) right[threadIdx.x] += right[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *correct = static_cast<float>(right[0]);
}

}  // namespace

void top1(Stream& s, Tensor correct, View logits, View targets) {
  visit_dtype(logits.dtype(), [&]<class T>() {
    count_right<T><<<1, kThreads, 0, queue(s)>>>(correct.ptr<float>(), logits.ptr<T>(), logits.row_stride(), logits.rows(), logits.cols(), targets.ptr<std::int32_t>());
  });
  launched("top1");
}

}  // namespace hpcdl::cuda
