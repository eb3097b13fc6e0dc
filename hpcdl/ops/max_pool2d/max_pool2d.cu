#include "hpcdl/ops/max_pool2d/max_pool2d.h"

#include "hpcdl/ops/max_pool2d/pixels.cuh"

namespace hpcdl::cuda {
namespace {

/// Stores N bytes, in one access if kWhole.
template <int N, bool kWhole> __device__ void store_bytes(std::uint8_t* p, const int (&v)[N], int n) {
  if constexpr (kWhole) {
    unsigned w[N / 4];
#pragma unroll
    for (int i = 0; i < N / 4; ++i)
      w[i] = static_cast<unsigned>(v[4 * i] | v[4 * i + 1] << 8 | v[4 * i + 2] << 16 | v[4 * i + 3] << 24);
    if constexpr (N == 8) *reinterpret_cast<uint2*>(p) = make_uint2(w[0], w[1]);
    else *reinterpret_cast<unsigned*>(p) = w[0];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < n) p[i] = static_cast<std::uint8_t>(v[i]);
  }
}
template <int N, bool kWhole> __device__ void load_bytes(int (&v)[N], const std::uint8_t* p, int n) {
  if constexpr (kWhole) {
    unsigned w[N / 4];
    if constexpr (N == 8) {
      const uint2 q = *reinterpret_cast<const uint2*>(p);
      w[0] = q.x, w[1] = q.y;
    } else {
      w[0] = *reinterpret_cast<const unsigned*>(p);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = static_cast<int>(w[i / 4] >> (i % 4 * 8) & 255u);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = i < n ? p[i] : 0;
  }
}

/// Block: one row of pixels of y.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kMostThreads)
    pool(T* y, std::uint8_t* which, const T* x, std::int64_t y_stride, std::int64_t x_stride, Windows w) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.x, image = row / w.h.out;
  const int oh = static_cast<int>(row - image * w.h.out), h0 = w.h.begin(oh), h1 = w.h.end(oh);
  const T* from = x + image * w.h.in * w.w.in * x_stride;
  for_packs<N>(w.w.out, w.channels, [&](int ow, int c, int n) {
    const int w0 = w.w.begin(ow), w1 = w.w.end(ow);
    auto best = load_pack<kWhole>(from + (h0 * w.w.in + w0) * x_stride + c, n);
    int place[N] = {}, at = 0;
    for (int h = h0; h < h1; ++h)
      for (int i = w0; i < w1; ++i, ++at) {
        const auto v = load_pack<kWhole>(from + (h * w.w.in + i) * x_stride + c, n);
#pragma unroll
        for (int k = 0; k < N; ++k)
          if (!(v.v[k] <= best.v[k]) && best.v[k] == best.v[k])
            best.v[k] = v.v[k], place[k] = at;  // NaN in v replaces best, NaN in best stays
      }
    const std::int64_t pixel = row * w.w.out + ow;
    store_pack<kWhole>(y + pixel * y_stride + c, best, n);
    if (which) store_bytes<N, kWhole>(which + pixel * w.channels + c, place, n);
  });
}

/// Block: one row of pixels of dx, each summed over the windows that contain it, in order.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kMostThreads)
    scatter(T* dx, const std::uint8_t* which, const T* dy, std::int64_t dx_stride, std::int64_t dy_stride, Windows w,
            bool add) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.x, image = row / w.h.in, first = image * w.h.out * w.w.out;
  const int h = static_cast<int>(row - image * w.h.in), h0 = w.h.first(h), h1 = w.h.last(h);
  for_packs<N>(w.w.in, w.channels, [&](int x, int c, int n) {
    const int w0 = w.w.first(x), w1 = w.w.last(x);
    Lanes<N> sum(0.0f);
    for (int oh = h0; oh < h1; ++oh)
      for (int ow = w0; ow < w1; ++ow) {
        const int begin = w.w.begin(ow), place = (h - w.h.begin(oh)) * (w.w.end(ow) - begin) + x - begin;
        const std::int64_t pixel = first + oh * w.w.out + ow;
        int at[N];
        load_bytes<N, kWhole>(at, which + pixel * w.channels + c, n);
        const auto d = load_pack<kWhole>(dy + pixel * dy_stride + c, n);
        sum = sum + map<N>([&](int k) { return at[k] == place ? d.v[k] : 0.0f; });
      }
    store_pack<kWhole>(dx + (row * w.w.in + x) * dx_stride + c, sum, n, add);
  });
}

/// Adjacent windows that cover every pixel. Block: one row of pixels of dy, each read once and written to the kernel x
/// kernel pixels of its window.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kMostThreads)
    scatter_windows(T* dx, const std::uint8_t* which, const T* dy, std::int64_t dx_stride, std::int64_t dy_stride,
                    Windows w) {
  constexpr int N = kLanes<T>;
  const std::int64_t row = blockIdx.x, image = row / w.h.out;
  const int oh = static_cast<int>(row - image * w.h.out), side_h = w.h.kernel, side_w = w.w.kernel;
  for_packs<N>(w.w.out, w.channels, [&](int ow, int c, int n) {
    const std::int64_t pixel = row * w.w.out + ow;
    int at[N];
    load_bytes<N, kWhole>(at, which + pixel * w.channels + c, n);
    const auto d = load_pack<kWhole>(dy + pixel * dy_stride + c, n);
    T* to = dx + ((image * w.h.in + oh * side_h) * w.w.in + ow * side_w) * dx_stride + c;
    for (int h = 0; h < side_h; ++h)
      for (int x = 0; x < side_w; ++x) {
        const int place = h * side_w + x;
        store_pack<kWhole>(to + (std::int64_t{h} * w.w.in + x) * dx_stride,
                           map<N>([&](int k) { return at[k] == place ? d.v[k] : 0.0f; }), n);
      }
  });
}

bool side_by_side(const WindowAxis& a) {
  return a.kernel > 0 && a.kernel == a.stride && a.pad == 0 && a.in == a.out * a.kernel;
}

/// Whether packs of x, y and the corresponding indices can be accessed as a whole.
template <class T> bool whole(const Windows& w, const View& x, const View& y, const View& which) {
  return whole_packs<T>(w.channels, {{x.data(), x.row_stride()}, {y.data(), y.row_stride()}}) &&
         reinterpret_cast<std::uintptr_t>(which.data()) % 8 == 0;
}

}  // namespace

void max_pool2d(Stream& s, Tensor y, Tensor which, View x, const Windows& w) {
  if (y.size() == 0) return;
  visit_dtype(x.dtype(), [&]<class T>() {
    const auto kernel = whole<T>(w, x, y, which) ? pool<T, true> : pool<T, false>;
    kernel<<<blocks_for(w.images * w.h.out, 1), threads_for(w.w.out, packs_of(w.channels, kLanes<T>)), 0, queue(s)>>>(
        y.ptr<T>(), which ? which.ptr<std::uint8_t>() : nullptr, x.ptr<T>(), y.row_stride(), x.row_stride(), w);
  });
  launched("max_pool2d");
}

void max_pool2d_backward(Stream& s, Grad dx, View which, View dy, const Windows& w) {
  if (dx.size() == 0) return;
  visit_dtype(dx.dtype(), [&]<class T>() {
    if (side_by_side(w.h) && side_by_side(w.w) && !dx.accumulate()) {
      const auto kernel = whole<T>(w, dx, dy, which) ? scatter_windows<T, true> : scatter_windows<T, false>;
      kernel<<<blocks_for(w.images * w.h.out, 1), threads_for(w.w.out, packs_of(w.channels, kLanes<T>)), 0, queue(s)>>>(
          dx.ptr<T>(), which.ptr<std::uint8_t>(), dy.ptr<T>(), dx.row_stride(), dy.row_stride(), w);
      return;
    }
    const auto kernel = whole<T>(w, dx, dy, which) ? scatter<T, true> : scatter<T, false>;
    kernel<<<blocks_for(w.images * w.h.in, 1), threads_for(w.w.in, packs_of(w.channels, kLanes<T>)), 0, queue(s)>>>(
        dx.ptr<T>(), which.ptr<std::uint8_t>(), dy.ptr<T>(), dx.row_stride(), dy.row_stride(), w, dx.accumulate());
  });
  launched("max_pool2d_backward");
}

}  // namespace hpcdl::cuda
