#include "hpcdl/ops/avg_pool2d/avg_pool2d.h"

#include "hpcdl/ops/max_pool2d/pixels.cuh"

namespace hpcdl::cuda {
namespace {

constexpr int kTableWidth = 64, kPixelThreads = 8;

/// Threads (pack of a pixel, pixel): one per pack, and pixels for the rest of the block.
inline dim3 pack_threads(int packs) {
  const int x = packs < kMostThreads ? packs : kMostThreads;
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(kMostThreads / x));
}

/// Block: one row of pixels of y. Each row of a window is summed separately, so that no sum is long.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kMostThreads)
    pool(T* y, const T* x, std::int64_t y_stride, std::int64_t x_stride, Averages w) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.x, image = row / w.h.out;
  const int oh = static_cast<int>(row - image * w.h.out), h0 = w.h.begin(oh), h1 = w.h.end(oh);
  const T* from = x + image * w.h.in * w.w.in * x_stride;
  for_packs<N>(w.w.out, w.channels, [&](int ow, int c, int n) {
    const int w0 = w.w.begin(ow), w1 = w.w.end(ow);
    Lanes<N> sum(0.0f);
    for (int h = h0; h < h1; ++h) {
      Lanes<N> part(0.0f);
      const T* line = from + (h * w.w.in) * x_stride + c;
#pragma unroll 4
      for (int i = w0; i < w1; ++i) part = part + load_pack<kWhole>(line + i * x_stride, n);
      sum = sum + part;
    }
    store_pack<kWhole>(y + (row * w.w.out + ow) * y_stride + c, sum * Lanes<N>(1.0f / w.divisor(oh, ow)), n);
  });
}

/// Large windows. Block: some packs of one pixel of y; threadIdx.y divides the pixels of its window, and the partial
/// sums are added in order.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kWarp* kPixelThreads)
    pool_large(T* y, const T* x, std::int64_t y_stride, std::int64_t x_stride, Averages w) {
  constexpr int N = kLanes<T>;
  __shared__ float memory[kPixelThreads][kWarp][N + 1];
  const std::int64_t pixel = blockIdx.x, row = pixel / w.w.out, image = row / w.h.out;
  const int ow = static_cast<int>(pixel - row * w.w.out), oh = static_cast<int>(row - image * w.h.out);
  const int h0 = w.h.begin(oh), w0 = w.w.begin(ow), width = w.w.end(ow) - w0, count = (w.h.end(oh) - h0) * width;
  const std::int64_t c = (std::int64_t{blockIdx.y} * kWarp + threadIdx.x) * N, left = w.channels - c;
  const int n = static_cast<int>(left < N ? left : N);
  const T* from = x + (image * w.h.in * w.w.in + h0 * w.w.in + w0) * x_stride + c;
  Lanes<N> sum(0.0f);
  if (n > 0) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.y); i < count; i += kPixelThreads) {
      const int h = i / width;
      sum = sum + load_pack<kWhole>(from + (h * w.w.in + i - h * width) * x_stride, n);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) memory[threadIdx.y][threadIdx.x][i] = sum.v[i];
  __syncthreads();
  if (threadIdx.y != 0 || n <= 0) return;
  for (int t = 1; t < kPixelThreads; ++t)
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] += memory[t][threadIdx.x][i];
  store_pack<kWhole>(y + pixel * y_stride + c, sum * Lanes<N>(1.0f / w.divisor(oh, ow)), n);
}

/// Block: up to kTableWidth pixels of one row of dx. The results of its divisions are the same for all channels of a
/// pixel and are kept in a table.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kMostThreads)
    spread(T* dx, const T* dy, std::int64_t dx_stride, std::int64_t dy_stride, Averages w, bool add) {
  constexpr int N = kLanes<T>;
  struct Column {
    int first, last;
    float share;  // of the only window that contains the pixel, if there is just one
  };
  __shared__ Column columns[kTableWidth];
  const std::int64_t row = blockIdx.x, image = row / w.h.in, first = image * w.h.out * w.w.out;
  const int h = static_cast<int>(row - image * w.h.in), h0 = w.h.first(h), h1 = w.h.last(h);
  const int begin = static_cast<int>(blockIdx.y) * kTableWidth,
            width = w.w.in - begin < kTableWidth ? w.w.in - begin : kTableWidth;
  for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < width;
       i += static_cast<int>(blockDim.x * blockDim.y)) {
    const int w0 = w.w.first(begin + i), w1 = w.w.last(begin + i);
    columns[i] = {w0, w1, h1 - h0 == 1 && w1 - w0 == 1 ? 1.0f / w.divisor(h0, w0) : 0.0f};
  }
  __syncthreads();
  const int packs = static_cast<int>((w.channels + N - 1) / N);
  for (int x = static_cast<int>(threadIdx.y); x < width; x += static_cast<int>(blockDim.y)) {
    const Column column = columns[x];
    const bool one = column.share > 0;
    const T* from = dy + (first + std::int64_t{h0} * w.w.out + column.first) * dy_stride;
    T* to = dx + (row * w.w.in + begin + x) * dx_stride;
    for (int p = static_cast<int>(threadIdx.x); p < packs; p += static_cast<int>(blockDim.x)) {
      const int c = p * N, n = static_cast<int>(w.channels - c < N ? w.channels - c : N);
      Lanes<N> sum(0.0f);
      if (one) {
        sum = load_pack<kWhole>(from + c, n) * Lanes<N>(column.share);
      } else {
        for (int oh = h0; oh < h1; ++oh)
          for (int ow = column.first; ow < column.last; ++ow)
            sum = fma(load_pack<kWhole>(dy + (first + oh * w.w.out + ow) * dy_stride + c, n),
                      Lanes<N>(1.0f / w.divisor(oh, ow)), sum);
      }
      store_pack<kWhole>(to + c, sum, n, add);
    }
  }
}

template <class T> bool whole(const Windows& w, const View& x, const View& y) {
  return whole_packs<T>(w.channels, {{x.data(), x.row_stride()}, {y.data(), y.row_stride()}});
}

}  // namespace

void avg_pool2d(Stream& s, Tensor y, View x, const Averages& w) {
  if (y.size() == 0) return;
  constexpr int kLarge = 16;  // pixels of a window that several threads divide
  visit_dtype(x.dtype(), [&]<class T>() {
    const int packs = packs_of(w.channels, kLanes<T>);
    if (w.h.widest() * w.w.widest() >= kLarge && packs <= 65535 * kWarp) {
      const auto kernel = whole<T>(w, x, y) ? pool_large<T, true> : pool_large<T, false>;
      const dim3 grid(blocks_for(w.images * w.h.out * w.w.out, 1), blocks_for(packs, kWarp));
      kernel<<<grid, dim3(kWarp, kPixelThreads), 0, queue(s)>>>(y.ptr<T>(), x.ptr<T>(), y.row_stride(), x.row_stride(),
                                                                w);
      return;
    }
    const auto kernel = whole<T>(w, x, y) ? pool<T, true> : pool<T, false>;
    kernel<<<blocks_for(w.images * w.h.out, 1), threads_for(w.w.out, packs_of(w.channels, kLanes<T>)), 0, queue(s)>>>(
        y.ptr<T>(), x.ptr<T>(), y.row_stride(), x.row_stride(), w);
  });
  launched("avg_pool2d");
}

void avg_pool2d_backward(Stream& s, Grad dx, View dy, const Averages& w) {
  if (dx.size() == 0) return;
  visit_dtype(dx.dtype(), [&]<class T>() {
    const auto kernel = whole<T>(w, dx, dy) ? spread<T, true> : spread<T, false>;
    const dim3 grid(blocks_for(w.images * w.h.in, 1), blocks_for(w.w.in, kTableWidth));
    kernel<<<grid, pack_threads(packs_of(w.channels, kLanes<T>)), 0, queue(s)>>>(
        dx.ptr<T>(), dy.ptr<T>(), dx.row_stride(), dy.row_stride(), w, dx.accumulate());
  });
  launched("avg_pool2d_backward");
}

}  // namespace hpcdl::cuda
