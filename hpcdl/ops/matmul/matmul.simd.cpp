#include "hpcdl/ops/matmul/matmul.h"

#include "hpcdl/ops/matmul/gemm.h"
#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

namespace ep = epilogue;

/// One matrix of a batch, with its first index at `offset` elements.
struct Matrix {
  View view;
  bool transposed;

  std::int64_t offset(std::int64_t batch) const {
    std::int64_t at = 0;
    for (int i = view.rank() - 3; i >= 0; --i) {
      at += batch % view[i] * view.strides()[i];
      batch /= view[i];
    }
    return at;
  }
  gemm::Operand operand(std::int64_t batch) const {
    const auto* data = static_cast<const std::byte*>(view.data()) + offset(batch) * dtype_bytes(view.dtype());
    return {data, view.dtype(), view.row_stride(), transposed};
  }
  /// Rows of the untransposed view.
  std::int64_t rows() const { return view[transposed ? -1 : -2]; }
  std::int64_t cols() const { return view[transposed ? -2 : -1]; }
};

std::int64_t batch_of(const View& v) {
  std::int64_t n = 1;
  for (int i = 0; i + 2 < v.rank(); ++i) n *= v[i];
  return n;
}

/// What all products of one call have in common.
struct Products {
  float scale;
  bool row_invariant = false;
};

/// d = scale * a b for every matrix of the batch of d. Small products run in parallel, one per thread; large ones use
/// all threads, one after the other.
template <class Isa, class T>
void products(Pool& pool, const Grad& d, const Matrix& a, const Matrix& b, const Products& all) {
  const std::int64_t batch = batch_of(d);
  const auto problem = [&](std::int64_t i) {
    return gemm::Problem{.m = a.rows(),
                         .n = b.cols(),
                         .k = a.cols(),
                         .compute = gemm::compute_of(a.view.dtype()),
                         .a = a.operand(i),
                         .b = b.operand(i),
                         .row_invariant = all.row_invariant};
  };
  const Matrix out{d, false};
  const auto into = [&](std::int64_t i) {
    return ep::Into<T, ep::Scale>{
        .d = d.ptr<T>() + out.offset(i), .ld = d.row_stride(), .accumulate = d.accumulate(), .f = {all.scale}};
  };
  if (batch == 0 || d.size() == 0) return;
  const double flops =
      2.0 * static_cast<double>(a.rows()) * static_cast<double>(b.cols()) * static_cast<double>(a.cols());
  if (batch < pool.threads() || flops > 2e8) {
    for (std::int64_t i = 0; i < batch; ++i) gemm::gemm(Isa{}, pool, problem(i), into(i));
    return;
  }
  pool.reserve_scratch(gemm::scratch_bytes(gemm::kernel_set(Isa{}, problem(0).compute), problem(0)));
  std::atomic<std::int64_t> next{0};
  pool.run([&](int thread) {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < batch;)
      gemm::gemm_alone(Isa{}, pool.scratch(thread), problem(i), into(i));
  });
}

/// A batch of matrices that share the other operand is one tall matrix, if all of its rows are equally spaced.
View tall(const View& v) {
  return View(v.data(), Spec{{v.rows(), v.cols()}, v.dtype()}, Shape{v.row_stride(), 1}, v.device());
}
Grad tall(const Grad& g) {
  return {Tensor(g.data(), Spec{{g.rows(), g.cols()}, g.dtype()}, Shape{g.row_stride(), 1}, g.device()), g.write()};
}
bool is_tall(const View& v) { return v.size() == 0 || v.rows_are_uniform(); }

View matrix_of(const View& v, std::int64_t batch) {
  const auto* data = static_cast<const std::byte*>(v.data()) + Matrix{v, false}.offset(batch) * dtype_bytes(v.dtype());
  return View(data, Spec{{v[-2], v[-1]}, v.dtype()}, Shape{v.row_stride(), 1}, v.device());
}

/// The gradient of one matrix by which every matrix of a batch was multiplied, summed batch by batch.
template <class Isa, class T>
void shared_products(Pool& pool, Grad d, const View& left, const View& right, float scale) {
  const std::int64_t batch = batch_of(left);
  for (std::int64_t i = 0; i < batch; ++i) {
    products<Isa, T>(pool, d, {matrix_of(left, i), true}, {matrix_of(right, i), false}, {scale});
    d = Grad(d, Write::accumulate);
  }
}

}  // namespace

template <class Isa>
void matmul(Isa isa, Pool& pool, Tensor y, View a, View b, const Matmul::Args& t, const Numerics& numerics) {
  if (a.rank() > 2 && b.rank() == 2 && is_tall(y) && is_tall(a))
    return matmul(isa, pool, tall(Grad(y, Write::overwrite)), tall(a), b, t, numerics);
  visit_dtype(y.dtype(), [&]<class T>() {
    products<Isa, T>(pool, {y, Write::overwrite}, {a, t.transpose_a}, {b, t.transpose_b},
                     {t.scale, numerics.row_invariant});
  });
}

template <class Isa>
void matmul_backward(Isa isa, Pool& pool, Grad da, Grad db, View a, View b, View dy, const Matmul::Args& t,
                     const Numerics& numerics) {
  const bool shared = a.rank() > 2 && b.rank() == 2;
  if (shared && is_tall(a) && is_tall(dy) && (!da || is_tall(da)))
    return matmul_backward(isa, pool, da ? tall(da) : da, db, tall(a), b, tall(dy), t, numerics);
  visit_dtype(dy.dtype(), [&]<class T>() {
    const Matrix g{dy, false}, gt{dy, true}, op_a{a, t.transpose_a}, op_at{a, !t.transpose_a}, op_b{b, t.transpose_b},
        op_bt{b, !t.transpose_b};
    if (da && !t.transpose_a) products<Isa, T>(pool, da, g, op_bt, {t.scale, numerics.row_invariant});
    if (da && t.transpose_a) products<Isa, T>(pool, da, op_b, gt, {t.scale});
    if (db && shared) return shared_products<Isa, T>(pool, db, t.transpose_b ? dy : a, t.transpose_b ? a : dy, t.scale);
    if (db && !t.transpose_b) products<Isa, T>(pool, db, op_at, g, {t.scale});
    if (db && t.transpose_b) products<Isa, T>(pool, db, gt, op_a, {t.scale});
  });
}

template void matmul(simd::Isa, Pool&, Tensor, View, View, const Matmul::Args&, const Numerics&);
template void matmul_backward(simd::Isa, Pool&, Grad, Grad, View, View, View, const Matmul::Args&, const Numerics&);

}  // namespace hpcdl::cpu
