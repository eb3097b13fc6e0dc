// Softmax and element-wise ops.

#include "hpcdl/ops/bias_gelu/bias_gelu.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"
#include "python/src/gelu_form.h"

namespace hpcdl::python {
namespace {

Softmax::Args softmax_args(const Call& call, nb::handle scale, nb::handle causal) {
  return {number(call.op(), "scale", scale), flag(call.op(), "causal", causal)};
}

nb::object softmax(nb::handle x, nb::handle scale, nb::handle causal, nb::handle out) {
  Call call("softmax");
  const auto a = softmax_args(call, scale, causal);
  const View v = call.in("x", x);
  Result y = call.out("out", out, Softmax::infer(v.spec(), a), v);
  call.run([&](Stream& s) { Softmax::forward(s, y, v, a); });
  return call.give(y);
}

nb::object softmax_backward(nb::handle dy, nb::handle y, nb::handle scale, nb::handle causal, nb::handle out) {
  Call call("softmax_backward");
  const auto a = softmax_args(call, scale, causal);
  const View g = call.in("dy", dy), v = call.in("y", y);
  Result dx = call.out("out", out, Softmax::infer(v.spec(), a));
  require_spec(call.op(), "dy", g.spec(), v.spec());
  call.run([&](Stream& s) { Softmax::backward(s, dx.overwrite(), v, g, a); });
  return call.give(dx);
}

nb::object gelu(nb::handle x, nb::handle approximate, nb::handle out) {
  Call call("gelu");
  const Gelu::Args a{gelu_form(call.op(), approximate)};
  const View v = call.in("x", x);
  Result y = call.out("out", out, Gelu::infer(v.spec(), a), v);
  call.run([&](Stream& s) { Gelu::forward(s, y, v, a); });
  return call.give(y);
}

nb::object gelu_backward(nb::handle dy, nb::handle x, nb::handle approximate, nb::handle out) {
  Call call("gelu_backward");
  const Gelu::Args a{gelu_form(call.op(), approximate)};
  const View g = call.in("dy", dy), v = call.in("x", x);
  Result dx = call.out("out", out, Gelu::infer(v.spec(), a));
  require_spec(call.op(), "dy", g.spec(), v.spec());
  call.run([&](Stream& s) { Gelu::backward(s, dx.overwrite(), v, g, a); });
  return call.give(dx);
}

nb::object bias_gelu(nb::handle x, nb::handle bias, nb::handle approximate, nb::handle out) {
  Call call("bias_gelu");
  const Gelu::Args a{gelu_form(call.op(), approximate)};
  const View v = call.in("x", x), b = call.in("bias", bias, kContiguous);
  Result y = call.out("out", out, BiasGelu::infer(v.spec(), b.spec(), a), v);
  call.run([&](Stream& s) { BiasGelu::forward(s, y, v, b, a); });
  return call.give(y);
}

nb::object bias_gelu_backward(nb::handle dy, nb::handle x, nb::handle bias, nb::handle approximate, nb::handle needs,
                              nb::handle out) {
  Call call("bias_gelu_backward");
  const Gelu::Args a{gelu_form(call.op(), approximate)};
  const Needs need(call.op(), needs, 2);
  const Several outs(call.op(), "out", out, 2);
  const View g = call.in("dy", dy), v = call.in("x", x), b = call.in("bias", bias, kContiguous);
  require_spec(call.op(), "dy", g.spec(), BiasGelu::infer(v.spec(), b.spec(), a));
  Result dx = call.out_if(need[0], "out[0]", outs[0], v.spec()), db = call.out_if(need[1], "out[1]", outs[1], b.spec());
  const Tensor scratch = call.scratch(BiasGelu::backward_scratch(v.spec(), b.spec(), a)[0]);
  if (!need.none())
    call.run([&](Stream& s) { BiasGelu::backward(s, dx.overwrite(), db.overwrite(), v, b, g, scratch, a); });
  return call.give_all(dx, db);
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def(
      "softmax", softmax, anything("x"), nb::kw_only(), anything("scale") = 1.0f, anything("causal") = false,
      anything("out") = nb::none(),
      nb::sig("def softmax(x: Array, *, scale: float = 1.0, causal: bool = False, out: Array | None = None) -> Array"),
      R"(softmax(scale * x) over the last dim.

x: (..., C), float32 or bfloat16; rows dense. With causal, row r of the last two dims (R, C) sees columns
0 .. r + C - R, and the others become 0. out: like x; may be x itself.)");
  m.def(
      "softmax_backward", softmax_backward, anything("dy"), anything("y"), nb::kw_only(), anything("scale") = 1.0f,
      anything("causal") = false, anything("out") = nb::none(),
      nb::sig("def softmax_backward(dy: Array, y: Array, *, scale: float = 1.0, causal: bool = False, out: Array | "
              "None = None) -> Array"),
      "Gradient of softmax for x, from the result y and its gradient dy: scale * y * (dy - sum(y * dy)). All like x.");
  m.def("gelu", gelu, anything("x"), nb::kw_only(), anything("approximate") = "none", anything("out") = nb::none(),
        nb::sig("def gelu(x: Array, *, approximate: str = 'none', out: Array | None = None) -> Array"),
        R"(GELU of every element.

x: (..., C), float32 or bfloat16; rows dense. approximate: "none" (by the error function) or "tanh". out: like
x; may be x itself.)");
  m.def("gelu_backward", gelu_backward, anything("dy"), anything("x"), nb::kw_only(), anything("approximate") = "none",
        anything("out") = nb::none(),
        nb::sig(
            "def gelu_backward(dy: Array, x: Array, *, approximate: str = 'none', out: Array | None = None) -> Array"),
        "Gradient of gelu for x. All tensors are like x.");
  m.def(
      "bias_gelu", bias_gelu, anything("x"), anything("bias"), nb::kw_only(), anything("approximate") = "none",
      anything("out") = nb::none(),
      nb::sig("def bias_gelu(x: Array, bias: Array, *, approximate: str = 'none', out: Array | None = None) -> Array"),
      R"(gelu(x + bias) in one pass.

x: (..., C), bias: (C), one dtype, float32 or bfloat16. approximate: "none" or "tanh". out: like x; may be x itself.)");
  m.def("bias_gelu_backward", bias_gelu_backward, anything("dy"), anything("x"), anything("bias"), nb::kw_only(),
        anything("approximate") = "none", anything("needs") = nb::none(), anything("out") = nb::none(),
        nb::sig("def bias_gelu_backward(dy: Array, x: Array, bias: Array, *, approximate: str = 'none', needs: "
                "tuple[bool, bool] | None = None, "
                "out: tuple[Array | None, Array | None] | None = None) -> tuple[Array | None, Array | None]"),
        "Gradients (dx, dbias) of bias_gelu. needs: which of them to compute (None: both); the others are None.");
}

}  // namespace hpcdl::python
