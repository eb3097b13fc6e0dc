#include "hpcdl/ops/batch_norm/batch_norm.h"

#include "hpcdl/ops/batch_norm/blocks.cuh"

namespace hpcdl::cuda {
namespace {

struct Backward {
  void *dx, *dresidual;
  const void *x, *y, *dz;  // dz: dy, or in the second pass what the first stored in dresidual
  const float *mean, *var;
  Parameter weight, bias;
  float *partial, *sums;
  Shares shares;
  std::int64_t cols, dx_stride, dresidual_stride, x_stride, y_stride, dz_stride;
  float eps, count;  // infinite: mean and var are constants; 0: the count is stored after the sums
  bool relu, add_dx;
};

/// The packs of a thread's rows in flight, and dz of one of them. kY: signs come from y. Its f32 packs, besides the
/// others, leave registers for only half the rows.
template <class T, bool kWhole, bool kY> struct Operands {
  static constexpr int N = kPack, kRows = kY && sizeof(T) == 4 ? kUnrolled / 2 : kUnrolled;
  Pack<T, N> x[kRows], dz[kRows], y[kY ? kRows : 1];
  __device__ void bring(const Backward& o, const Place<T, kWhole>& place, std::int64_t r, int k) {
    x[k] = place.load(static_cast<const T*>(o.x), o.x_stride, r);
    dz[k] = place.load(static_cast<const T*>(o.dz), o.dz_stride, r);
    if constexpr (kY) y[k] = place.load(static_cast<const T*>(o.y), o.y_stride, r);
  }
  /// Recomputes the sign as forward did, bit for bit, where y is not available.
  __device__ Lanes<N> masked(const Backward& o, const ChannelLanes<N>& ch, const Lanes<N>& centred, int k) const {
    const auto d = widen(dz[k]);
    if (!o.relu) return d;
    if constexpr (kY) return select(widen(y[k]) > Lanes<N>(0.0f), d, Lanes<N>(0.0f));
    else return select(ch.normalised(centred) > Lanes<N>(0.0f), d, Lanes<N>(0.0f));
  }
};

/// Part p of (parts, 3, C): sum(dz), sum(dz * (x - mean)); dz is stored to dresidual if present.
template <class T, bool kWhole, bool kY> __global__ void __launch_bounds__(kBlockThreads, kBlocks) sums(Backward o) {
  constexpr int N = kPack;
  const Place<T, kWhole> place(o.shares, o.cols, blockIdx.y);
  const ChannelLanes<N> ch(o.mean, o.var, o.weight, o.bias, o.eps, place.col, place.n);
  Lanes<N> sum(0.0f), product(0.0f);
  Operands<T, kWhole, kY> at;
  place.template rows<decltype(at)::kRows>([&](std::int64_t r, int k) { at.bring(o, place, r, k); },
                                           [&](std::int64_t r, int k) {
                                             const auto centred = widen(at.x[k]) - ch.mean,
                                                        dz = at.masked(o, ch, centred, k);
                                             sum = sum + dz, product = fma(dz, centred, product);
                                             if (o.dresidual)
                                               place.store(static_cast<T*>(o.dresidual), o.dresidual_stride, r, dz);
                                           });
  sum_columns(sum, product);
  if (threadIdx.y != 0 || place.n == 0) return;
  float* to = o.partial + std::int64_t{blockIdx.y} * 3 * o.cols + place.col;
  store(to, sum, place.n), store(to + o.cols, product, place.n);
}

/// The destination of a parameter's gradient; null: not requested.
struct To {
  void* data;
  DType dtype;
  bool accumulate;
  explicit To(const Grad& g) : data(g.data()), dtype(g.dtype()), accumulate(g.accumulate()) {}
  __device__ void write(std::int64_t i, float v) const {
    if (data) put(data, dtype, i, accumulate ? fetch(data, dtype, i) + v : v);
  }
};

/// A block processes 32 channels; its warps take every 32nd part, and the warps' sums are added in order. The products
/// are multiplied by 1 / sqrt(var + eps).
__global__ void __launch_bounds__(kWarp* kWarp)
    merge_sums(float* sums, To dweight, To dbias, const float* partial, std::int64_t parts, const float* var, float eps,
               std::int64_t cols) {
  __shared__ float memory[2][kWarp][kWarp + 1];
  const std::int64_t col = std::int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float dz = 0, product = 0;
  if (col < cols) {
#pragma unroll 16
    for (std::int64_t p = threadIdx.y; p < parts; p += kWarp)
      dz += partial[p * 3 * cols + col], product += partial[(p * 3 + 1) * cols + col];
  }
  memory[0][threadIdx.y][threadIdx.x] = dz, memory[1][threadIdx.y][threadIdx.x] = product;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  for (int w = 1; w < kWarp; ++w) dz += memory[0][w][threadIdx.x], product += memory[1][w][threadIdx.x];
  product /= sqrtf(var[col] + eps);
  sums[col] = dz, sums[cols + col] = product;
  dbias.write(col, dz);
  dweight.write(col, product);
}

/// dx = scale * (dz - (sum(dz) + n * sum(dz * n)) / count); starts with the rows that the sums read last.
template <class T, bool kWhole, bool kY>
__global__ void __launch_bounds__(kBlockThreads, kBlocks) gradient(Backward o) {
  constexpr int N = kPack;
  const Place<T, kWhole> place(o.shares, o.cols, gridDim.y - 1 - blockIdx.y);
  if (place.n == 0) return;
  const ChannelLanes<N> ch(o.mean, o.var, o.weight, o.bias, o.eps, place.col, place.n);
  Lanes<N> slope(0.0f), shift(0.0f);
  if (o.count != __builtin_inff()) {
    const float* sums = o.sums + place.col;
    const auto part =
        Lanes<N>(0.0f) - ch.scale / (o.count == 0 ? load<N>(sums + 2 * o.cols, place.n, 1.0f) : Lanes<N>(o.count));
    shift = part * load<N>(sums, place.n);
    slope = part * load<N>(sums + o.cols, place.n) / ch.root;
  }
  Operands<T, kWhole, kY> at;
  place.template rows<decltype(at)::kRows>(
      [&](std::int64_t r, int k) { at.bring(o, place, r, k); },
      [&](std::int64_t r, int k) {
        const auto centred = widen(at.x[k]) - ch.mean, dz = at.masked(o, ch, centred, k);
        if (o.dresidual) place.store(static_cast<T*>(o.dresidual), o.dresidual_stride, r, dz, true);
        if (o.dx)
          place.store(static_cast<T*>(o.dx), o.dx_stride, r, fma(dz, ch.scale, fma(centred, slope, shift)), o.add_dx);
      });
}

Backward operands(const BatchNormBackward& o, const View& dz) {
  const auto stride = [](const View& v) { return v ? v.row_stride() : std::int64_t{0}; };
  return {o.dx.data(),
          nullptr,
          o.x.data(),
          o.y.data(),
          dz.data(),
          o.mean.ptr<float>(),
          o.var.ptr<float>(),
          Parameter(o.weight),
          Parameter(o.bias),
          o.partial.ptr<float>(),
          o.sums.ptr<float>(),
          Shares(0, 0),
          o.x.cols(),
          stride(o.dx),
          stride(o.dresidual),
          stride(o.x),
          stride(o.y),
          stride(dz),
          o.eps,
          0,
          o.relu,
          o.dx && o.dx.accumulate()};
}
template <class T> bool whole(const Backward& b) {
  return whole_packs<T>(b.cols, {{b.x, b.x_stride},
                                 {b.y, b.y_stride},
                                 {b.dz, b.dz_stride},
                                 {b.dx, b.dx_stride},
                                 {b.dresidual, b.dresidual_stride}});
}

}  // namespace

void batch_norm_sums(Stream& s, const BatchNormBackward& o) {
  Backward b = operands(o, o.dy);
  if (o.keeps_dz()) b.dresidual = o.dresidual.data();
  const auto parts = batch_grid(o.x.spec()).parts;
  if (parts > 0) {
    visit_dtype(o.x.dtype(), [&]<class T>() {
      const Grid<T> grid(o.x, parts);
      b.shares = grid.shares;
      const auto kernel = b.relu && b.y ? whole<T>(b) ? sums<T, true, true> : sums<T, false, true>
                          : whole<T>(b) ? sums<T, true, false>
                                        : sums<T, false, false>;
      kernel<<<grid.blocks, grid.threads, 0, queue(s)>>>(b);
    });
    launched("batch_norm_sums");
  }
  merge_sums<<<blocks_for(b.cols, kWarp), dim3(kWarp, kWarp), 0, queue(s)>>>(b.sums, To(o.dweight), To(o.dbias),
                                                                             b.partial, parts, b.var, o.eps, b.cols);
  launched("batch_norm_sums.merge");
}

void batch_norm_gradient(Stream& s, const BatchNormBackward& o, float count) {
  if (o.x.size() == 0 || (!o.dx && (!o.dresidual || o.keeps_dz()))) return;
  Backward b = operands(o, o.keeps_dz() ? View(o.dresidual) : o.dy);
  b.relu = o.relu && !o.keeps_dz();
  if (o.dresidual && !o.keeps_dz()) b.dresidual = o.dresidual.data();
  b.count = count;
  visit_dtype(o.x.dtype(), [&]<class T>() {
    const Grid<T> grid(o.x, elementwise_parts(s, o.x));
    b.shares = grid.shares;
    const auto kernel = b.relu && b.y ? whole<T>(b) ? gradient<T, true, true> : gradient<T, false, true>
                        : whole<T>(b) ? gradient<T, true, false>
                                      : gradient<T, false, false>;
    kernel<<<grid.blocks, grid.threads, 0, queue(s)>>>(b);
  });
  launched("batch_norm_gradient");
}

}  // namespace hpcdl::cuda
