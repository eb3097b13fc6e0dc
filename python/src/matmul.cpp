// matmul_add_relu: D = relu(A B + C).

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "hpcdl/ops/matmul/gemm.h"
#include "hpcdl/program/on.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"

namespace hpcdl::python {
namespace {

/// A (..., M, K) row by row, B (K, N) in rows or in columns (the transpose of a PyTorch weight), C (N) or like D.
struct Operands {
  View a, b, c;
  bool b_transposed = false;  // its columns are dense
  Spec d;

  Operands(Call& call, nb::handle a_, nb::handle b_, nb::handle c_) {
    a = call.in("a", a_), b = call.in("b", b_, {Type::floating, Layout::matrix}), c = call.in_or_absent("c", c_);
    b_transposed = b.rank() == 2 && !b.rows_are_uniform();
    require(a.rank() >= 1 && b.rank() == 2 && a.dtype() == b.dtype() && a[-1] == b[0] && a[-1] > 0, call.op(),
            "expected a (..., M, K) and b (K, N) of one dtype with K > 0, got {} and {}", to_string(a.spec()),
            to_string(b.spec()));
    d = {a.shape(), a.dtype()};
    d.shape[-1] = b[1];
    if (c) {
      require(c.shape() == d.shape || c.shape() == Shape{b[1]}, call.op(), "c must be ({}) or {}, got {}", b[1],
              to_string(d.shape), to_string(c.spec()));
      require(c.dtype() == a.dtype(), call.op(), "c must have the dtype of a, got {} and {}", to_string(c.spec()),
              to_string(a.spec()));
    }
  }
  bool c_is_row() const { return c && c.rank() == 1 && d.shape.rank() != 1; }
  /// B in the form of a weight of linear(): (K, N) in rows, or the same memory as (N, K).
  View weight() const {
    return b_transposed ? View(b.data(), {{b[1], b[0]}, b.dtype()}, Shape{b.strides()[1], 1}, b.device()) : b;
  }
  LinearArgs args() const { return {.activation = Activation::relu, .conv1d = !b_transposed}; }
};

template <class T> void run_gemm(Stream& s, const Operands& o, const Tensor& d) {
  namespace ep = epilogue;
  const View w = o.weight();
  const gemm::Problem p{.m = d.rows(),
                        .n = d.cols(),
                        .k = o.a.cols(),
                        .compute = o.a.dtype() == DType::bf16 ? gemm::Compute::bf16 : gemm::Compute::f32,
                        .a = {o.a.data(), o.a.dtype(), o.a.row_stride(), false},
                        .b = {w.data(), w.dtype(), w.row_stride(), o.b_transposed}};
  const ep::Into<T, ep::Chain<ep::Residual<T>, ep::Relu>> into{
      .d = d.ptr<T>(), .ld = d.row_stride(), .f = {{o.c.ptr<T>(), o.c ? o.c.row_stride() : 0}, {}}};
  on(s, [&](auto isa, Pool& pool) { gemm::gemm(isa, pool, p, into); });
}

#if HPCDL_CUDA
void run_on_gpu(Stream& s, const Operands& o, const Tensor& d) {
  const View w = o.weight();
  const auto operand = [](const View& v, bool transposed) {
    return cuda::GemmOperand{.data = v.data(), .dtype = v.dtype(), .ld = v.row_stride(), .transposed = transposed};
  };
  cuda::gemm(s, {.m = d.rows(),
                 .n = d.cols(),
                 .k = o.a.cols(),
                 .compute = o.a.dtype(),
                 .a = operand(o.a, false),
                 .b = operand(w, o.b_transposed),
                 .out = {.d = d.data(),
                         .dtype = d.dtype(),
                         .ld = d.row_stride(),
                         .activation = cuda::GemmActivation::relu,
                         .residual = o.c.data(),
                         .residual_ld = o.c.row_stride(),
                         .residual_inside = true}});
}
#endif

nb::object matmul_add_relu(nb::handle a, nb::handle b, nb::handle c, nb::handle out) {
  Call call("matmul_add_relu");
  const Operands o(call, a, b, c);
  Result d = call.out("out", out, o.d, o.c_is_row() ? View() : o.c);
  if (o.d.size() > 0)
    call.run([&](Stream& s) {
      if (!o.c || o.c_is_row()) ActivatedLinear::forward(s, d, {}, o.a, o.weight(), o.c, {}, o.args());
#if HPCDL_CUDA
      else if (s.device().is_cuda()) run_on_gpu(s, o, d);
#endif
      else visit_dtype(o.d.dtype, [&]<class T>() { run_gemm<T>(s, o, d.tensor); });
    });
  return call.give(d);
}

nb::object matmul_add_relu_backward(nb::handle dd, nb::handle a, nb::handle b, nb::handle d, nb::handle c,
                                    nb::handle needs, nb::handle out) {
  Call call("matmul_add_relu_backward");
  const Needs need(call.op(), needs, 3);
  const Several outs(call.op(), "out", out, 3);
  const View g = call.in("dd", dd);
  const Operands o(call, a, b, c);
  const View y = call.in("d", d);
  require_spec(call.op(), "dd", g.spec(), o.d), require_spec(call.op(), "d", y.spec(), o.d);
  Result da = call.out_if(need[0], "out[0]", outs[0], o.a.spec());
  Result db =
      need[1] ? call.out("out[1]", outs[1], o.b.spec(), {}, o.b_transposed ? Shape{1, o.b[0]} : Shape(), Layout::matrix)
              : Result();
  Result dc = call.out_if(need[2] && o.c, "out[2]", outs[2], o.c.spec());
  const bool row = o.c_is_row();
  // The gradient of relu is written to dc, if that has the shape of D.
  const Tensor dz = dc && !row ? dc.tensor : call.scratch(o.d);
  Tensor dw = db;
  if (db && !o.b_transposed) require(db.tensor.rows_are_uniform(), call.op(), "out[1] must be stored by rows, as b is");
  if (db && o.b_transposed) {
    require(db.tensor.strides()[0] == 1 || o.b[0] == 1, call.op(), "out[1] must be stored by columns, as b is");
    dw =
        Tensor(db.tensor.data(), {{o.b[1], o.b[0]}, o.b.dtype()}, Shape{db.tensor.strides()[1], 1}, db.tensor.device());
  }
  if ((da || db || dc) && o.a.size() > 0)
    call.run([&](Stream& s) {
      ActivatedLinear::backward(s, da.overwrite(), db ? Grad(dw, Write::overwrite) : Grad(),
                                row ? dc.overwrite() : Grad(), {}, o.a, o.weight(), y, g, dz, o.args());
    });
  return call.give_all(da, db, dc);
}

}  // namespace

void bind_matmul(nb::module_& m) {
  m.def(
      "matmul_add_relu", matmul_add_relu, anything("a"), anything("b"), anything("c") = nb::none(), nb::kw_only(),
      anything("out") = nb::none(),
      nb::sig("def matmul_add_relu(a: Array, b: Array, c: Array | None = None, *, out: Array | None = None) -> Array"),
      R"(relu(a @ b + c) in one kernel.

a: (..., M, K), rows dense. b: (K, N), rows or columns dense (weight.T of PyTorch is fine as it is). c: (N) or
(..., M, N). One dtype, float32 or bfloat16; sums are float32. out: (..., M, N); may be c.)");
  m.def("matmul_add_relu_backward", matmul_add_relu_backward, anything("dd"), anything("a"), anything("b"),
        anything("d"), anything("c") = nb::none(), nb::kw_only(), anything("needs") = nb::none(),
        anything("out") = nb::none(),
        nb::sig("def matmul_add_relu_backward(dd: Array, a: Array, b: Array, d: Array, c: Array | None = None, *, "
                "needs: tuple[bool, bool, "
                "bool] | None = None, out: tuple[Array | None, Array | None, Array | None] | None = None) -> "
                "tuple[Array | None, Array | "
                "None, Array | None]"),
        R"(Gradients (da, db, dc) of matmul_add_relu.

dd: gradient of the result d. Only the shape of c matters. db has the memory layout of b. needs: which to compute
(None: all).)");
}

}  // namespace hpcdl::python
