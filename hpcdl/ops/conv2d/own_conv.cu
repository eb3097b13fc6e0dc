#include "hpcdl/ops/conv2d/own_conv.h"

#include "hpcdl/cuda/element.h"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/device_gather.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256;

/// Eight elements per thread.
template <class T> __global__ void __launch_bounds__(kThreads) rounded(T* to, const float* from, std::int64_t n) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (i >= n) return;
  const int left = static_cast<int>(n - i < 8 ? n - i : 8);
  store(to + i, load<8>(from + i, left), left);
}

__global__ void __launch_bounds__(kThreads) add_shares(void* to, DType dtype, bool accumulate, const float* parts, int shares, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  float sum = parts[i];
#pragma unroll 4
  for (int k = 1; k < shares; ++k) sum += parts[k * n + i];
  put(to, dtype, i, accumulate ? sum + fetch(to, dtype, i) : sum);
}

}  // namespace

Conv with_weight_copied(Stream& s, const Conv& c) {
  const std::int64_t n = c.shape.o * c.shape.k();
  if (c.pass == ConvPass::weight || c.w.dtype == c.compute || c.w.dtype != DType::f32 || static_cast<std::size_t>(n) * 2 > kConvWeightBytes) return c;
  Conv copied = c;
  copied.w = {workspace(s), c.compute};
  visit_dtype(c.compute, [&]<class T>() {
    rounded<<<blocks_for(n, kThreads * 8), kThreads, 0, queue(s)>>>(static_cast<T*>(workspace(s)), static_cast<const float*>(c.w.data), n);
  });
  launched("copy of a convolution's weight");
  return copied;
}

void add_conv_shares(Stream& s, const Conv& c, const float* parts, int shares) {
  const std::int64_t n = c.shape.o * c.shape.k();
  add_shares<<<blocks_for(n, kThreads), kThreads, 0, queue(s)>>>(c.out, c.out_dtype, c.accumulate, parts, shares, n);
  launched("shares of a convolution");
}

void own_conv(Stream& s, const Conv& given) {
  const auto& g = given.shape;
  require(countable(g), "conv2d", "{} images of {} x {} x {} with {} filters of {} x {} are more than one launch can count: use a smaller batch", g.n, g.h, g.w, g.i,
          g.o, g.kh, g.kw);
  const Conv c = with_weight_copied(s, given);
  switch (c.pass) {
    case ConvPass::forward: return own_forward(s, c);
    case ConvPass::data: return own_data(s, c);
    case ConvPass::weight: return own_weight(s, c);
  }
}

}  // namespace hpcdl::cuda
