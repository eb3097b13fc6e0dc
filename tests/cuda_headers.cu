// Compiled by nvcc, never run: the code that kernels of both devices share must compile, and be usable, with a CUDA
// compiler. The two kernels are the simplest possible drivers of a fused chain and of an epilogue.

#include "hpcdl/device.h"
#include "hpcdl/dtype.h"
#include "hpcdl/ops/fuse/bodies.h"
#include "hpcdl/ops/fuse/chain.h"
#include "hpcdl/ops/matmul/epilogue.h"
#include "hpcdl/rng.h"
#include "hpcdl/shape.h"
#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"

namespace {

using namespace hpcdl;

// The position of a thread in a row-wise chain (on the CPU: fuse::Spot).
template <class T> struct Place {
  std::int64_t row, col;
  __device__ float load(const fuse::In& x) const { return float(*x.at<T>(row, col)); }
  __device__ float load_columns(const fuse::In& x) const { return float(*x.at<T>(0, col)); }
  __device__ void store(const fuse::Out& y, float v) const { *y.at<T>(row, col) = T(v); }
};

template <class T, class... S> __global__ void run_chain(fuse::Store<S...> body, std::int64_t cols) {
  const std::int64_t col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < cols) body(Place<T>{blockIdx.y, col});
}

// The position of a thread in the result of a matrix product.
struct Element {
  std::int64_t row, col;
  template <class T> __device__ float cols(const T* p) const { return float(p[col]); }
  template <class T> __device__ float elem(const T* p, std::int64_t ld) const { return float(p[row * ld + col]); }
};

__global__ void finish(float* d, const bf16* bias, const float* c, std::int64_t ld) {
  const Element at{blockIdx.y, blockIdx.x * blockDim.x + threadIdx.x};
  float acc = d[at.row * ld + at.col];
  acc = epilogue::Bias<bf16>{bias}(acc, at);
  acc = epilogue::Relu{}(acc, at);
  d[at.row * ld + at.col] = epilogue::Residual<float>{c, ld}(acc, at);
}

}  // namespace

void hpcdl_cuda_headers(Tensor y, View x, View bias) {
  const auto c = fuse::chain(fuse::load(x), fuse::add_columns(bias), fuse::gelu());
  run_chain<bf16><<<dim3(1, 1), 32>>>(fuse::Store{y, c}, y.cols());
  finish<<<1, 32>>>(y.ptr<float>(), bias.ptr<bf16>(), x.ptr<float>(), y.cols());
}
