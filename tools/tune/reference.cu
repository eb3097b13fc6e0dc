#include "tools/tune/reference.h"

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/activations.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::lab::tune {
namespace {

using namespace hpcdl::cuda;

constexpr int kWarps = 8;

__device__ double sum_of_warp(double x) {
  for (int d = kWarp / 2; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

__device__ std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__global__ void __launch_bounds__(256) fill(void* to, DType dtype, std::int64_t n, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * 256) {
    const std::uint64_t r = mixed(seed * 0x10001 + static_cast<std::uint64_t>(i));
    if (dtype == DType::u8 || dtype == DType::i8) static_cast<std::uint8_t*>(to)[i] = static_cast<std::uint8_t>(r);
    // The sum of four uniform numbers: close to a normal one of unit variance.
    else
      cuda::put(to, dtype, i,
                (static_cast<float>(r & 0xffff) + static_cast<float>(r >> 16 & 0xffff) +
                 static_cast<float>(r >> 32 & 0xffff) + static_cast<float>(r >> 48) - 131070.0f) /
                    37837.0f);
  }
}

__global__ void __launch_bounds__(256) pick(double* to, const Sample* at, std::int64_t n, Elements e) {
  const std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < n)
    to[i] = static_cast<double>(fetch(e.data, e.dtype, at[i].batch * e.batch_stride + at[i].row * e.ld + at[i].col));
}

__device__ double rounded(const void* p, DType stored, DType compute, std::int64_t i) {
  const float v = fetch(p, stored, i);
  return static_cast<double>(compute == DType::bf16  ? widen(narrow<bf16>(v))
                             : compute == DType::f16 ? widen(narrow<f16>(v))
                                                     : v);
}

/// A warp computes D[batch, row, col] as defined in device_gemm.h.
__global__ void __launch_bounds__(kWarps* kWarp)
    gemm_elements(double* value, double* size, const Sample* at, std::int64_t n, Gemm g) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (i >= n) return;
  const Sample p = at[i];
  double sum = 0, terms = 0;
  for (std::int64_t k = threadIdx.x % kWarp; k < g.k; k += kWarp) {
    const double a = rounded(g.a.data, g.a.dtype, g.compute,
                             p.batch * g.a.batch_stride + (g.a.transposed ? k * g.a.ld + p.row : p.row * g.a.ld + k));
    const double b = rounded(g.b.data, g.b.dtype, g.compute,
                             p.batch * g.b.batch_stride + (g.b.transposed ? p.col * g.b.ld + k : k * g.b.ld + p.col));
    sum += a * b, terms += fabs(a * b);
  }
  sum = sum_of_warp(sum), terms = sum_of_warp(terms);
  if (threadIdx.x % kWarp != 0) return;
  const GemmResult& o = g.out;
  const auto of = [&](const void* m, DType d, std::int64_t where) { return static_cast<double>(fetch(m, d, where)); };
  const double bias = o.bias ? of(o.bias, o.bias_dtype, p.col) : 0;
  const double residual =
      o.residual ? of(o.residual, o.dtype, p.batch * o.residual_batch_stride + p.row * o.residual_ld + p.col) : 0;
  const double before = o.accumulate ? of(o.d, o.dtype, p.batch * o.batch_stride + p.row * o.ld + p.col) : 0;
  double v = sum * static_cast<double>(o.scale) + bias + (o.residual_inside ? residual : 0);
  v = o.residual_is_z ? v * contract::slope(o.activation, residual)
                      : contract::activated(o.activation, v) + (o.residual_inside ? 0 : residual);
  v += before;
  value[i] = v, size[i] = terms * fabs(static_cast<double>(o.scale)) + fabs(bias) + fabs(residual) + fabs(before);
}

struct Int4Operands {
  const void* x;
  DType x_dtype;
  std::int64_t x_stride;
  const std::uint8_t* packed;
  const bf16 *scale, *offset;
  std::int64_t n, k, group;
  Int4Reference how;
};

/// A warp computes y[row, col].
__global__ void __launch_bounds__(kWarps* kWarp)
    int4_elements(double* value, double* size, const Sample* at, std::int64_t n, Int4Operands o) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (i >= n) return;
  const std::int64_t col = at[i].col, tile = col / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(tile, o.n),
                     groups = o.k / o.group;
  double sum = 0, terms = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t scale_at = int4::scale_at(tile, groups) + g * rows + col - tile;
    const double scale = static_cast<double>(widen(o.scale[scale_at])),
                 offset = o.offset ? static_cast<double>(widen(o.offset[scale_at])) : 0;
    float top = 0;
    for (std::int64_t k = g * o.group + lane; k < (g + 1) * o.group; k += kWarp)
      top = fmaxf(top, fabsf(fetch(o.x, o.x_dtype, at[i].row * o.x_stride + k)));
    for (int d = kWarp / 2; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    const float per_step = top > 0x1p-100f ? 127.0f / top : 0.0f, step = per_step > 0 ? top / 127.0f : 0.0f;
    for (std::int64_t k = g * o.group + lane; k < (g + 1) * o.group; k += kWarp) {
      const float raw = fetch(o.x, o.x_dtype, at[i].row * o.x_stride + k);
      const double x = o.how == Int4Reference::rounded_x
                           ? static_cast<double>(rintf(__fmul_rn(raw, per_step))) * static_cast<double>(step)
                           : static_cast<double>(raw);
      const int q =
          o.packed[int4::packed_at(tile, o.k) + int4::byte_of(rows, col - tile, k)] >> (int4::is_high(k) ? 4 : 0) & 15;
      double w = scale * (q - 8) + offset;
      if (o.how == Int4Reference::rounded_weights) w = static_cast<double>(widen(narrow<bf16>(static_cast<float>(w))));
      sum += w * x, terms += (fabs(scale) * 8 + fabs(offset)) * fabs(x);
    }
  }
  sum = sum_of_warp(sum), terms = sum_of_warp(terms);
  if (lane == 0) value[i] = sum, size[i] = terms;
}

/// Copies n numbers to the device, and back.
struct Doubles {
  OwnedTensor there;
  Doubles(Stream& s, std::size_t n) : there({{static_cast<std::int64_t>(n) * 2}, DType::f32}, s.device()) {}
  double* data() { return reinterpret_cast<double*>(there.tensor.ptr<float>()); }
  std::vector<double> back(Stream& s) const {
    std::vector<double> v(static_cast<std::size_t>(there.tensor.size() / 2));
    copy(s, Tensor(v.data(), there.tensor.spec()), there.tensor);
    return v;
  }
};

struct Samples {
  OwnedTensor there;
  Samples(Stream& s, const std::vector<Sample>& at)
      : there({{std::ssize(at) * static_cast<std::int64_t>(sizeof(Sample) / 4)}, DType::i32}, s.device()) {
    copy(s, there.tensor, View(at.data(), there.tensor.spec()));
  }
  const Sample* data() const { return reinterpret_cast<const Sample*>(there.tensor.ptr<std::int32_t>()); }
};

}  // namespace

void fill_random(Stream& s, Tensor t, std::uint64_t seed) {
  if (t.size() == 0) return;
  fill<<<1024, 256, 0, queue(s)>>>(t.data(), t.dtype(), t.size(), seed);
  launched("tune.fill");
}

std::vector<double> gather(Stream& s, const std::vector<Sample>& at, const Elements& from) {
  Doubles to(s, at.size());
  const Samples where(s, at);
  pick<<<blocks_for(std::ssize(at), 256), 256, 0, queue(s)>>>(to.data(), where.data(), std::ssize(at), from);
  launched("tune.gather");
  return to.back(s);
}

Wanted reference_gemm(Stream& s, const std::vector<Sample>& at, const Gemm& g) {
  Doubles value(s, at.size()), size(s, at.size());
  const Samples where(s, at);
  gemm_elements<<<blocks_for(std::ssize(at), kWarps), kWarps * kWarp, 0, queue(s)>>>(value.data(), size.data(),
                                                                                     where.data(), std::ssize(at), g);
  launched("tune.reference");
  return {value.back(s), size.back(s)};
}

Wanted reference_int4(Stream& s, const std::vector<Sample>& at, View x, const int4::Weight& w, Int4Reference how) {
  Doubles value(s, at.size()), size(s, at.size());
  const Samples where(s, at);
  const Int4Operands o{x.data(),
                       x.dtype(),
                       x.row_stride(),
                       w.packed.ptr<std::uint8_t>(),
                       w.scale.ptr<bf16>(),
                       w.offset ? w.offset.ptr<bf16>() : nullptr,
                       w.n(),
                       w.k(),
                       w.group(),
                       how};
  int4_elements<<<blocks_for(std::ssize(at), kWarps), kWarps * kWarp, 0, queue(s)>>>(value.data(), size.data(),
                                                                                     where.data(), std::ssize(at), o);
  launched("tune.reference");
  return {value.back(s), size.back(s)};
}

}  // namespace hpcdl::lab::tune
