#include "hpcdl/ops/matmul/matmul.h"

#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {
namespace {

std::int64_t batch_of(const View& v) {
  std::int64_t n = 1;
  for (int i = 0; i + 2 < v.rank(); ++i) n *= v[i];
  return n;
}

/// The offset in elements of matrix number `batch`.
std::int64_t offset(const View& v, std::int64_t batch) {
  std::int64_t at = 0;
  for (int i = v.rank() - 3; i >= 0; --i) {
    at += batch % v[i] * v.strides()[i];
    batch /= v[i];
  }
  return at;
}

/// True if matrix i is at i times one distance, which is then `stride`.
bool evenly_spaced(const View& v, std::int64_t& stride) {
  const std::int64_t n = batch_of(v);
  stride = n > 1 ? offset(v, 1) : 0;
  std::int64_t next = stride;  // from the first matrix of one group of dims to that of the next
  for (int i = v.rank() - 3; i >= 0; --i) {
    if (v[i] == 1) continue;  // its stride is irrelevant
    if (v.strides()[i] != next) return false;
    next *= v[i];
  }
  return true;
}

const void* at(const View& v, std::int64_t elements) {
  return static_cast<const std::byte*>(v.data()) + elements * dtype_bytes(v.dtype());
}

void products(Stream& s, const Grad& d, const View& a, bool transpose_a, const View& b, bool transpose_b, float scale) {
  if (d.size() == 0) return;
  Gemm g{
      .m = d[-2],
      .n = d[-1],
      .k = a[transpose_a ? -2 : -1],
      .compute = a.dtype(),
      .a = {a.data(), a.dtype(), a.row_stride(), transpose_a},
      .b = {b.data(), b.dtype(), b.row_stride(), transpose_b},
      .out = {.d = d.data(), .dtype = d.dtype(), .ld = d.row_stride(), .accumulate = d.accumulate(), .scale = scale}};
  const std::int64_t batch = batch_of(d);
  if (evenly_spaced(d, g.out.batch_stride) && evenly_spaced(a, g.a.batch_stride) &&
      evenly_spaced(b, g.b.batch_stride) && batch <= 65535) {
    g.batch = batch;
    return gemm(s, g);
  }
  g.out.batch_stride = g.a.batch_stride = g.b.batch_stride = 0;
  for (std::int64_t i = 0; i < batch; ++i) {
    g.out.d = const_cast<void*>(at(d, offset(d, i)));
    g.a.data = at(a, offset(a, i)), g.b.data = at(b, offset(b, i));
    gemm(s, g);
  }
}

/// A batch of matrices that share the other operand is one tall matrix, if all of its rows are equally spaced.
View tall(const View& v) {
  return View(v.data(), Spec{{v.rows(), v.cols()}, v.dtype()}, Shape{v.row_stride(), 1}, v.device());
}
Grad tall(const Grad& g) {
  return {Tensor(g.data(), Spec{{g.rows(), g.cols()}, g.dtype()}, Shape{g.row_stride(), 1}, g.device()), g.write()};
}
bool is_tall(const View& v) { return v.size() == 0 || v.rows_are_uniform(); }

/// The gradient of one matrix by which every matrix of a batch was multiplied, summed batch by batch.
void shared_products(Stream& s, Grad d, const View& left, const View& right, float scale) {
  const auto matrix = [](const View& v, std::int64_t batch) {
    return View(at(v, offset(v, batch)), Spec{{v[-2], v[-1]}, v.dtype()}, Shape{v.row_stride(), 1}, v.device());
  };
  const std::int64_t batch = batch_of(left);
  for (std::int64_t i = 0; i < batch; ++i) {
    products(s, d, matrix(left, i), true, matrix(right, i), false, scale);
    d = Grad(d, Write::accumulate);
  }
}

}  // namespace

void matmul(Stream& s, Tensor y, View a, View b, const Matmul::Args& t) {
  const Grad d(y, Write::overwrite);
  if (b.rank() == 2 && !t.transpose_a && is_tall(d) && is_tall(a))
    products(s, tall(d), tall(a), false, b, t.transpose_b, t.scale);
  else products(s, d, a, t.transpose_a, b, t.transpose_b, t.scale);
}

void matmul_backward(Stream& s, Grad da, Grad db, View a, View b, View dy, const Matmul::Args& t) {
  const bool shared = b.rank() == 2 && !t.transpose_a;
  if (shared && is_tall(a) && is_tall(dy) && (!da || is_tall(da))) {
    const View rows = tall(a), drows = tall(dy);
    if (da) products(s, tall(da), drows, false, b, !t.transpose_b, t.scale);
    if (db && t.transpose_b) products(s, db, drows, true, rows, false, t.scale);
    else if (db) products(s, db, rows, true, drows, false, t.scale);
    return;
  }
  if (da && t.transpose_a) products(s, da, b, t.transpose_b, dy, true, t.scale);
  else if (da) products(s, da, dy, false, b, !t.transpose_b, t.scale);
  if (db && shared) shared_products(s, db, t.transpose_b ? dy : a, t.transpose_b ? a : dy, t.scale);
  else if (db && t.transpose_b) products(s, db, dy, true, a, t.transpose_a, t.scale);
  else if (db) products(s, db, a, !t.transpose_a, dy, false, t.scale);
}

}  // namespace hpcdl::cuda
