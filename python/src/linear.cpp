// Matrix products with their epilogues, and the two-layer perceptron.

#include "hpcdl/ops/linear/linear.h"

#include "hpcdl/ops/linear/packed.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"
#include "python/src/gelu_form.h"
#include "python/src/type_error.h"
#include "python/src/words.h"

namespace hpcdl::python {
namespace {

Activation activation_of(std::string_view op, nb::handle name) {
  constexpr Activation all[] = {Activation::none, Activation::relu, Activation::gelu_erf, Activation::gelu_tanh};
  return all[choose(op, "activation", name, {"none", "relu", "gelu", "gelu_tanh"})];
}

void linear_into(Stream& s, Tensor y, Tensor z, View x, View w, View bias, View residual, const LinearArgs& a) {
  if (a.activation == Activation::none) Linear::forward(s, y, x, w, bias, residual, a);
  else ActivatedLinear::forward(s, y, z, x, w, bias, residual, a);
}

/// Null for an array.
const PackedWeight* packed_weight(const Call& call, bool keep, nb::handle weight) {
  if (!nb::isinstance<PackedWeight>(weight)) return nullptr;
  require_type(!keep, call.op(),
               "gradients need the weight itself, not a PackedWeight: pass the array, or compute without them");
  return nb::inst_ptr<PackedWeight>(weight);
}

nb::object linear_call(bool keep, nb::handle x, nb::handle weight, nb::handle bias, nb::handle residual,
                       nb::handle activation, nb::handle out) {
  Call call("linear");
  const LinearArgs a{.activation = activation_of(call.op(), activation)};
  const Several outs(call.op(), "out", keep ? out : nb::none(), 2);
  const PackedWeight* packed = packed_weight(call, keep, weight);
  const View v = call.in("x", x), w = packed ? View() : call.in("weight", weight);
  if (packed && v.device().is_cuda()) [[unlikely]]
    fail(call.op(), "x is on {}, but the weight is packed for the CPU: pass the weight itself",
         device_name(v.device()));
  const View b = call.in_or_absent("bias", bias, kContiguous), r = call.in_or_absent("residual", residual);
  const Spec spec = packed ? linear_spec(v.spec(), *packed, b.spec(), r.spec())
                           : linear_spec(call.op(), v.spec(), w.spec(), b.spec(), r.spec(), a);
  if (v[-1] <= 0) [[unlikely]]
    fail(call.op(), "x must have columns, got {}", to_string(v.spec()));
  Result y = call.out("out", keep ? outs[0] : nb::borrow(out), spec, r);
  Result z = call.out_if(keep && a.activation != Activation::none, "out[1]", outs[1], spec);
  call.run([&](Stream& s) {
    if (packed) hpcdl::linear(s, y, v, *packed, b, r, a.activation);
    else linear_into(s, y, z, v, w, b, r, a);
  });
  return keep ? call.give_all(y, z) : call.give(y);
}

nb::object linear(nb::handle x, nb::handle weight, nb::handle bias, nb::handle residual, nb::handle activation,
                  nb::handle out) {
  return linear_call(false, x, weight, bias, residual, activation, out);
}
nb::object linear_forward(nb::handle x, nb::handle weight, nb::handle bias, nb::handle residual, nb::handle activation,
                          nb::handle out) {
  return linear_call(true, x, weight, bias, residual, activation, out);
}

nb::object linear_backward(nb::handle dy, nb::handle x, nb::handle weight, nb::handle bias, nb::handle z,
                           nb::handle activation, nb::handle needs, nb::handle out) {
  Call call("linear_backward");
  const LinearArgs a{.activation = activation_of(call.op(), activation)};
  const bool active = a.activation != Activation::none;
  const Needs need(call.op(), needs, 3);
  const Several outs(call.op(), "out", out, 3);
  const View g = call.in("dy", dy), v = call.in("x", x), w = call.in("weight", weight);
  const View b = call.in_or_absent("bias", bias, kContiguous), pre = call.in_or_absent("z", z);
  const Spec spec = linear_spec(call.op(), v.spec(), w.spec(), b.spec(), {}, a);
  require_spec(call.op(), "dy", g.spec(), spec);
  require(active == static_cast<bool>(pre), call.op(),
          "pass z of linear_forward if and only if there is an activation");
  if (active) require_spec(call.op(), "z", pre.spec(), spec);
  Result dx = call.out_if(need[0], "out[0]", outs[0], v.spec()), dw = call.out_if(need[1], "out[1]", outs[1], w.spec());
  Result db = call.out_if(need[2] && b, "out[2]", outs[2], b.spec());
  const Tensor dz = active ? call.scratch(spec) : Tensor();
  if (dx || dw || db)
    call.run([&](Stream& s) {
      if (active) ActivatedLinear::backward(s, dx.overwrite(), dw.overwrite(), db.overwrite(), {}, v, w, pre, g, dz, a);
      else Linear::backward(s, dx.overwrite(), dw.overwrite(), db.overwrite(), {}, v, w, g, a);
    });
  return call.give_all(dx, dw, db);
}

/// gelu(x w1^T + b1) w2^T + b2: operands and specs of the three passes.
struct Mlp {
  LinearArgs first, second{};
  View x, w1, b1, w2, b2;
  Spec hidden, y;

  Mlp(Call& call, nb::handle x_, nb::handle w1_, nb::handle b1_, nb::handle w2_, nb::handle b2_,
      nb::handle approximate) {
    first.activation =
        gelu_form(call.op(), approximate) == Gelu::Form::erf ? Activation::gelu_erf : Activation::gelu_tanh;
    x = call.in("x", x_), w1 = call.in("w1", w1_), b1 = call.in_or_absent("b1", b1_, kContiguous);
    w2 = call.in("w2", w2_), b2 = call.in_or_absent("b2", b2_, kContiguous);
    hidden = linear_spec(call.op(), x.spec(), w1.spec(), b1.spec(), {}, first);
    y = linear_spec(call.op(), hidden, w2.spec(), b2.spec(), {}, second);
    require(x[-1] > 0 && hidden[-1] > 0, call.op(), "x and the hidden layer must have columns, got {} and {}",
            to_string(x.spec()), to_string(hidden));
  }
};

nb::object mlp_call(bool keep, nb::handle x, nb::handle w1, nb::handle b1, nb::handle w2, nb::handle b2,
                    nb::handle approximate, nb::handle out) {
  Call call("bias_gelu_mlp");
  const Several outs(call.op(), "out", keep ? out : nb::none(), 3);
  const Mlp m(call, x, w1, b1, w2, b2, approximate);
  Result y = call.out("out", keep ? outs[0] : nb::borrow(out), m.y);
  Result h = call.out_if(keep, "out[1]", outs[1], m.hidden), z = call.out_if(keep, "out[2]", outs[2], m.hidden);
  const Tensor hidden = keep ? h.tensor : call.scratch(m.hidden);
  call.run([&](Stream& s) {
    linear_into(s, hidden, z, m.x, m.w1, m.b1, {}, m.first);
    linear_into(s, y, {}, hidden, m.w2, m.b2, {}, m.second);
  });
  return keep ? call.give_all(y, h, z) : call.give(y);
}

nb::object bias_gelu_mlp(nb::handle x, nb::handle w1, nb::handle b1, nb::handle w2, nb::handle b2,
                         nb::handle approximate, nb::handle out) {
  return mlp_call(false, x, w1, b1, w2, b2, approximate, out);
}
nb::object bias_gelu_mlp_forward(nb::handle x, nb::handle w1, nb::handle b1, nb::handle w2, nb::handle b2,
                                 nb::handle approximate, nb::handle out) {
  return mlp_call(true, x, w1, b1, w2, b2, approximate, out);
}

nb::object bias_gelu_mlp_backward(nb::handle dy, nb::handle x, nb::handle w1, nb::handle b1, nb::handle w2,
                                  nb::handle b2, nb::handle h, nb::handle z, nb::handle approximate, nb::handle needs,
                                  nb::handle out) {
  Call call("bias_gelu_mlp_backward");
  const Needs need(call.op(), needs, 5);
  const Several outs(call.op(), "out", out, 5);
  const View g = call.in("dy", dy);
  const Mlp m(call, x, w1, b1, w2, b2, approximate);
  const View hidden = call.in("h", h), pre = call.in("z", z);
  require_spec(call.op(), "dy", g.spec(), m.y), require_spec(call.op(), "h", hidden.spec(), m.hidden);
  require_spec(call.op(), "z", pre.spec(), m.hidden);
  Result dx = call.out_if(need[0], "out[0]", outs[0], m.x.spec()),
         dw1 = call.out_if(need[1], "out[1]", outs[1], m.w1.spec());
  Result db1 = call.out_if(need[2] && m.b1, "out[2]", outs[2], m.b1.spec()),
         dw2 = call.out_if(need[3], "out[3]", outs[3], m.w2.spec());
  Result db2 = call.out_if(need[4] && m.b2, "out[4]", outs[4], m.b2.spec());
  const bool first = dx || dw1 || db1;
  const Tensor dh = first ? call.scratch(m.hidden) : Tensor(), dz = first ? call.scratch(m.hidden) : Tensor();
  if (first || dw2 || db2)
    call.run([&](Stream& s) {
      Linear::backward(s, dh ? Grad(dh, Write::overwrite) : Grad(), dw2.overwrite(), db2.overwrite(), {}, hidden, m.w2,
                       g, m.second);
      if (first)
        ActivatedLinear::backward(s, dx.overwrite(), dw1.overwrite(), db1.overwrite(), {}, m.x, m.w1, pre, dh, dz,
                                  m.first);
    });
  return call.give_all(dx, dw1, db1, dw2, db2);
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("linear", linear, anything("x"), anything("weight"), anything("bias") = nb::none(), nb::kw_only(),
        anything("residual") = nb::none(), anything("activation") = "none", anything("out") = nb::none(),
        nb::sig("def linear(x: Array, weight: Array | PackedWeight, bias: Array | None = None, *, residual: Array | "
                "None = None, "
                "activation: str = 'none', "
                "out: Array | None = None) -> Array"),
        R"(activation(x @ weight.T + bias) + residual in one kernel.

x: (..., K), weight: (N, K), bias: (N), float32 or bfloat16 each; rows dense. residual: like the result, (...,
N) in the dtype of x. Products are formed in the dtype of x, sums in float32. activation: "none", "relu",
"gelu" (error function), "gelu_tanh". out: may be residual. On the CPU weight may be a PackedWeight.)");
  m.def("linear_forward", linear_forward, anything("x"), anything("weight"), anything("bias") = nb::none(),
        nb::kw_only(), anything("residual") = nb::none(), anything("activation") = "none", anything("out") = nb::none(),
        nb::sig("def linear_forward(x: Array, weight: Array, bias: Array | None = None, *, residual: Array | None = "
                "None, activation: str = "
                "'none', out: tuple[Array | None, Array | None] | None = None) -> tuple[Array, Array | None]"),
        "linear, with what its gradient needs: (y, z). z = x @ weight.T + bias, None without an activation.");
  m.def("linear_backward", linear_backward, anything("dy"), anything("x"), anything("weight"),
        anything("bias") = nb::none(), anything("z") = nb::none(), nb::kw_only(), anything("activation") = "none",
        anything("needs") = nb::none(), anything("out") = nb::none(),
        nb::sig("def linear_backward(dy: Array, x: Array, weight: Array, bias: Array | None = None, z: Array | None = "
                "None, *, activation: "
                "str = 'none', needs: tuple[bool, bool, bool] | None = None, out: tuple[Array | None, Array | None, "
                "Array | None] | None = "
                "None) -> tuple[Array | None, Array | None, Array | None]"),
        R"(Gradients (dx, dweight, dbias) of linear; that of residual is dy.

Only the presence and the dtype of bias matter. z: from linear_forward. needs: which to compute (None: all); the others
are None.)");
  m.def("bias_gelu_mlp", bias_gelu_mlp, anything("x"), anything("w1"), anything("b1"), anything("w2"), anything("b2"),
        nb::kw_only(), anything("approximate") = "none", anything("out") = nb::none(),
        nb::sig("def bias_gelu_mlp(x: Array, w1: Array, b1: Array | None, w2: Array, b2: Array | None, *, approximate: "
                "str = 'none', "
                "out: Array | None = None) -> Array"),
        R"(gelu(x @ w1.T + b1) @ w2.T + b2: two kernels.

x: (..., K), w1: (F, K), b1: (F), w2: (N, F), b2: (N), float32 or bfloat16 each; rows dense. approximate:
"none" or "tanh". The result is (..., N) in the dtype of x.)");
  m.def("bias_gelu_mlp_forward", bias_gelu_mlp_forward, anything("x"), anything("w1"), anything("b1"), anything("w2"),
        anything("b2"), nb::kw_only(), anything("approximate") = "none", anything("out") = nb::none(),
        nb::sig("def bias_gelu_mlp_forward(x: Array, w1: Array, b1: Array | None, w2: Array, b2: Array | None, *, "
                "approximate: str = 'none', "
                "out: tuple[Array | None, Array | None, Array | None] | None = None) -> tuple[Array, Array, Array]"),
        "bias_gelu_mlp, with what its gradient needs: (y, h, z). z = x @ w1.T + b1 and h = gelu(z), both (..., F).");
  m.def("bias_gelu_mlp_backward", bias_gelu_mlp_backward, anything("dy"), anything("x"), anything("w1"), anything("b1"),
        anything("w2"), anything("b2"), anything("h"), anything("z"), nb::kw_only(), anything("approximate") = "none",
        anything("needs") = nb::none(), anything("out") = nb::none(),
        nb::sig("def bias_gelu_mlp_backward(dy: Array, x: Array, w1: Array, b1: Array | None, w2: Array, b2: Array | "
                "None, h: Array, z: Array, "
                "*, approximate: str = 'none', needs: tuple[bool, ...] | None = None, out: tuple[Array | None, ...] | "
                "None = None) "
                "-> tuple[Array | None, ...]"),
        "Gradients (dx, dw1, db1, dw2, db2) of bias_gelu_mlp. h, z: from bias_gelu_mlp_forward. needs: which to "
        "compute (None: all).");
}

}  // namespace hpcdl::python
