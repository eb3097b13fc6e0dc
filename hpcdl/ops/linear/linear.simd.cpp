#include "hpcdl/ops/linear/linear.h"

#include "hpcdl/ops/linear/product.h"
#include "hpcdl/ops/linear/saving.h"
#include "hpcdl/simd/math.h"

namespace hpcdl::cpu {
namespace {

namespace ep = epilogue;

gemm::Operand operand(const View& v, bool transposed) { return {v.data(), v.dtype(), v.row_stride(), transposed}; }

template <class Isa, class T, class TBias, class Act>
void run(Pool& pool, const gemm::Problem& p, Tensor y, Tensor z, View bias, View residual) {
  gemm::gemm(Isa{}, pool, p,
             ep::IntoLinear<T, TBias, Act>{.d = y.ptr<T>(),
                                           .ld = y.row_stride(),
                                           .f = {{bias.ptr<TBias>()},
                                                 {z.ptr<T>(), z ? z.row_stride() : 0},
                                                 {},
                                                 {residual.ptr<T>(), residual ? residual.row_stride() : 0}}});
}

/// Derivative of the activation at z.
template <class Isa> simd::Vec<Isa> slope(Activation act, simd::Vec<Isa> z) {
  using V = simd::Vec<Isa>;
  switch (act) {
    case Activation::relu: return select(z > V(0.0f), V(1.0f), select(z == z, V(0.0f), z));
    case Activation::gelu_tanh: return fuse::GeluTanh::slope(z);
    case Activation::gelu_erf: {
      const V phi = V(0.3989422804f) * simd::exp(V(-0.5f) * z * z), half(0.5f);
      return fma(half, simd::erf(z * V(0.70710678118654752f)), half) + z * phi;
    }
    default: return V(1.0f);
  }
}

constexpr std::int64_t kColumns = 512;  // columns summed at a time, at most

/// One pass over dy: dz = dy act'(z), dresidual (+)= dy, dbias (+)= column sums of dz. Threads divide the columns, so a
/// column is always summed in the order of its rows.
template <class Isa, class T, class TBias> void one_pass(Pool& pool, const LinearGradients& g, Activation act) {
  using V = simd::Vec<Isa>;
  constexpr std::int64_t kAhead = 4;      // rows prefetched ahead: they are too far apart for the hardware prefetcher
  constexpr std::int64_t kTogether = 32;  // columns, at least a cache line
  const std::int64_t rows = g.dy.rows(), cols = g.dy.cols(), threads = pool.threads();
  if (cols == 0) return;
  // The same number of chunks for each thread: with two threads, each of them gets 384 of 768 columns.
  const std::int64_t parts = (cols + kColumns * threads - 1) / (kColumns * threads) * threads;
  const std::int64_t width = (cols + parts * kTogether - 1) / (parts * kTogether) * kTogether;
  const std::int64_t chunks = (cols + width - 1) / width;
  const bool accumulate_bias = g.dbias.accumulate(), accumulate_residual = g.dresidual.accumulate();
  parallel_for(pool, chunks, rows * cols < 8192 ? chunks : 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t c0 = chunk * width, n = cols - c0 < width ? cols - c0 : width;
      float sums[kColumns + V::N] = {};
      for (std::int64_t r = 0; r < rows; ++r) {
        const T* dy = g.dy.ptr<T>() + r * g.dy.row_stride() + c0;
        for (std::int64_t i = 0; i < n; i += V::N) {
          const int k = static_cast<int>(n - i < V::N ? n - i : V::N);
          __builtin_prefetch(dy + i + kAhead * g.dy.row_stride(), 0, 3);
          V v = V::load(dy + i, k);
          if (g.dresidual) {
            T* out = g.dresidual.ptr<T>() + r * g.dresidual.row_stride() + c0 + i;
            (accumulate_residual ? v + V::load(out, k) : v).store(out, k);
          }
          if (act != Activation::none) {
            __builtin_prefetch(g.z.ptr<T>() + (r + kAhead) * g.z.row_stride() + c0 + i, 0, 3);
            __builtin_prefetch(g.dz.ptr<T>() + (r + kAhead) * g.dz.row_stride() + c0 + i, 1, 3);
            v = v * slope<Isa>(act, V::load(g.z.ptr<T>() + r * g.z.row_stride() + c0 + i, k));
            v.store(g.dz.ptr<T>() + r * g.dz.row_stride() + c0 + i, k);
          }
          (V::load(sums + i) + v).store(sums + i);
        }
      }
      if (!g.dbias) continue;
      for (std::int64_t i = 0; i < n; i += V::N) {
        const int k = static_cast<int>(n - i < V::N ? n - i : V::N);
        TBias* out = g.dbias.ptr<TBias>() + c0 + i;
        const V v = V::load(sums + i);
        (accumulate_bias ? v + V::load(out, k) : v).store(out, k);
      }
    }
  });
}

/// Size of a weight's gradient from which it is written with non-temporal stores: the optimizer reads it, and the
/// gradients of all layers do not stay in the caches.
constexpr std::int64_t kCold = 4 << 20;

template <class Isa> void product(Pool& pool, const gemm::Problem& p, const Grad& d, bool cold = false) {
  visit_dtype(d.dtype(), [&]<class T>() {
    gemm::gemm(Isa{}, pool, p,
               ep::Into<T>{.d = d.ptr<T>(), .ld = d.row_stride(), .accumulate = d.accumulate(), .cold = cold});
  });
}

}  // namespace

template <class Isa>
void linear_product(Isa, Pool& pool, const gemm::Problem& p, Tensor y, Tensor z, View bias, View residual,
                    Activation activation) {
  if (z && z.dtype() == DType::f32 && (!bias || bias.dtype() == DType::f32))
    return linear_saving(Isa{}, pool, p, y, z, bias, residual, activation);
  visit_dtype(y.dtype(), [&]<class T>() {
    visit_dtype(bias.dtype(), [&]<class TBias>() {
      switch (activation) {
        case Activation::none: return run<Isa, T, TBias, ep::Identity>(pool, p, y, z, bias, residual);
        case Activation::relu: return run<Isa, T, TBias, ep::Relu>(pool, p, y, z, bias, residual);
        case Activation::gelu_tanh: return run<Isa, T, TBias, ep::GeluTanh>(pool, p, y, z, bias, residual);
        case Activation::gelu_erf: return run<Isa, T, TBias, ep::GeluErf>(pool, p, y, z, bias, residual);
      }
    });
  });
}

template <class Isa>
void linear(Isa isa, Pool& pool, Tensor y, Tensor z, View x, View w, View bias, View residual, const LinearArgs& a,
            const Numerics& numerics) {
  const gemm::Problem p{.m = x.rows(),
                        .n = y.cols(),
                        .k = x.cols(),
                        .compute = gemm::compute_of(x.dtype()),
                        .a = operand(x, false),
                        .b = operand(w, !a.conv1d),
                        .row_invariant = numerics.row_invariant};
  linear_product(isa, pool, p, y, z, bias, residual, a.activation);
}

template <class Isa>
void linear_backward(Isa, Pool& pool, const LinearGradients& g, const LinearArgs& a, const Numerics& numerics) {
  if (g.dbias || g.dresidual || a.activation != Activation::none)
    visit_dtype(g.dy.dtype(), [&]<class T>() {
      visit_dtype(g.dbias.dtype(), [&]<class TBias>() { one_pass<Isa, T, TBias>(pool, g, a.activation); });
    });
  const View dz = a.activation == Activation::none ? g.dy : g.dz;
  const std::int64_t rows = g.x.rows(), n = dz.cols(), k = g.x.cols();
  const auto compute = gemm::compute_of(g.x.dtype());
  if (g.dx)
    product<Isa>(pool,
                 {.m = rows,
                  .n = k,
                  .k = n,
                  .compute = compute,
                  .a = operand(dz, false),
                  .b = operand(g.w, a.conv1d),
                  .row_invariant = numerics.row_invariant},
                 g.dx);
  if (g.dw && a.conv1d)
    product<Isa>(pool,
                 {.m = k, .n = n, .k = rows, .compute = compute, .a = operand(g.x, true), .b = operand(dz, false)},
                 g.dw, g.dw.bytes() >= kCold);
  else if (g.dw)
    product<Isa>(pool,
                 {.m = n, .n = k, .k = rows, .compute = compute, .a = operand(dz, true), .b = operand(g.x, false)},
                 g.dw, g.dw.bytes() >= kCold);
}

template void linear_product(simd::Isa, Pool&, const gemm::Problem&, Tensor, Tensor, View, View, Activation);
template void linear(simd::Isa, Pool&, Tensor, Tensor, View, View, View, View, const LinearArgs&, const Numerics&);
template void linear_backward(simd::Isa, Pool&, const LinearGradients&, const LinearArgs&, const Numerics&);

}  // namespace hpcdl::cpu
