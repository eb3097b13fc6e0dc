#include "hpcdl/ops/conv2d/implicit_gemm.h"

#include <algorithm>

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/device_gather.h"
#include "hpcdl/ops/conv2d/f32_parts.cuh"
#include "hpcdl/ops/conv2d/padded_channels.h"
#include "hpcdl/ops/conv2d/pixel_boxes.cuh"

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

/// Rows of `columns` elements: to[i] (+)= the sum over the shares + bias of the column. Each warp of a block adds every
/// kWarps-th share of the block's elements, and the warps' sums are added in order.
struct Adding {
  void* to;
  DType dtype;
  bool accumulate;
  ConvOperand bias;
  const float* parts;
  int shares;
  unsigned columns;
  std::int64_t size;
};
template <int kWarps> __global__ void __launch_bounds__(kThreads) add_shares(Adding a) {
  constexpr int kElements = kThreads / kWarps;
  __shared__ float sums[kWarps][kElements];
  const int element = static_cast<int>(threadIdx.x) % kElements, warp = static_cast<int>(threadIdx.x) / kElements;
  const std::int64_t i = std::int64_t{blockIdx.x} * kElements + element;
  const unsigned column = static_cast<unsigned>(i) % a.columns;
  const float* from = a.parts + i;
  float sum = 0;
  if (i < a.size)
#pragma unroll 8
    for (int k = warp; k < a.shares; k += kWarps) sum += from[k * a.size];
  if constexpr (kWarps > 1) {
    sums[warp][element] = sum;
    __syncthreads();
    if (warp != 0) return;
    for (int w = 1; w < kWarps; ++w) sum += sums[w][element];
  }
  if (i >= a.size) return;
  if (a.bias.data) sum += fetch(a.bias.data, a.bias.dtype, column);
  put(a.to, a.dtype, i, a.accumulate ? sum + fetch(a.to, a.dtype, i) : sum);
}

std::byte* place(const Stream& s, std::size_t at) { return static_cast<std::byte*>(workspace(s)) + at; }

void run(Stream& s, const Conv& given) {
  const Conv c = with_weight_copied(s, given);
  switch (c.pass) {
    case ConvPass::forward: return implicit_gemm_forward(s, c);
    case ConvPass::data: return implicit_gemm_data(s, c);
    case ConvPass::weight: return implicit_gemm_weight(s, c);
  }
}

/// Small convolutions take less time with elements that are gathered one by one, at a tenth of the speed, than with
/// launches that copy operands so that they are read 16 bytes at a time.
bool worth_copies(const Conv& c) { return c.shape.flops() >= 1 << 22; }

bool few_kernels(Stream& s, const Conv& c) {
  return few_forward(s, c) || narrow_backward_data(s, c) || few_weight(s, c) || few_channels(s, c);
}

/// Images of few channels with numbers of outputs that their kernels need. False if that does not help.
bool few_with_padded_outputs(Stream& s, std::span<const Conv> passes) {
  const Conv& c = passes[0];
  const auto& g = c.shape;
  const Channels to{g.i, whole_units(g.o, 16)};
  const auto fits = [&](const Conv& pass) { return can_pad(pass, to); };
  if (g.i * dtype_bytes(c.compute) >= 16 || !worth_copies(c) || !std::all_of(passes.begin(), passes.end(), fits))
    return false;
  return pad_channels(s, passes, to, [&](std::span<const Conv> padded) {
    return std::all_of(padded.begin(), padded.end(), [&](const Conv& pass) { return few_kernels(s, pass); });
  });
}

/// Without parts, whose operands lie where padded copies do.
void run_kernels(Stream& s, const Conv& c) {
  if (few_kernels(s, c) || few_with_padded_outputs(s, {&c, 1})) return;
  const Channels to = whole_channels(c);
  const bool gathers_elements = c.pass != ConvPass::forward || to.inputs != c.shape.i;
  const auto products = [&](std::span<const Conv> padded) { return run(s, padded[0]), true; };
  if (gathers_elements && worth_copies(c) && can_pad(c, to)) pad_channels(s, {&c, 1}, to, products);
  else run(s, c);
}

}  // namespace

Conv with_weight_copied(Stream& s, const Conv& c) {
  const std::int64_t n = c.shape.o * c.shape.k();
  if (c.pass == ConvPass::weight || c.w.dtype == c.compute || c.w.dtype != DType::f32 ||
      static_cast<std::size_t>(n) * 2 > kConvWeightBytes)
    return c;
  Conv copied = c;
  copied.w = {workspace(s), c.compute};
  visit_dtype(c.compute, [&]<class T>() {
    rounded<<<blocks_for(n, kThreads * 8), kThreads, 0, queue(s)>>>(static_cast<T*>(workspace(s)),
                                                                    static_cast<const float*>(c.w.data), n);
  });
  launched("copy of a convolution's weight");
  return copied;
}

float* conv_parts(const Stream& s) { return reinterpret_cast<float*>(place(s, kConvShares)); }

std::int64_t conv_parts_room(const ConvSums& sums) {
  return static_cast<std::int64_t>((kWorkspaceBytes - kConvShares) / sizeof(float)) / sums.size();
}

void add_conv_shares(Stream& s, const ConvSums& sums, int shares) {
  const auto& c = sums.c;
  const std::int64_t n = sums.size();
  const Adding a{.to = c.out,
                 .dtype = c.out_dtype,
                 .accumulate = c.accumulate,
                 .bias = c.bias,
                 .parts = conv_parts(s),
                 .shares = shares,
                 .columns = static_cast<unsigned>(sums.columns),
                 .size = n};
  const auto add = [&]<int kWarps>() {
    add_shares<kWarps><<<blocks_for(n, kThreads / kWarps), kThreads, 0, queue(s)>>>(a);
  };
  if (shares >= 8) add.operator()<8>();
  else add.operator()<1>();
  launched("shares of a convolution");
}

void implicit_gemm(Stream& s, const Conv& given) {
  const auto& g = given.shape;
  require(
      countable(g), "conv2d",
      "{} images of {} x {} x {} with {} filters of {} x {} are more than one launch can count: use a smaller batch",
      g.n, g.h, g.w, g.i, g.o, g.kh, g.kw);
  if (!conv_in_parts(s, {&given, 1})) run_kernels(s, given);
}

void implicit_gemm_gradients(Stream& s, const Conv& data, const Conv& weight) {
  const Conv both[] = {data, weight};
  if (conv_in_parts(s, both)) return;
  const Conv weight_first[] = {weight, data};  // whose result is not in place before both are computed
  if (few_with_padded_outputs(s, weight_first)) return;
  implicit_gemm(s, data), implicit_gemm(s, weight);
}

}  // namespace hpcdl::cuda
