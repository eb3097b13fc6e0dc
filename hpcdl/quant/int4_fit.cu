// The search of int4_fit.simd.cpp with a warp for each group. Sums have another order, so a scale may differ in its
// last bit.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/reduce.cuh"
#include "hpcdl/quant/int4_device.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kTiny = 0x1p-118f, kHuge = 0x1p125f, kLargestBf16 = 0x1.fep127f;

struct Fit {
  std::uint8_t* packed;
  bf16 *scale, *offset;  // offset null: symmetric
  float2* errors;        // (rows, groups): squared error, and squared weights
  const void* w;
  std::int64_t stride, n, k, groups;
  bool search;
};

struct Grid {
  bf16 scale, offset;
};

__device__ bf16 round_up(float v) {
  bf16 out;
  out.bits = static_cast<unsigned short>((__float_as_uint(v) + 0xffffu) >> 16);
  return out;
}

struct Sums {
  float error = 0, p = 0, pp = 0, u = 0, up = 0;
};

/// A group in registers: N of its values in each lane, divided by the largest magnitude.
template <int N> struct Group {
  float u[N];
  float unit, low, high;

  __device__ static float total(float x) { return warp_reduce(x, Sum{}); }
  __device__ static float nearest(float centred, float inverse) {
    return fminf(fmaxf(rintf(centred * inverse), -8.0f), 7.0f);
  }

  __device__ Sums evaluate(Grid grid) const {
    const float step = widen(grid.scale) / unit, o = widen(grid.offset) / unit;
    Sums s;
    if (!(step > 1e-9f || step < -1e-9f)) {
      s.error = __builtin_inff();
      return s;
    }
    const float inverse = 1.0f / step;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float p = nearest(u[i] - o, inverse), d = u[i] - o - p * step;
      s.error = fmaf(d, d, s.error), s.p += p, s.pp = fmaf(p, p, s.pp), s.u += u[i], s.up = fmaf(u[i], p, s.up);
    }
    return {total(s.error), total(s.p), total(s.pp), total(s.u), total(s.up)};
  }

  /// Every weight is within half a step.
  __device__ Grid covering(bool symmetric) const {
    const float below = low < 0 ? -low : 0, above = high > 0 ? high : 0;
    if (symmetric || unit > kHuge) {
      const bool flip = symmetric && above > below;
      const float big = flip ? above : below, small = flip ? below : above;
      bf16 scale = round_up(fminf(fmaxf(big / 8, small / 7.5f), kLargestBf16 / 8));
      if (flip) scale.bits |= 0x8000;
      return {scale, narrow<bf16>(0.0f)};
    }
    const float range = widen(round_up((high - low) / 15));
    const bf16 offset = narrow<bf16>(low + 8 * range);
    const float cover = fmaxf((high - widen(offset)) / 7.5f, (widen(offset) - low) / 8.5f), step = fmaxf(cover, range);
    return {round_up(step > kTiny / 8 ? step : 0.0f), offset};
  }

  __device__ Grid refit(const Sums& s, Grid old, bool symmetric) const {
    constexpr float n = N * kWarp;
    if (symmetric) return {s.pp > 0 ? narrow<bf16>(s.up / s.pp * unit) : old.scale, old.offset};
    const float spread = n * s.pp - s.p * s.p;
    if (!(spread > 0)) return old;
    const float scale = (n * s.up - s.u * s.p) / spread, offset = (s.u - scale * s.p) / n;
    return {narrow<bf16>(scale * unit), narrow<bf16>(offset * unit)};
  }

  __device__ Grid search(Grid start, bool symmetric) const {
    Sums sums = evaluate(start);
    Grid best = start;
    const auto consider = [&](Grid grid) {
      const Sums s = evaluate(grid);
      if (s.error < sums.error) sums = s, best = grid;
    };
    const float scale = widen(start.scale), middle = low + (high - low) * 0.5f;
    for (int i = -3; i <= 12; ++i) {
      const bf16 s = narrow<bf16>(scale * (1.0f - 0.025f * static_cast<float>(i)));
      consider({s, symmetric ? start.offset : narrow<bf16>(middle + 0.5f * widen(s))});
    }
    for (int i = 0; i < 3; ++i) consider(refit(sums, best, symmetric));
    return best;
  }
};

template <class T, int N> __global__ void __launch_bounds__(kThreads) fit_groups(Fit f) {
  const std::int64_t index = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp, row = index / f.groups,
                     g = index % f.groups;
  if (row >= f.n) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* from = static_cast<const T*>(f.w) + row * f.stride + g * N * kWarp;
  float w[N];
  Group<N> group{{}, 0, __builtin_inff(), -__builtin_inff()};
  float poison = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    w[i] = widen(from[i * kWarp + lane]);
    group.low = fminf(group.low, w[i]), group.high = fmaxf(group.high, w[i]), poison += w[i] * 0.0f;
  }
  group.low = -warp_reduce(-group.low, Max{}), group.high = warp_reduce(group.high, Max{}),
  poison = warp_reduce(poison, Sum{});
  group.unit = fmaxf(group.high, -group.low);
  Grid grid{narrow<bf16>(poison), narrow<bf16>(0.0f)};
  if (poison == 0 && group.unit >= kTiny) {
    const float inverse = 1.0f / group.unit;
#pragma unroll
    for (int i = 0; i < N; ++i) group.u[i] = w[i] * inverse;
    grid = group.covering(!f.offset);
    if (f.search && group.unit < kHuge) grid = group.search(grid, !f.offset);
  }
  const std::int64_t tile = row / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(tile, f.n), r = row - tile;
  const float step = widen(grid.scale), o = widen(grid.offset), inverse = step != 0 ? 1.0f / step : 0.0f,
              per_unit = 1.0f / (group.unit > 0 ? group.unit : 1.0f);
  float squared = poison, origin = 0;  // NaN stays
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float p = Group<N>::nearest(w[i] - o, inverse), e = (w[i] - fmaf(p, step, o)) * per_unit, x = w[i] * per_unit;
    squared = fmaf(e, e, squared), origin = fmaf(x, x, origin);
    const unsigned q = static_cast<unsigned>(static_cast<int>(p) + 8), behind = __shfl_down_sync(0xffffffffu, q, 4);
    if (lane % 8 < 4)
      f.packed[int4::packed_at(tile, f.k) + int4::byte_of(rows, r, (g * N + i) * kWarp + lane)] =
          static_cast<std::uint8_t>(q | behind << 4);
  }
  squared = warp_reduce(squared, Sum{}), origin = warp_reduce(origin, Sum{});
  if (lane != 0) return;
  f.scale[int4::scale_at(tile, f.groups) + g * rows + r] = grid.scale;
  if (f.offset) f.offset[int4::scale_at(tile, f.groups) + g * rows + r] = grid.offset;
  f.errors[index] = {squared * group.unit * group.unit, origin * group.unit * group.unit};
}

}  // namespace

void quantize_int4(Stream& s, const int4::Weight& to, Tensor errors, View w, bool search) {
  if (w.size() == 0) return;
  Fit f{const_cast<std::uint8_t*>(to.packed.ptr<std::uint8_t>()),
        const_cast<bf16*>(to.scale.ptr<bf16>()),
        to.offset ? const_cast<bf16*>(to.offset.ptr<bf16>()) : nullptr,
        errors.ptr<float2>(),
        w.data(),
        w.row_stride(),
        to.n(),
        to.k(),
        to.groups(),
        search};
  const unsigned blocks = blocks_for(to.n() * to.groups(), kThreads / kWarp);
  visit_dtype(w.dtype(), [&]<class T>() {
    switch (to.group()) {
      case 32: return fit_groups<T, 1><<<blocks, kThreads, 0, queue(s)>>>(f);
      case 64: return fit_groups<T, 2><<<blocks, kThreads, 0, queue(s)>>>(f);
      default: return fit_groups<T, 4><<<blocks, kThreads, 0, queue(s)>>>(f);
    }
  });
  launched("int4_quantize");
}

}  // namespace hpcdl::cuda
