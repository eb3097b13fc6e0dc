#pragma once
// The product for every shape, stride and mix of types (device_gemm.h declares the function that selects a kernel), and
// its epilogue, element by element.

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/ops/fuse/activations.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {

void plain_gemm(Stream& s, const Gemm& g);
/// Its kernel for many rows and columns, in any case: it adds along k in one order.
void plain_tile_gemm(Stream& s, const Gemm& g);

/// At most 16 rows, columns or elements of k, and strides that no tile supports: whether plain_gemm() uses its kernel
/// for that case.
bool fits_small_gemm(const Gemm& g);
void small_gemm(Stream& s, const Gemm& g);

/// g with every address aligned to 16 bytes, for queries about its shape.
Gemm at_whole_addresses(Gemm g);

/// Up to four rows times weights that run along k, one of the two in 16 bits, at any addresses: whether plain_gemm()
/// uses its kernel for that case, which is then the built-in choice.
bool fits_few_rows(const Gemm& g);
void few_rows_gemm(Stream& s, const Gemm& g);

__device__ inline float activate(float v, GemmActivation a) {
  switch (a) {
    case GemmActivation::relu: return fuse::Relu::value(v);
    case GemmActivation::gelu_tanh: return fuse::GeluTanh::value(v);
    case GemmActivation::gelu_erf: return fuse::GeluErf::value(v);
    default: return v;
  }
}

__device__ inline float slope(float z, GemmActivation a) {
  switch (a) {
    case GemmActivation::relu: return fuse::Relu::slope(z);
    case GemmActivation::gelu_tanh: return fuse::GeluTanh::slope(z);
    case GemmActivation::gelu_erf: return fuse::GeluErf::slope(z);
    default: return 1;
  }
}

/// Applies the epilogue to a finished sum and stores it.
template <class T>
__device__ void finish(const GemmResult& o, float acc, std::int64_t row, std::int64_t col, std::int64_t batch) {
  float v = acc * o.scale;
  if (o.bias) v += fetch(o.bias, o.bias_dtype, col);
  const float c =
      o.residual ? widen(static_cast<const T*>(o.residual)[batch * o.residual_batch_stride + row * o.residual_ld + col])
                 : 0.0f;
  if (o.residual_is_z) v *= slope(c, o.activation);
  if (o.residual_inside) v += c;
  if (o.z) static_cast<T*>(o.z)[row * o.z_ld + col] = narrow<T>(v);
  if (!o.residual_is_z) v = activate(v, o.activation);
  if (o.residual && !o.residual_inside && !o.residual_is_z) v += c;
  T* d = static_cast<T*>(o.d) + batch * o.batch_stride + row * o.ld + col;
  *d = narrow<T>(o.accumulate ? v + widen(*d) : v);
}

}  // namespace hpcdl::cuda
