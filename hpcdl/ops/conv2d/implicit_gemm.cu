#include "hpcdl/ops/conv2d/implicit_gemm.h"

#include <algorithm>

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/device_gather.h"
#include "hpcdl/ops/conv2d/f32_parts.cuh"

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

/// Rows of `columns` elements, the first of `from_columns` in a share: to[i] (+)= the sum over the shares + bias of the
/// column. Each warp of a block adds every kWarps-th share of the block's elements, and the warps' sums are added in
/// order.
struct Adding {
  void* to;
  DType dtype;
  bool accumulate;
  ConvOperand bias;
  const float* parts;
  int shares;
  unsigned columns, from_columns;
  std::int64_t size, share_size;
};
template <int kWarps> __global__ void __launch_bounds__(kThreads) add_shares(Adding a) {
  constexpr int kElements = kThreads / kWarps;
  __shared__ float sums[kWarps][kElements];
  const int element = static_cast<int>(threadIdx.x) % kElements, warp = static_cast<int>(threadIdx.x) / kElements;
  const std::int64_t i = std::int64_t{blockIdx.x} * kElements + element;
  const unsigned row = static_cast<unsigned>(i) / a.columns, column = static_cast<unsigned>(i) - row * a.columns;
  const float* from = a.parts + std::int64_t{row} * a.from_columns + column;
  float sum = 0;
  if (i < a.size)
#pragma unroll 8
    for (int k = warp; k < a.shares; k += kWarps) sum += from[k * a.share_size];
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

/// Copies pixels of `channels` elements to pixels of kTo * `chunks`, padded with zeros; a thread writes 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads)
    padded(T* to, const void* from, DType dtype, std::int64_t pixels, int channels, int chunks) {
  constexpr int kTo = 16 / sizeof(T);
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= pixels * chunks) return;
  const std::int64_t pixel = i / chunks;
  const int first = static_cast<int>(i - pixel * chunks) * kTo;
  Lanes<kTo> v(0.0f);
#pragma unroll
  for (int k = 0; k < kTo; ++k)
    if (first + k < channels) v.v[k] = fetch(from, dtype, pixel * channels + first + k);
  write_aligned(to + i * kTo, pack<T>(v));
}

void pad(Stream& s, DType type, void* to, const ConvOperand& from, std::int64_t pixels, std::int64_t channels,
         std::int64_t chunks) {
  visit_dtype(type, [&]<class T>() {
    padded<<<blocks_for(pixels * chunks, kThreads), kThreads, 0, queue(s)>>>(
        static_cast<T*>(to), from.data, from.dtype, pixels, narrow_int(channels), narrow_int(chunks));
  });
  launched("padding of a convolution's channels");
}

std::byte* place(const Stream& s, std::size_t at) { return static_cast<std::byte*>(workspace(s)) + at; }

void run(Stream& s, const Conv& c, std::int64_t inputs) {
  switch (c.pass) {
    case ConvPass::forward: return implicit_gemm_forward(s, c);
    case ConvPass::data: return implicit_gemm_data(s, c, c.shape.i);
    case ConvPass::weight: return implicit_gemm_weight(s, c, inputs);
  }
}

/// The gradient of an image would gather elements of w of one channel each. False if a padded copy of w does not help
/// or fit.
bool run_padded_data(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const std::int64_t chunk = 16 / dtype_bytes(c.compute), chunks = (g.i + chunk - 1) / chunk;
  if (c.pass != ConvPass::data || g.i % chunk == 0 || g.o % chunk != 0) return false;
  if (static_cast<std::size_t>(g.o * g.taps() * chunks * 16) > kConvPaddedImages - kConvPaddedWeight) return false;
  Conv p = c;
  p.w = {place(s, kConvPaddedWeight), c.compute};
  pad(s, c.compute, place(s, kConvPaddedWeight), c.w, g.o * g.taps(), g.i, chunks);
  implicit_gemm_data(s, p, chunks * chunk);
  return true;
}

/// Channels of x that take less than 16 bytes, as in the first layer, are gathered one by one, at a tenth of the speed.
/// Uses copies of x and w padded with zero channels, as many images at a time as fit. False if that does not help or
/// fit.
bool run_padded(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const std::int64_t chunk = 16 / dtype_bytes(c.compute), chunks = (g.i + chunk - 1) / chunk,
                     image = g.h * g.w * chunks * 16;
  const std::int64_t images =
      std::min<std::int64_t>(g.n, static_cast<std::int64_t>(kConvShares - kConvPaddedImages) / image);
  if (c.pass == ConvPass::data || g.i % chunk == 0 || images == 0 || g.pixels() == 0) return false;
  if (static_cast<std::size_t>(g.o * g.taps() * chunks * 16) > kConvPaddedImages - kConvPaddedWeight) return false;
  Conv p = c;
  p.shape.i = chunks * chunk;
  if (c.pass == ConvPass::forward) {
    p.w = {place(s, kConvPaddedWeight), c.compute};
    pad(s, c.compute, place(s, kConvPaddedWeight), c.w, g.o * g.taps(), g.i, chunks);
  }
  const auto offset = [](const void* data, std::int64_t elements, DType d) {
    return static_cast<const std::byte*>(data) + elements * dtype_bytes(d);
  };
  for (std::int64_t first = 0; first < g.n; first += images) {
    p.shape.n = std::min(images, g.n - first);
    pad(s, c.compute, place(s, kConvPaddedImages), {offset(c.x.data, first * g.h * g.w * g.i, c.x.dtype), c.x.dtype},
        p.shape.n * g.h * g.w, g.i, chunks);
    p.x = {place(s, kConvPaddedImages), c.compute};
    const std::int64_t pixels = first * g.oh * g.ow * g.o;
    if (c.pass == ConvPass::forward) p.out = const_cast<std::byte*>(offset(c.out, pixels, c.out_dtype));
    else p.dy.data = offset(c.dy.data, pixels, c.dy.dtype), p.accumulate = c.accumulate || first > 0;
    run(s, p, g.i);
  }
  return true;
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
  const std::int64_t n = sums.rows * sums.columns;
  const Adding a{.to = c.out,
                 .dtype = c.out_dtype,
                 .accumulate = c.accumulate,
                 .bias = c.bias,
                 .parts = conv_parts(s),
                 .shares = shares,
                 .columns = static_cast<unsigned>(sums.columns),
                 .from_columns = static_cast<unsigned>(sums.from_columns),
                 .size = n,
                 .share_size = sums.size()};
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
  if (conv_in_parts(s, {&given, 1}) || few_forward(s, given) || narrow_backward_data(s, given) ||
      few_weight(s, given) || few_channels(s, given))
    return;
  const Conv c = with_weight_copied(s, given);
  if (!run_padded(s, c) && !run_padded_data(s, c)) run(s, c, g.i);
}

void implicit_gemm_gradients(Stream& s, const Conv& data, const Conv& weight) {
  const Conv both[] = {data, weight};
  if (conv_in_parts(s, both)) return;
  implicit_gemm(s, data), implicit_gemm(s, weight);
}

}  // namespace hpcdl::cuda
