// y of f32 images with few channels, as read by a network's first layer, and of 16-bit ones whose number of filters is
// not a multiple of eight, if there are so few of them that a padded copy of y would take longer. A sum has so few terms (taps x I) that padding them for the tensor cores costs more than
// computing the sums on the CUDA cores: 26 us against 43 for 128 images of 32 x 32 x 3, 64 filters of 3 x 3 and f32 on
// an H200, and 31 by products of parts. With 147 terms padding is faster. The terms of pixels are gathered into shared
// memory, where each is read for all filters.

#include <algorithm>

#include "hpcdl/ops/conv2d/implicit_gemm_tiles.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kFilters = 64, kFiltersApart = kFilters + 4, kPixels = 128,
              kMostTerms = 64;  // filters per block, pixels per iteration

struct FewChannels {
  Gather x;
  const void *images, *w;
  DType w_dtype;
  int filters, terms, turns;
  ConvResult out;
};

template <class T>
__device__ float term_at(const FewChannels& p, const Gather::Pixel& pixel, const Gather::Term& term) {
  const std::int64_t at = p.x.offset(pixel, term);
  return at < 0 ? 0.0f : widen(static_cast<const T*>(p.images)[at]);
}

/// A thread: eight pixels x four filters per iteration. blockIdx.y: 64 filters; a block iterates over groups of pixels.
template <class T> __global__ void __launch_bounds__(kThreads, 3) few_forward(const __grid_constant__ FewChannels p) {
  extern __shared__ __align__(16) float memory[];
  float *const w = memory, *const x = w + p.terms * kFiltersApart;  // (terms, filters), (terms, pixels)
  __shared__ Gather::Term terms[kMostTerms];
  const int thread = static_cast<int>(threadIdx.x), filter0 = static_cast<int>(blockIdx.y) * kFilters,
            filter = thread % 16 * 4, pixel0 = thread / 16 * 8;
  for (int i = thread; i < kFilters * p.terms; i += kThreads) {
    const int o = i / p.terms, k = i - o * p.terms;
    w[k * kFiltersApart + o] = filter0 + o < p.filters
                                   ? widen(narrow<T>(fetch(p.w, p.w_dtype, std::int64_t{filter0 + o} * p.terms + k)))
                                   : 0.0f;
  }
  for (int k = thread; k < p.terms; k += kThreads) terms[k] = p.x.term(k);
  const int exist = ::max(0, ::min(4, p.filters - filter0 - filter));
  Lanes<4> bias(0.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (p.out.bias.data && i < exist) bias.v[i] = fetch(p.out.bias.data, p.out.bias.dtype, filter0 + filter + i);
  for (int turn = static_cast<int>(blockIdx.x); turn < p.turns; turn += static_cast<int>(gridDim.x)) {
    __syncthreads();  // the terms have arrived, and those of the last iteration have been read
    const auto pixel = p.x.pixel(turn * kPixels + thread % kPixels);
#pragma unroll 4
    for (int k = thread / kPixels; k < p.terms; k += kThreads / kPixels)
      x[k * kPixels + thread % kPixels] = term_at<T>(p, pixel, terms[k]);
    __syncthreads();
    float acc[8][4] = {};
#pragma unroll 3
    for (int k = 0; k < p.terms; ++k) {
      const float4 f = *reinterpret_cast<const float4*>(w + k * kFiltersApart + filter);
      const float4* from = reinterpret_cast<const float4*>(x + k * kPixels + pixel0);
      const float4 a = from[0], b = from[1];
      const float of_pixel[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, of_filter[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[j][i] = fmaf(of_pixel[j], of_filter[i], acc[j][i]);
    }
    if (exist == 0) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int m = turn * kPixels + pixel0 + j;
      if (m >= p.x.pixels()) break;
      T* const to = static_cast<T*>(p.out.d) + std::int64_t{m} * p.filters + filter0 + filter;
      auto v = map<4>([&](int i) { return acc[j][i]; }) + bias;
      if (p.out.accumulate) v = v + load<4>(to, exist);
      store(to, v, exist);
    }
  }
}

template <class T> void forward(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const FewChannels p{.x = gather_of_x(g),
                      .images = c.x.data,
                      .w = c.w.data,
                      .w_dtype = c.w.dtype,
                      .filters = narrow_int(g.o),
                      .terms = narrow_int(g.k()),
                      .turns = tiles_of(g.pixels(), kPixels),
                      .out = result_of(c, g.o)};
  const int bytes = p.terms * (kFiltersApart + kPixels) * 4, blocks_y = tiles_of(p.filters, kFilters);
  check(cudaFuncSetAttribute(few_forward<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "conv2d");
  const int resident = 3 * multiprocessors(s);
  few_forward<T><<<dim3(static_cast<unsigned>(std::min(p.turns, std::max(1, resident / blocks_y))),
                        static_cast<unsigned>(blocks_y)),
                   kThreads, bytes, queue(s)>>>(p);
  launched("conv2d");
}

}  // namespace

bool few_channels(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const bool few = g.i < 16 / dtype_bytes(c.compute) && g.k() <= kMostTerms && g.pixels() > 0;
  if (c.compute != DType::f32 && g.flops() >= 1 << 28) return false;
  if (c.pass != ConvPass::forward || !few || c.x.dtype != c.compute || c.out_dtype != c.compute) return false;
  visit_dtype(c.compute, [&]<class T>() { forward<T>(s, c); });
  return true;
}

}  // namespace hpcdl::cuda
