#include "hpcdl/ops/quant_linear/quant_linear.h"

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/linear/product.h"
#include "hpcdl/ops/matmul/gemm.h"
#include "hpcdl/ops/quant_linear/decoders.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/simd/prefetch.h"

namespace hpcdl::cpu {
namespace {

constexpr std::int64_t kFew = QuantLinear::kFewRows;
constexpr int kTogether = 16;           // rows of W whose results are written at a time
constexpr std::int64_t kAhead = 16384;  // bytes of codes, which are prefetched into L2

/// Few rows of x in f32: of every V::N inputs, those of each row after one another; C rows, of which `count` exist.
struct FewRows {
  const float* values;
  int count;
};

/// Adds row c of x . the row of W that `w` decodes, from block b0 to b1, to sums[c]. Two chains of sums hide the latency of
/// fma, as far as there are registers for them.
template <class Isa, class Decoder, int C>
void add_dots(simd::Vec<Isa>* sums, const Decoder& w, const FewRows& x, std::int64_t b0, std::int64_t b1) {
  using V = simd::Vec<Isa>;
  constexpr int kChains = 2 * C <= (V::N == 16 ? 16 : 8) ? 2 : 1;
  V sum[kChains][C];
  for (int c = 0; c < C; ++c) sum[0][c] = sums[c], sum[kChains - 1][c] = kChains == 2 ? V(0.0f) : sums[c];
  for (std::int64_t b = b0; b < b1; ++b) {
    for (std::int64_t i = 0; i < Decoder::kBytes; i += 64)
      simd::prefetch_pages_in_turn(reinterpret_cast<const char*>(w.row) + b * Decoder::kBytes + i + kAhead);
    const float* values = x.values + b * Decoder::kBlock * C;
    w.block(b, [&](std::int64_t i, V v, std::int64_t j, V u) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        sum[0][c] = fma(v, V::load(values + i * C + c * V::N), sum[0][c]);
        sum[kChains - 1][c] = fma(u, V::load(values + j * C + c * V::N), sum[kChains - 1][c]);
      }
    });
  }
  for (int c = 0; c < C; ++c) sums[c] = kChains == 2 ? sum[0][c] + sum[1][c] : sum[0][c];
}

/// sums[c * kTogether + r] = row c of x . row first + r of W. Inputs pass in pieces that stay in the first cache, in which
/// all rows of W meet them: for 8 rows of 4096 inputs, this takes a third less time.
template <class Isa, class Decoder, int C>
void dots(float* sums, const QuantMatrix& w, const FewRows& x, std::int64_t first, int rows, std::int64_t blocks) {
  using V = simd::Vec<Isa>;
  constexpr std::int64_t kPiece = 4096 / C / Decoder::kBlock;
  V sum[kTogether * C];
  for (V& v : sum) v = V(0.0f);
  for (std::int64_t b = 0; b < blocks; b += kPiece)
    for (int r = 0; r < rows; ++r)
      add_dots<Isa, Decoder, C>(sum + r * C, Decoder(w, first + r), x, b, blocks - b < kPiece ? blocks : b + kPiece);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < C; ++c) sums[c * kTogether + r] = reduce_add(sum[r * C + c]);
}

template <class Isa> simd::Vec<Isa> load_as(const View& x, std::int64_t at, int n) {
  return visit_dtype(x.dtype(), [&]<class T>() { return simd::Vec<Isa>::load(x.ptr<T>() + at, n); });
}

/// Rows [0, count) x columns [col, col + n) of y.
template <class Isa, class T>
void finish(const Tensor& y, const float* sums, int count, std::int64_t col, int n, const View& bias,
            const View& residual) {
  using V = simd::Vec<Isa>;
  for (int c = 0; c < count; ++c)
    for (int j = 0; j < n; j += V::N) {
      const int m = n - j < V::N ? n - j : V::N;
      V v = V::load(sums + c * kTogether + j, m);
      if (bias) v = v + load_as<Isa>(bias, col + j, m);
      if (residual) v = v + V::load(residual.ptr<T>() + c * residual.row_stride() + col + j, m);
      v.store(y.ptr<T>() + c * y.row_stride() + col + j, m);
    }
}

/// Copies rows of x into `to`, as FewRows has them.
template <class Isa, int C> FewRows gathered(Pool& pool, const View& x, const Tensor& to) {
  using V = simd::Vec<Isa>;
  const std::int64_t rows = x.rows(), k = x.cols();
  if (C == 1 && x.dtype() == DType::f32) return {x.ptr<float>(), 1};
  visit_dtype(x.dtype(), [&]<class T>() {
    for_rows(pool, k / V::N, C * V::N, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i)
        for (std::int64_t c = 0; c < C; ++c)
          (c < rows ? V::load(x.ptr<T>() + c * x.row_stride() + i * V::N) : V(0.0f))
              .store(to.ptr<float>() + (i * C + c) * V::N);
    });
  });
  return {to.ptr<float>(), static_cast<int>(rows)};
}

/// The same of rotated rows, for weights that are.
template <class Isa, int C> FewRows rotated(Pool& pool, const View& x, const Tensor& to) {
  using V = simd::Vec<Isa>;
  const std::int64_t rows = x.rows(), blocks = x.cols() / kRotated;
  visit_dtype(x.dtype(), [&]<class T>() {
    for_rows(pool, blocks, C * kRotated * 8, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float values[kRotated];
      for (auto b = begin; b < end; ++b)
        for (std::int64_t c = 0; c < C; ++c) {
          for (int i = 0; i < kRotated; i += V::N)
            (c < rows ? V::load(x.ptr<T>() + c * x.row_stride() + b * kRotated + i) : V(0.0f)).store(values + i);
          rotate(values);
          for (int i = 0; i < kRotated; i += V::N)
            V::load(values + i).store(to.ptr<float>() + (b * kRotated + i) * C + c * V::N);
        }
    });
  });
  return {to.ptr<float>(), static_cast<int>(rows)};
}

template <class Isa, class Decoder, int C>
void few_rows(Pool& pool, const Tensor& y, const View& input, const QuantMatrix& w, const View& bias,
              const View& residual, const Tensor& rows_of_x) {
  const FewRows x = [&] {
    if constexpr (is_rotated<Decoder>) return rotated<Isa, C>(pool, input, rows_of_x);
    else return gathered<Isa, C>(pool, input, rows_of_x);
  }();
  const std::int64_t n = y.cols(), k = w.parts.codes[1] / Decoder::kBytes * Decoder::kBlock;
  parallel_for(pool, (n + kTogether - 1) / kTogether, 1 + 65536 / (kTogether * k * C + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto tile = begin; tile < end; ++tile) {
                   const std::int64_t first = tile * kTogether, left = n - first;
                   const int rows = left < kTogether ? static_cast<int>(left) : kTogether;
                   float sums[C * kTogether];
                   dots<Isa, Decoder, C>(sums, w, x, first, rows, k / Decoder::kBlock);
                   visit_dtype(y.dtype(),
                               [&]<class T>() { finish<Isa, T>(y, sums, x.count, first, rows, bias, residual); });
                 }
               });
}

/// Blocks [b0, b1) of rows [r0, r1) of W, one row of the panel for each row.
template <class Isa, class T, class Decoder>
void decode(Pool& pool, const QuantMatrix& w, std::int64_t r0, std::int64_t r1, std::int64_t b0, std::int64_t b1,
            T* panel) {
  using V = simd::Vec<Isa>;
  const std::int64_t columns = (b1 - b0) * Decoder::kBlock;
  for_rows(pool, r1 - r0, columns, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const Decoder row(w, r0 + r);
      T* to = panel + r * columns;
      for (auto b = b0; b < b1; ++b, to += Decoder::kBlock)
        values_of_block<Isa>(row, b,
                             [&](std::int64_t i, V v, std::int64_t j, V u) { v.store(to + i), u.store(to + j); });
    }
  });
}

/// Columns [begin, end) of a tensor.
View columns(const View& v, std::int64_t begin, std::int64_t end) {
  if (!v) return v;
  Shape shape = v.shape();
  shape[-1] = end - begin;
  return View(v.ptr<std::byte>() + begin * dtype_bytes(v.dtype()), {shape, v.dtype()}, v.strides(), v.device());
}

/// The type of a panel: that in which products of x are computed.
template <class Isa, class F> void with_panel_type(DType x, F&& f) {
  if (simd::Vec<Isa>::N == 16 && x == DType::bf16) return f.template operator()<bf16>();
  f.template operator()<float>();
}

template <class Isa, class Decoder>
void many_rows(Isa isa, Pool& pool, const Tensor& y, const View& x, const QuantMatrix& w, const View& bias,
               const View& residual, const Tensor& panel, bool row_invariant) {
  const std::int64_t n = y.cols(), k = x.cols();
  with_panel_type<Isa>(x.dtype(), [&]<class T>() {
    for (std::int64_t first = 0; first < n; first += panel[0]) {
      const std::int64_t end = n - first < panel[0] ? n : first + panel[0];
      decode<Isa, T, Decoder>(pool, w, first, end, 0, k / Decoder::kBlock, panel.ptr<T>());
      const gemm::Problem p{.m = x.rows(),
                            .n = end - first,
                            .k = k,
                            .compute = gemm::compute_of(x.dtype()),
                            .a = {x.data(), x.dtype(), x.row_stride(), false},
                            .b = {panel.data(), dtype_of<T>, k, true},
                            .row_invariant = row_invariant};
      const View part = columns(y, first, end);
      linear_product(isa, pool, p, Tensor(const_cast<void*>(part.data()), part.spec(), part.strides(), part.device()),
                     Tensor(), columns(bias, first, end), columns(residual, first, end), Activation::none);
    }
  });
}

template <class Isa, class Decoder>
void input_gradient(Isa isa, Pool& pool, const Grad& dx, const QuantMatrix& w, const View& dy, const Tensor& panel,
                    bool row_invariant) {
  const std::int64_t n = dy.cols(), k = dx.cols();
  with_panel_type<Isa>(dx.dtype(), [&]<class T>() {
    for (std::int64_t first = 0; first < k; first += panel[1]) {
      const std::int64_t end = k - first < panel[1] ? k : first + panel[1], width = end - first;
      decode<Isa, T, Decoder>(pool, w, 0, n, first / Decoder::kBlock, end / Decoder::kBlock, panel.ptr<T>());
      const gemm::Problem p{.m = dy.rows(),
                            .n = width,
                            .k = n,
                            .compute = gemm::compute_of(dx.dtype()),
                            .a = {dy.data(), dy.dtype(), dy.row_stride(), false},
                            .b = {panel.data(), dtype_of<T>, width, false},
                            .row_invariant = row_invariant};
      visit_dtype(dx.dtype(), [&]<class D>() {
        gemm::gemm(isa, pool, p,
                   epilogue::Into<D>{.d = dx.ptr<D>() + first, .ld = dx.row_stride(), .accumulate = dx.accumulate()});
      });
    }
  });
}

}  // namespace

template <class Isa>
void quant_linear(Isa isa, Pool& pool, Tensor y, View x, const QuantMatrix& w, View bias, View residual, Tensor panel,
                  Tensor rows, const Numerics& numerics) {
  if (y.size() == 0) return;
  const std::int64_t m = x.rows();
  with_decoder<Isa>(w.format, [&]<class Decoder>() {
    if (m > kFew || numerics.row_invariant || x.cols() == 0)
      return many_rows<Isa, Decoder>(isa, pool, y, x, w, bias, residual, panel, numerics.row_invariant);
    if (m == 1) return few_rows<Isa, Decoder, 1>(pool, y, x, w, bias, residual, rows);
    if (m == 2) return few_rows<Isa, Decoder, 2>(pool, y, x, w, bias, residual, rows);
    if (m <= 4) return few_rows<Isa, Decoder, 4>(pool, y, x, w, bias, residual, rows);
    few_rows<Isa, Decoder, 8>(pool, y, x, w, bias, residual, rows);
  });
}

template <class Isa>
void quant_linear_backward(Isa isa, Pool& pool, Grad dx, Grad dbias, Grad dresidual, const QuantMatrix& w, View dy,
                           Tensor panel, const Numerics& numerics) {
  if (dbias || dresidual) {
    const LinearGradients sums{
        .dx = {}, .dw = {}, .dbias = dbias, .dresidual = dresidual, .x = dy, .w = {}, .z = {}, .dy = dy, .dz = {}};
    linear_backward(isa, pool, sums, {}, numerics);
  }
  if (!dx || dx.size() == 0) return;
  with_decoder<Isa>(w.format, [&]<class Decoder>() {
    input_gradient<Isa, Decoder>(isa, pool, dx, w, dy, panel, numerics.row_invariant);
  });
}

template void quant_linear(simd::Isa, Pool&, Tensor, View, const QuantMatrix&, View, View, Tensor, Tensor,
                           const Numerics&);
template void quant_linear_backward(simd::Isa, Pool&, Grad, Grad, Grad, const QuantMatrix&, View, Tensor,
                                    const Numerics&);

}  // namespace hpcdl::cpu
