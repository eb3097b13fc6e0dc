#pragma once
// The GPU kernels of layer_norm and rms_norm (.cu files only): kCentered subtracts the mean.

#include "hpcdl/cuda/columns.h"
#include "hpcdl/cuda/reduce.h"
#include "hpcdl/ops/layer_norm/norm.h"

namespace hpcdl::cuda {

struct NormOperands {
  void *h, *y;
  float *mean, *rstd;
  const void *x, *residual, *gamma, *beta;
  std::int64_t rows, cols, h_stride, y_stride, x_stride, residual_stride;
  float eps;
};

/// A row per kThreads threads; its first kPacks accesses per thread stay in registers, the rest is read again.
template <bool kCentered, class T, class G, int kThreads, int kPacks> __global__ void __launch_bounds__(kThreads) norm_forward(NormOperands o) {
  constexpr int N = kLanes<T>;
  __shared__ float memory[2][kThreads / kWarp];
  const std::int64_t row = blockIdx.x, first = std::int64_t{threadIdx.x} * N;
  const T* x = static_cast<const T*>(o.x) + row * o.x_stride;
  const T* residual = o.residual ? static_cast<const T*>(o.residual) + row * o.residual_stride : nullptr;
  T* h = o.h ? static_cast<T*>(o.h) + row * o.h_stride : nullptr;
  const auto count = [&](std::int64_t at) { return static_cast<int>(o.cols - at < N ? o.cols - at : N); };
  const auto input = [&](std::int64_t at) {
    const auto v = load<N>(x + at, count(at));
    return residual ? v + load<N>(residual + at, count(at)) : v;
  };
  Lanes<N> kept[kPacks];
  /// f(place, values, how many) over the row; only the first sweep reads all of it.
  const auto sweep = [&](bool fresh, auto&& f) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = first + k * kThreads * N;
      if (at >= o.cols) break;
      if (fresh) kept[k] = input(at);
      f(at, kept[k], count(at));
    }
    for (std::int64_t at = first + kPacks * kThreads * N; at < o.cols; at += kThreads * N) f(at, input(at), count(at));
  };
  const float over = 1.0f / static_cast<float>(o.cols);
  float mean = 0;
  if constexpr (kCentered) {
    float part = 0;
    sweep(true, [&](std::int64_t, const Lanes<N>& v, int) { part += sum(v); });  // absent elements are 0
    mean = block_reduce<kThreads>(part, Sum{}, memory[0]) * over;
  }
  float part = 0;
  sweep(!kCentered, [&](std::int64_t, const Lanes<N>& v, int n) {
#pragma unroll
    for (int i = 0; i < N; ++i) part += i < n ? (v.v[i] - mean) * (v.v[i] - mean) : 0.0f;
  });
  const float rstd = 1.0f / sqrtf(block_reduce<kThreads>(part, Sum{}, memory[1]) * over + o.eps);
  if (threadIdx.x == 0) {
    if (kCentered && o.mean) o.mean[row] = mean;
    if (o.rstd) o.rstd[row] = rstd;
  }
  T* y = static_cast<T*>(o.y) + row * o.y_stride;
  sweep(false, [&](std::int64_t at, const Lanes<N>& v, int n) {
    const auto gamma = load<N>(static_cast<const G*>(o.gamma) + at, n);
    auto out = (v - Lanes<N>(mean)) * Lanes<N>(rstd) * gamma;
    if (o.beta) out = out + load<N>(static_cast<const G*>(o.beta) + at, n);
    store(y + at, out, n);
    if (h) store(h + at, v, n);
  });
}

struct NormGradients {
  void *dx, *dresidual;
  const void *h, *dy, *dh, *gamma;
  const float *mean, *rstd;
  float* partial;
  std::int64_t rows, cols, dx_stride, dresidual_stride, h_stride, dy_stride, dh_stride, chunk;
  bool add_dx, add_dresidual;
};

template <bool kCentered, class T, class G, int kThreads, int kPacks> __global__ void __launch_bounds__(kThreads) norm_backward(NormGradients o) {
  constexpr int N = kLanes<T>;
  __shared__ float memory[2][kThreads / kWarp];
  const std::int64_t row = blockIdx.x, first = std::int64_t{threadIdx.x} * N;
  const float mean = kCentered ? o.mean[row] : 0.0f, rstd = o.rstd[row], over = 1.0f / static_cast<float>(o.cols);
  const T* h = static_cast<const T*>(o.h) + row * o.h_stride;
  const T* dy = o.dy ? static_cast<const T*>(o.dy) + row * o.dy_stride : nullptr;
  const T* dh = o.dh ? static_cast<const T*>(o.dh) + row * o.dh_stride : nullptr;
  const auto count = [&](std::int64_t at) { return static_cast<int>(o.cols - at < N ? o.cols - at : N); };
  struct Pair {
    Lanes<N> normal, g;  // (h - mean) rstd, and dy gamma
  };
  const auto pair = [&](std::int64_t at) {
    const int n = count(at);
    const auto g = dy ? load<N>(dy + at, n) * load<N>(static_cast<const G*>(o.gamma) + at, n) : Lanes<N>(0.0f);
    return Pair{(load<N>(h + at, n) - Lanes<N>(mean)) * Lanes<N>(rstd), g};  // absent elements have g = 0
  };
  Pair kept[kPacks];
  float sum_g = 0, sum_gn = 0;
  const auto add = [&](const Pair& p) { sum_g += sum(p.g), sum_gn += sum(p.g * p.normal); };
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t at = first + k * kThreads * N;
    if (at >= o.cols) break;
    add(kept[k] = pair(at));
  }
  for (std::int64_t at = first + kPacks * kThreads * N; at < o.cols; at += kThreads * N) add(pair(at));
  const float mean_g = kCentered ? block_reduce<kThreads>(sum_g, Sum{}, memory[0]) * over : 0.0f;
  const float mean_gn = block_reduce<kThreads>(sum_gn, Sum{}, memory[1]) * over;
  const auto put = [&](std::int64_t at, const Pair& p) {
    const int n = count(at);
    auto v = Lanes<N>(rstd) * (p.g - Lanes<N>(mean_g) - p.normal * Lanes<N>(mean_gn));
    if (dh) v = v + load<N>(dh + at, n);
    const auto out = [&](void* to, std::int64_t stride, bool accumulate) {
      if (!to) return;
      T* place = static_cast<T*>(to) + row * stride + at;
      store(place, accumulate ? v + load<N>(static_cast<const T*>(place), n) : v, n);
    };
    out(o.dx, o.dx_stride, o.add_dx);
    out(o.dresidual, o.dresidual_stride, o.add_dresidual);
  };
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const std::int64_t at = first + k * kThreads * N;
    if (at >= o.cols) break;
    put(at, kept[k]);
  }
  for (std::int64_t at = first + kPacks * kThreads * N; at < o.cols; at += kThreads * N) put(at, pair(at));
}

/// Block (column tile, chunk of rows): partial[chunk][0] of dgamma, [1] of dbeta.
template <bool kCentered, class T> __global__ void __launch_bounds__(kColumnThreads* kRowThreads) norm_columns(NormGradients o) {
  constexpr int N = kLanes<T>;
  const std::int64_t col = (std::int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * N, end = (blockIdx.y + 1) * o.chunk;
  const int n = static_cast<int>(o.cols - col < N ? o.cols - col : N);
  Lanes<N> dgamma(0.0f), dbeta(0.0f);
  if (n > 0 && o.dy)
    for (std::int64_t r = blockIdx.y * o.chunk + threadIdx.y; r < end && r < o.rows; r += kRowThreads) {
      const auto dy = load<N>(static_cast<const T*>(o.dy) + r * o.dy_stride + col, n);
      const auto h = load<N>(static_cast<const T*>(o.h) + r * o.h_stride + col, n);
      dgamma = fma(dy, (h - Lanes<N>(kCentered ? o.mean[r] : 0.0f)) * Lanes<N>(o.rstd[r]), dgamma);
      dbeta = dbeta + dy;
    }
  dgamma = sum_over_row_threads(dgamma);
  dbeta = sum_over_row_threads(dbeta);
  if (threadIdx.y != 0 || n <= 0) return;
  float* to = o.partial + std::int64_t{blockIdx.y} * 2 * o.cols + col;
  store(to, dgamma, n);
  store(to + o.cols, dbeta, n);
}

template <class F> void with_row_threads(std::int64_t packs, F&& f) {
  if (packs <= 32) f.template operator()<32, 1>();
  else if (packs <= 256) f.template operator()<128, 2>();
  else if (packs <= 1024) f.template operator()<256, 4>();
  else f.template operator()<1024, 2>();
}

template <bool kCentered> void run_norm(Stream& s, const NormForward& f, const char* name) {
  const NormOperands o{f.h.data(), f.y.data(), f.mean ? f.mean.ptr<float>() : nullptr, f.rstd ? f.rstd.ptr<float>() : nullptr,
                       f.x.data(), f.residual.data(), f.gamma.data(), f.beta.data(), f.x.rows(), f.x.cols(), f.h ? f.h.row_stride() : 0,
                       f.y.row_stride(), f.x.row_stride(), f.residual ? f.residual.row_stride() : 0, f.eps};
  if (o.rows == 0) return;
  visit_dtype(f.x.dtype(), [&]<class T>() {
    visit_dtype(f.gamma.dtype(), [&]<class G>() {
      with_row_threads((o.cols + kLanes<T> - 1) / kLanes<T>, [&]<int kThreads, int kPacks>() {
        norm_forward<kCentered, T, G, kThreads, kPacks><<<blocks_for(o.rows, 1), kThreads, 0, queue(s)>>>(o);
      });
    });
  });
  launched(name);
}

template <bool kCentered> void run_norm(Stream& s, const NormBackward& b, const char* name) {
  const auto stride = [](const View& v) { return v ? v.row_stride() : std::int64_t{0}; };
  const NormGradients o{b.dx.data(), b.dresidual.data(), b.h.data(), b.dy.data(), b.dh_in.data(), b.gamma.data(),
                        b.mean ? b.mean.ptr<float>() : nullptr, b.rstd.ptr<float>(), b.partial.ptr<float>(), b.h.rows(), b.h.cols(),
                        stride(b.dx), stride(b.dresidual), stride(b.h), stride(b.dy), stride(b.dh_in), norm_chunk_rows(b.h.rows()),
                        b.dx.accumulate(), b.dresidual.accumulate()};
  const std::int64_t chunks = norm_chunks(o.rows);
  visit_dtype(b.h.dtype(), [&]<class T>() {
    if (o.rows > 0 && (b.dx || b.dresidual)) visit_dtype(b.gamma.dtype(), [&]<class G>() {
      with_row_threads((o.cols + kLanes<T> - 1) / kLanes<T>, [&]<int kThreads, int kPacks>() {
        norm_backward<kCentered, T, G, kThreads, kPacks><<<blocks_for(o.rows, 1), kThreads, 0, queue(s)>>>(o);
      });
      launched(name);
    });
    if (o.rows > 0 && (b.dgamma || b.dbeta)) {
      const dim3 grid(blocks_for(o.cols, kColumnThreads * kLanes<T>), static_cast<unsigned>(chunks));
      norm_columns<kCentered, T><<<grid, dim3(kColumnThreads, kRowThreads), 0, queue(s)>>>(o);
      launched(name);
    }
  });
  if (b.dgamma) sum_parts(s, b.dgamma, o.partial, chunks, 2 * o.cols);
  if (b.dbeta) sum_parts(s, b.dbeta, o.partial + o.cols, chunks, 2 * o.cols);
}

}  // namespace hpcdl::cuda
