// Layer norm and RMS norm.

#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"

namespace hpcdl::python {
namespace {

nb::object layer_norm_call(bool keep, nb::handle x, nb::handle weight, nb::handle bias, nb::handle eps,
                           nb::handle out) {
  Call call("layer_norm");
  const LayerNorm::Args a{number(call.op(), "eps", eps)};
  const Several outs(call.op(), "out", keep ? out : nb::none(), 3);
  const View v = call.in("x", x), w = call.in("weight", weight, kContiguous),
             b = call.in_or_absent("bias", bias, kContiguous);
  const auto specs = LayerNorm::infer(v.spec(), w.spec(), b.spec(), a);
  Result y = call.out("out", keep ? outs[0] : nb::borrow(out), specs[0]);
  Result mean = call.statistic_if(keep, "out[1]", outs[1], specs[1]),
         rstd = call.statistic_if(keep, "out[2]", outs[2], specs[2]);
  call.run([&](Stream& s) { LayerNorm::forward(s, y, mean, rstd, v, w, b, a); });
  return keep ? call.give_all(y, mean, rstd) : call.give(y);
}

nb::object layer_norm(nb::handle x, nb::handle weight, nb::handle bias, nb::handle eps, nb::handle out) {
  return layer_norm_call(false, x, weight, bias, eps, out);
}
nb::object layer_norm_forward(nb::handle x, nb::handle weight, nb::handle bias, nb::handle eps, nb::handle out) {
  return layer_norm_call(true, x, weight, bias, eps, out);
}

nb::object layer_norm_backward(nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias, nb::handle mean,
                               nb::handle rstd, nb::handle needs, nb::handle out) {
  Call call("layer_norm_backward");
  const Needs need(call.op(), needs, 3);
  const Several outs(call.op(), "out", out, 3);
  const View g = call.in("dy", dy), v = call.in("x", x), w = call.in("weight", weight, kContiguous);
  const View b = call.in_or_absent("bias", bias, kContiguous), m = call.in("mean", mean, kF32),
             r = call.in("rstd", rstd, kF32);
  const auto specs = LayerNorm::infer(v.spec(), w.spec(), b.spec(), {});
  require_spec(call.op(), "dy", g.spec(), v.spec());
  require_spec(call.op(), "mean", m.spec(), specs[1]), require_spec(call.op(), "rstd", r.spec(), specs[2]);
  Result dx = call.out_if(need[0], "out[0]", outs[0], v.spec()), dw = call.out_if(need[1], "out[1]", outs[1], w.spec());
  Result db = call.out_if(need[2] && b, "out[2]", outs[2], w.spec());
  const Tensor partial = call.scratch(LayerNorm::backward_scratch(v.spec(), w.spec(), b.spec(), {})[0]);
  if (dx || dw || db)
    call.run([&](Stream& s) {
      LayerNorm::backward(s, dx.overwrite(), dw.overwrite(), db.overwrite(), v, w, m, r, g, partial, {});
    });
  return call.give_all(dx, dw, db);
}

nb::object rms_norm_call(bool keep, nb::handle x, nb::handle weight, nb::handle eps, nb::handle out) {
  Call call("rms_norm");
  const RmsNorm::Args a{number(call.op(), "eps", eps)};
  const Several outs(call.op(), "out", keep ? out : nb::none(), 2);
  const View v = call.in("x", x), w = call.in("weight", weight, kContiguous);
  const auto specs = RmsNorm::infer(v.spec(), w.spec(), a);
  Result y = call.out("out", keep ? outs[0] : nb::borrow(out), specs[0]),
         rstd = call.statistic_if(keep, "out[1]", outs[1], specs[1]);
  call.run([&](Stream& s) { RmsNorm::forward(s, y, rstd, v, w, a); });
  return keep ? call.give_all(y, rstd) : call.give(y);
}

nb::object rms_norm(nb::handle x, nb::handle weight, nb::handle eps, nb::handle out) {
  return rms_norm_call(false, x, weight, eps, out);
}
nb::object rms_norm_forward(nb::handle x, nb::handle weight, nb::handle eps, nb::handle out) {
  return rms_norm_call(true, x, weight, eps, out);
}

nb::object rms_norm_backward(nb::handle dy, nb::handle x, nb::handle weight, nb::handle rstd, nb::handle needs,
                             nb::handle out) {
  Call call("rms_norm_backward");
  const Needs need(call.op(), needs, 2);
  const Several outs(call.op(), "out", out, 2);
  const View g = call.in("dy", dy), v = call.in("x", x), w = call.in("weight", weight, kContiguous),
             r = call.in("rstd", rstd, kF32);
  const auto specs = RmsNorm::infer(v.spec(), w.spec(), {});
  require_spec(call.op(), "dy", g.spec(), v.spec()), require_spec(call.op(), "rstd", r.spec(), specs[1]);
  Result dx = call.out_if(need[0], "out[0]", outs[0], v.spec()), dw = call.out_if(need[1], "out[1]", outs[1], w.spec());
  const Tensor partial = call.scratch(RmsNorm::backward_scratch(v.spec(), w.spec(), {})[0]);
  if (!need.none())
    call.run([&](Stream& s) { RmsNorm::backward(s, dx.overwrite(), dw.overwrite(), v, w, r, g, partial, {}); });
  return call.give_all(dx, dw);
}

}  // namespace

void bind_norm(nb::module_& m) {
  m.def("layer_norm", layer_norm, anything("x"), anything("weight"), anything("bias") = nb::none(), nb::kw_only(),
        anything("eps") = 1e-5f, anything("out") = nb::none(),
        nb::sig("def layer_norm(x: Array, weight: Array, bias: Array | None = None, *, eps: float = 1e-5, out: Array | "
                "None = None) -> Array"),
        R"((x - mean) / sqrt(var + eps) * weight + bias over the last dim.

x: (..., C), float32 or bfloat16; rows dense. weight, bias: (C), both float32 or both bfloat16, whatever x is.
out: like x.)");
  m.def("layer_norm_forward", layer_norm_forward, anything("x"), anything("weight"), anything("bias") = nb::none(),
        nb::kw_only(), anything("eps") = 1e-5f, anything("out") = nb::none(),
        nb::sig("def layer_norm_forward(x: Array, weight: Array, bias: Array | None = None, *, eps: float = 1e-5, "
                "out: tuple[Array | None, Array | None, Array | None] | None = None) -> tuple[Array, Array, Array]"),
        "layer_norm, with what its gradient needs: (y, mean, rstd). mean and rstd = 1 / sqrt(var + eps): float32, one "
        "per row (...).");
  m.def("layer_norm_backward", layer_norm_backward, anything("dy"), anything("x"), anything("weight"), anything("bias"),
        anything("mean"), anything("rstd"), nb::kw_only(), anything("needs") = nb::none(), anything("out") = nb::none(),
        nb::sig("def layer_norm_backward(dy: Array, x: Array, weight: Array, bias: Array | None, mean: Array, rstd: "
                "Array, *, "
                "needs: tuple[bool, bool, bool] | None = None, out: tuple[Array | None, Array | None, Array | None] | "
                "None = None) "
                "-> tuple[Array | None, Array | None, Array | None]"),
        R"(Gradients (dx, dweight, dbias) of layer_norm.

mean, rstd: from layer_norm_forward. Only the presence of bias matters. needs: which gradients to compute
(None: all); the others are None.)");
  m.def("rms_norm", rms_norm, anything("x"), anything("weight"), nb::kw_only(), anything("eps") = 1e-5f,
        anything("out") = nb::none(),
        nb::sig("def rms_norm(x: Array, weight: Array, *, eps: float = 1e-5, out: Array | None = None) -> Array"),
        R"(x / sqrt(mean(x^2) + eps) * weight over the last dim.

x: (..., C), float32 or bfloat16; rows dense. weight: (C), float32 or bfloat16, whatever x is. out: like x.)");
  m.def("rms_norm_forward", rms_norm_forward, anything("x"), anything("weight"), nb::kw_only(), anything("eps") = 1e-5f,
        anything("out") = nb::none(),
        nb::sig("def rms_norm_forward(x: Array, weight: Array, *, eps: float = 1e-5, out: tuple[Array | None, Array | "
                "None] | None = None) "
                "-> tuple[Array, Array]"),
        "rms_norm, with what its gradient needs: (y, rstd). rstd = 1 / sqrt(mean + eps): float32, one per row (...).");
  m.def("rms_norm_backward", rms_norm_backward, anything("dy"), anything("x"), anything("weight"), anything("rstd"),
        nb::kw_only(), anything("needs") = nb::none(), anything("out") = nb::none(),
        nb::sig("def rms_norm_backward(dy: Array, x: Array, weight: Array, rstd: Array, *, needs: tuple[bool, bool] | "
                "None = None, "
                "out: tuple[Array | None, Array | None] | None = None) -> tuple[Array | None, Array | None]"),
        "Gradients (dx, dweight) of rms_norm. rstd: from rms_norm_forward. needs: which to compute (None: both); the "
        "others are None.");
}

}  // namespace hpcdl::python
