#pragma once
// Only for builds with CUDA.

#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::lab::compare {

/// Two events, and the seconds between them.
class Stopwatch {
 public:
  Stopwatch() {
    cuda::check(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start(cudaStream_t s) { cuda::check(cudaEventRecord(begin_, s), "cudaEventRecord"); }
  double stop(cudaStream_t s) {
    cuda::check(cudaEventRecord(end_, s), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(end_), "a timed kernel");
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace hpcdl::lab::compare
