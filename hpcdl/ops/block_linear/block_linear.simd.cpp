#include "hpcdl/ops/block_linear/block_linear.h"

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/gemm.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

/// Products of more operations use all threads, one after another, unless there are as many for every thread; smaller
/// ones have a thread each.
constexpr double kLarge = 2e7;

/// Where the columns of a block's product lie in y.
struct Columns {
  std::int64_t group;   // that follow each other
  std::int64_t stride;  // from one group to the next

  std::int64_t at(std::int64_t column) const { return column / group * stride + column % group; }
};

/// What is done with the sums of a block: D = sums + bias + residual, in columns of D.
template <class Isa, class T, class TBias> struct Scatter {
  using V = simd::Vec<Isa>;
  T* d;
  std::int64_t ld;
  Columns columns;
  const TBias* bias;
  const T* residual;
  std::int64_t residual_ld;

  static void apply(const void* self, const void* tile, std::int64_t tile_ld, std::int64_t row, std::int64_t col,
                    int rows, int cols) {
    const auto& e = *static_cast<const Scatter*>(self);
    if (e.columns.group == 1) {
      for (int r = 0; r < rows; ++r)
        e.every_other(static_cast<const float*>(tile) + r * tile_ld, row + r, col * e.columns.stride, cols);
      return;
    }
    for (int begin = 0; begin < cols;) {
      const auto left = e.columns.group - (col + begin) % e.columns.group;
      const int n = left < cols - begin ? static_cast<int>(left) : cols - begin;
      const auto to = e.columns.at(col + begin);
      for (int r = 0; r < rows; ++r) e.one_run(static_cast<const float*>(tile) + r * tile_ld + begin, row + r, to, n);
      begin += n;
    }
  }
  /// Columns that are apart from each other.
  void every_other(const float* sums, std::int64_t row, std::int64_t to, int n) const {
    T* out = d + row * ld + to;
    const auto* added = residual ? residual + row * residual_ld + to : nullptr;
    const auto stride = columns.stride;
    for (int i = 0; i < n; ++i) {
      float v = sums[i];
      if (bias) v += static_cast<float>(bias[to + i * stride]);
      if (added) v += static_cast<float>(added[i * stride]);
      out[i * stride] = T(v);
    }
  }
  void one_run(const float* sums, std::int64_t row, std::int64_t to, int n) const {
    T* out = d + row * ld + to;
    for (int i = 0; i < n; i += V::N) {
      const int k = n - i < V::N ? n - i : V::N;
      V v = V::load(sums + i, k);
      if (bias) v = v + V::load(bias + to + i, k);
      if (residual) v = v + V::load(residual + row * residual_ld + to + i, k);
      v.store(out + i, k);
    }
  }
};

gemm::Operand operand(const View& v, std::int64_t offset, std::int64_t ld, bool transposed) {
  return {static_cast<const std::byte*>(v.data()) + offset * dtype_bytes(v.dtype()), v.dtype(), ld, transposed};
}

/// Runs `count` products that write disjoint memory: product(i) is the i-th, finish(i) an object with d and ld, and
/// `apply` what is done with it.
template <class Isa, class Product, class Finish>
void products(Pool& pool, std::int64_t count, gemm::TileEpilogue apply, const Product& product, const Finish& finish) {
  if (count == 0) return;
  const auto first = product(0);
  const auto& set = gemm::kernel_set(Isa{}, first.compute);
  const auto end_of = [&](const auto& e) {
    return gemm::Finish{.epilogue = &e,
                        .apply = apply,
                        .d = reinterpret_cast<std::byte*>(e.d),
                        .d_ld = e.ld * static_cast<std::int64_t>(sizeof(*e.d)),
                        .d_element = sizeof(*e.d)};
  };
  const double flops = 2.0 * static_cast<double>(first.m) * static_cast<double>(first.n) * static_cast<double>(first.k);
  if (count < pool.threads() || (flops > kLarge && count % pool.threads() != 0)) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto e = finish(i);
      gemm::run(set, pool, product(i), end_of(e));
    }
    return;
  }
  pool.reserve_scratch(gemm::scratch_bytes(set, first));
  const bool tiny = flops * static_cast<double>(count) < 1e5;
  const auto share = [&](std::int64_t begin, std::int64_t end, int thread) {
    for (auto i = begin; i < end; ++i) {
      const auto e = finish(i);
      gemm::run_alone(set, pool.scratch(thread), product(i), end_of(e));
    }
  };
  if (tiny) return share(0, count, 0);
  pool.run([&](int t) { share(count * t / pool.threads(), count * (t + 1) / pool.threads(), t); });
}

/// D (+)= sums.
template <class Isa, class T> struct Store {
  using V = simd::Vec<Isa>;
  T* d;
  std::int64_t ld;
  bool accumulate;

  static void apply(const void* self, const void* tile, std::int64_t tile_ld, std::int64_t row, std::int64_t col,
                    int rows, int cols) {
    const auto& e = *static_cast<const Store*>(self);
    for (int r = 0; r < rows; ++r) {
      T* out = e.d + (row + r) * e.ld + col;
      const float* sums = static_cast<const float*>(tile) + r * tile_ld;
      for (int i = 0; i < cols; i += V::N) {
        const int k = cols - i < V::N ? cols - i : V::N;
        V v = V::load(sums + i, k);
        if (e.accumulate) v = v + V::load(out + i, k);
        v.store(out + i, k);
      }
    }
  }
};

/// The columns of dy, block by block.
template <class T> void gather(Pool& pool, const Tensor& to, const View& dy, std::int64_t blocks, std::int64_t groups) {
  const std::int64_t rows = dy.rows(), cols = dy.cols(), size = cols / blocks / groups;
  parallel_for(pool, rows, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(cols, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t r = begin; r < end; ++r) {
                   const T* from = dy.ptr<T>() + r * dy.row_stride();
                   T* out = to.ptr<T>() + r * cols;
                   for (std::int64_t b = 0; b < blocks; ++b)
                     for (std::int64_t g = 0; g < groups; ++g)
                       for (std::int64_t t = 0; t < size; ++t) *out++ = from[(g * blocks + b) * size + t];
                 }
               });
}

}  // namespace

template <class Isa>
void block_linear(Isa, Pool& pool, Tensor y, View x, View w, View bias, View residual, const BlockLinear::Args& a,
                  const Numerics& numerics) {
  const std::int64_t blocks = w[0], outputs = w[1], inputs = w[2], size = outputs / a.groups;
  const Columns columns{size, blocks * size};
  const auto product = [&](std::int64_t b) {
    return gemm::Problem{.m = x.rows(),
                         .n = outputs,
                         .k = inputs,
                         .compute = gemm::compute_of(x.dtype()),
                         .a = operand(x, b * inputs, x.row_stride(), false),
                         .b = operand(w, b * outputs * inputs, inputs, true),
                         .row_invariant = numerics.row_invariant};
  };
  if (y.size() == 0) return;
  visit_dtype(y.dtype(), [&]<class T>() {
    visit_dtype(bias.dtype(), [&]<class TBias>() {
      using End = Scatter<Isa, T, TBias>;
      products<Isa>(pool, blocks, &End::apply, product, [&](std::int64_t b) {
        return End{.d = y.ptr<T>() + b * size,
                   .ld = y.row_stride(),
                   .columns = columns,
                   .bias = bias ? bias.ptr<TBias>() + b * size : nullptr,
                   .residual = residual ? residual.ptr<T>() + b * size : nullptr,
                   .residual_ld = residual ? residual.row_stride() : 0};
      });
    });
  });
}

template <class Isa>
void block_linear_backward(Isa isa, Pool& pool, const BlockLinearGradients& g, const BlockLinear::Args& a,
                           const Numerics& numerics) {
  const std::int64_t blocks = g.w[0], outputs = g.w[1], inputs = g.w[2], rows = g.x.rows();
  if (g.dbias || g.dresidual)
    linear_backward(isa, pool,
                    {.dx = {},
                     .dw = {},
                     .dbias = g.dbias,
                     .dresidual = g.dresidual,
                     .x = g.x,
                     .w = g.w,
                     .z = {},
                     .dy = g.dy,
                     .dz = {}},
                    LinearArgs{}, numerics);
  if (!g.dx && !g.dw) return;
  View dy = g.dy;
  if (a.groups > 1 && blocks > 1) {
    visit_dtype(dy.dtype(), [&]<class T>() { gather<T>(pool, g.blocks, dy, blocks, a.groups); });
    dy = View(g.blocks.data(), Spec{{rows, blocks * outputs}, dy.dtype()});
  }
  const auto compute = gemm::compute_of(g.x.dtype());
  if (g.dx && g.dx.size() > 0)
    visit_dtype(g.dx.dtype(), [&]<class T>() {
      using End = Store<Isa, T>;
      products<Isa>(
          pool, blocks, &End::apply,
          [&](std::int64_t b) {
            return gemm::Problem{.m = rows,
                                 .n = inputs,
                                 .k = outputs,
                                 .compute = compute,
                                 .a = operand(dy, b * outputs, dy.row_stride(), false),
                                 .b = operand(g.w, b * outputs * inputs, inputs, false),
                                 .row_invariant = numerics.row_invariant};
          },
          [&](std::int64_t b) {
            return End{
                .d = g.dx.template ptr<T>() + b * inputs, .ld = g.dx.row_stride(), .accumulate = g.dx.accumulate()};
          });
    });
  if (g.dw && g.dw.size() > 0)
    visit_dtype(g.dw.dtype(), [&]<class T>() {
      using End = Store<Isa, T>;
      products<Isa>(
          pool, blocks, &End::apply,
          [&](std::int64_t b) {
            return gemm::Problem{.m = outputs,
                                 .n = inputs,
                                 .k = rows,
                                 .compute = compute,
                                 .a = operand(dy, b * outputs, dy.row_stride(), true),
                                 .b = operand(g.x, b * inputs, g.x.row_stride(), false)};
          },
          [&](std::int64_t b) {
            return End{
                .d = g.dw.template ptr<T>() + b * outputs * inputs, .ld = inputs, .accumulate = g.dw.accumulate()};
          });
    });
}

template void block_linear(simd::Isa, Pool&, Tensor, View, View, View, View, const BlockLinear::Args&, const Numerics&);
template void block_linear_backward(simd::Isa, Pool&, const BlockLinearGradients&, const BlockLinear::Args&,
                                    const Numerics&);

}  // namespace hpcdl::cpu
