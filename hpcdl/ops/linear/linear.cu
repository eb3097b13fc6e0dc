#include "hpcdl/ops/linear/linear.h"

#include "hpcdl/cuda/columns.h"
#include "hpcdl/cuda/element.h"
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
  void* dbias;
  DType bias_dtype;
  bool add_bias;
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

/// dz = dy act'(z), dresidual (+)= dy, dbias (+)= column sums of dz. A block owns its columns, so their sums have one order.
template <class T> __global__ void __launch_bounds__(kColumnThreads* kRowThreads) one_pass(OnePass o) {
  constexpr int N = kLanes<T>;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * N;
  const int n = static_cast<int>(o.cols - col < N ? o.cols - col : N);
  Lanes<N> sum(0.0f);
  if (n > 0)
    for (std::int64_t r = threadIdx.y; r < o.rows; r += kRowThreads) {
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
  if (!o.dbias) return;
  sum = sum_over_row_threads(sum);
  if (threadIdx.y != 0 || n <= 0) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < n) put(o.dbias, o.bias_dtype, col + i, o.add_bias ? sum.v[i] + fetch(o.dbias, o.bias_dtype, col + i) : sum.v[i]);
}

void product(Stream& s, const Grad& d, const GemmOperand& a, const GemmOperand& b, std::int64_t k, DType compute) {
  gemm(s, {.m = d.rows(), .n = d.cols(), .k = k, .compute = compute, .a = a, .b = b,
           .out = {.d = d.data(), .dtype = d.dtype(), .ld = d.row_stride(), .accumulate = d.accumulate()}});
}

}  // namespace

void linear(Stream& s, Tensor y, Tensor z, View x, View w, View bias, View residual, const LinearArgs& a) {
  gemm(s, {.m = x.rows(), .n = y.cols(), .k = x.cols(), .compute = x.dtype(), .a = operand(x, false), .b = operand(w, !a.conv1d),
           .out = {.d = y.data(), .dtype = y.dtype(), .ld = y.row_stride(), .bias = bias.data(), .bias_dtype = bias.dtype(), .z = z.data(),
                   .z_ld = z ? z.row_stride() : 0, .activation = static_cast<GemmActivation>(a.activation), .residual = residual.data(),
                   .residual_ld = residual ? residual.row_stride() : 0}});
}

void linear_backward(Stream& s, const LinearGradients& g, const LinearArgs& a) {
  const bool activated = a.activation != Activation::none;
  if ((g.dbias || g.dresidual || activated) && g.dy.cols() > 0) {
    const OnePass o{g.dy, g.z ? fuse::In(g.z) : fuse::In(), g.dz ? fuse::Out(g.dz) : fuse::Out(), g.dresidual ? fuse::Out(g.dresidual) : fuse::Out(),
                    g.dbias.data(), g.dbias.dtype(), g.dbias.accumulate(), g.dy.rows(), g.dy.cols(), a.activation};
    visit_dtype(g.dy.dtype(), [&]<class T>() {
      one_pass<T><<<blocks_for(o.cols, kColumnThreads * kLanes<T>), dim3(kColumnThreads, kRowThreads), 0, queue(s)>>>(o);
    });
    launched("linear_backward");
  }
  const View dz = activated ? View(g.dz) : g.dy;
  const auto compute = g.x.dtype();
  if (g.dx) product(s, g.dx, operand(dz, false), operand(g.w, a.conv1d), dz.cols(), compute);
  if (g.dw && a.conv1d) product(s, g.dw, operand(g.x, true), operand(dz, false), g.x.rows(), compute);
  else if (g.dw) product(s, g.dw, operand(dz, true), operand(g.x, false), g.x.rows(), compute);
}

}  // namespace hpcdl::cuda
