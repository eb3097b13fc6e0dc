// Attention on q, k, v in either order of heads and tokens, or packed.

#include "hpcdl/ops/attention/attention.h"

#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"
#include "python/src/words.h"

namespace hpcdl::python {
namespace {

struct Options {
  nb::handle causal, scale, heads, layout;
};

/// How the caller's dims map to (B, T, H, D), and the arguments of the op.
class Form {
 public:
  Form(Call& call, const View& q, const View& k, const Options& o) {
    const int rank = q.rank();
    require((rank == 3 || rank == 4) && k.rank() == rank, call.op(),
            "q, k and v must all be (B, H, T, D), (B, T, H, D) or (B, T, H*D), got {} and {}", to_string(q.spec()),
            to_string(k.spec()));
    heads_first_ = choose(call.op(), "layout", o.layout, {"bhtd", "bthd"}) == 0 && rank == 4;
    if (rank == 4) {
      require_type(o.heads.is_none(), call.op(),
                   "heads is for q of shape (B, T, H*D); here the shape {} already gives the heads",
                   to_string(q.spec()));
      args.heads = static_cast<int>(q[heads_first_ ? 1 : 2]), args.kv_heads = static_cast<int>(k[heads_first_ ? 1 : 2]);
      require(args.heads > 0 && args.kv_heads > 0, call.op(), "there must be at least one head, got {} and {}",
              to_string(q.spec()), to_string(k.spec()));
    } else {
      require_type(!o.heads.is_none(), call.op(), "q is {}: pass heads=H", to_string(q.spec()));
      const auto heads = integer(call.op(), "heads", o.heads);
      require(heads > 0 && heads <= q[2] && q[2] % heads == 0, call.op(),
              "heads must divide the last dim of q, got {} and {}", heads, to_string(q.spec()));
      args.heads = static_cast<int>(heads);
      const auto width = q[2] / args.heads;
      require(k[2] % width == 0 && k[2] > 0, call.op(), "k must hold heads of {}, got {}", width, to_string(k.spec()));
      args.kv_heads = static_cast<int>(k[2] / width);
    }
    args.causal = flag(call.op(), "causal", o.causal);
    if (!o.scale.is_none()) {
      args.scale = number(call.op(), "scale", o.scale);
      require(args.scale > 0, call.op(), "scale must be positive, got {}", args.scale);
    }
  }

  /// Converts the caller's dims to the order of the op, and back: the same swap.
  template <class T> T turned(const T& t) const {
    if (!heads_first_ || !t) return t;
    return T(t.data(), {turned(t.shape()), t.dtype()}, turned(t.strides()), t.device());
  }
  Shape turned(Shape s) const {
    if (heads_first_) std::swap(s[1], s[2]);
    return s;
  }
  Grad gradient(const Result& r) const { return r ? Grad(turned(r.tensor), Write::overwrite) : Grad(); }
  /// Row-major strides in the memory order of `like`: tokens outside heads, or heads outside tokens.
  Shape strides_like(const View& like) const {
    const bool tokens_outside =
        like.rank() == 4 && heads_first_ && like.strides()[2] > like.strides()[1] && like[1] > 1 && like[2] > 1;
    return tokens_outside ? turned(contiguous_strides(turned(like.shape()))) : contiguous_strides(like.shape());
  }

  Attention::Args args;

 private:
  bool heads_first_ = false;
};

nb::object attention_call(bool keep, nb::handle q, nb::handle k, nb::handle v, const Options& o, nb::handle out) {
  Call call("attention");
  const Several outs(call.op(), "out", keep ? out : nb::none(), 2);
  const View vq = call.in("q", q, kHeads), vk = call.in("k", k, kHeads), vv = call.in("v", v, kHeads);
  const Form f(call, vq, vk, o);
  const View tq = f.turned(vq), tk = f.turned(vk), tv = f.turned(vv);
  const auto specs = Attention::infer(tq.spec(), tk.spec(), tv.spec(), f.args);
  Result y = call.out("out", keep ? outs[0] : nb::borrow(out), vq.spec(), {}, f.strides_like(vq), Layout::dense_last);
  Result lse = call.statistic_if(keep, "out[1]", outs[1], specs[1]);
  const Tensor to = f.turned(y.tensor);
  const Tensor scratch = call.scratch(Attention::scratch(tq.spec(), tk.spec(), tv.spec(), f.args)[0]);
  call.run([&](Stream& s) { Attention::forward(s, to, lse, tq, tk, tv, scratch, f.args); });
  return keep ? call.give_all(y, lse) : call.give(y);
}

nb::object attention(nb::handle q, nb::handle k, nb::handle v, nb::handle causal, nb::handle scale, nb::handle heads,
                     nb::handle layout, nb::handle out) {
  return attention_call(false, q, k, v, {causal, scale, heads, layout}, out);
}
nb::object attention_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle causal, nb::handle scale,
                             nb::handle heads, nb::handle layout, nb::handle out) {
  return attention_call(true, q, k, v, {causal, scale, heads, layout}, out);
}

nb::object attention_backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle y, nb::handle lse,
                              nb::handle causal, nb::handle scale, nb::handle heads, nb::handle layout,
                              nb::handle needs, nb::handle out, nb::handle atomic_sums) {
  Call call("attention_backward");
  const Needs need(call.op(), needs, 3);
  const Several outs(call.op(), "out", out, 3);
  const View g = call.in("dy", dout, kHeads), vq = call.in("q", q, kHeads), vk = call.in("k", k, kHeads),
             vv = call.in("v", v, kHeads);
  const View vy = call.in("y", y, kHeads), l = call.in("lse", lse, kF32);
  const Form f(call, vq, vk, {causal, scale, heads, layout});
  const View tq = f.turned(vq), tk = f.turned(vk), tv = f.turned(vv), ty = f.turned(vy), tg = f.turned(g);
  const auto specs = Attention::infer(tq.spec(), tk.spec(), tv.spec(), f.args);
  require_spec(call.op(), "dy", g.spec(), vq.spec()), require_spec(call.op(), "y", vy.spec(), vq.spec()),
      require_spec(call.op(), "lse", l.spec(), specs[1]);
  const auto result = [&](int i, const char* name, const View& like) {
    const auto n = static_cast<std::size_t>(i);
    return need[n] ? call.out(name, outs[n], like.spec(), {}, f.strides_like(like), Layout::dense_last) : Result();
  };
  Result dq = result(0, "out[0]", vq), dk = result(1, "out[1]", vk), dv = result(2, "out[2]", vv);
  const Tensor scratch = call.scratch(Attention::backward_scratch(tq.spec(), tk.spec(), tv.spec(), f.args)[0]);
  const Numerics numerics{.atomic_sums = flag(call.op(), "atomic_sums", atomic_sums)};
  if (!need.none())
    call.run([&](Stream& s) {
      const WithNumerics kept(s, numerics);
      Attention::backward(s, f.gradient(dq), f.gradient(dk), f.gradient(dv), tq, tk, tv, ty, l, tg, scratch, f.args);
    });
  return call.give_all(dq, dk, dv);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention", attention, anything("q"), anything("k"), anything("v"), nb::kw_only(), anything("causal") = false,
        anything("scale") = nb::none(), anything("heads") = nb::none(), anything("layout") = "bhtd",
        anything("out") = nb::none(),
        nb::sig("def attention(q: Array, k: Array, v: Array, *, causal: bool = False, scale: float | None = None, "
                "heads: int | None = None, "
                "layout: str = 'bhtd', out: Array | None = None) -> Array"),
        R"(softmax(scale * q @ k.T) @ v for every head, tiled: the T x S matrix is never stored.

q: (B, H, T, D), k and v: (B, Hkv, S, D), one dtype, float32 or bfloat16; Hkv divides H (grouped queries).
layout "bthd": (B, T, H, D) and (B, S, Hkv, D). Or q (B, T, H*D) with heads=H, k and v (B, S, Hkv*D). Any
strides, as long as D is dense: transposed views and slices of a packed qkv are read in place. D is at most
256. causal: query t sees keys 0 .. t + S - T. scale: 1/sqrt(D) unless given. The result is like q and lies in
memory in its order.)");
  m.def("attention_forward", attention_forward, anything("q"), anything("k"), anything("v"), nb::kw_only(),
        anything("causal") = false, anything("scale") = nb::none(), anything("heads") = nb::none(),
        anything("layout") = "bhtd", anything("out") = nb::none(),
        nb::sig(
            "def attention_forward(q: Array, k: Array, v: Array, *, causal: bool = False, scale: float | None = None, "
            "heads: int | None = "
            "None, layout: str = 'bhtd', out: tuple[Array | None, Array | None] | None = None) -> tuple[Array, Array]"),
        "attention, with what its gradient needs: (y, lse). lse: log of the sum of exp(scores), float32 (B, H, T).");
  m.def("attention_backward", attention_backward, anything("dy"), anything("q"), anything("k"), anything("v"),
        anything("y"), anything("lse"), nb::kw_only(), anything("causal") = false, anything("scale") = nb::none(),
        anything("heads") = nb::none(), anything("layout") = "bhtd", anything("needs") = nb::none(),
        anything("out") = nb::none(), anything("atomic_sums") = false,
        nb::sig(
            "def attention_backward(dy: Array, q: Array, k: Array, v: Array, y: Array, lse: Array, *, causal: bool "
            "= False, scale: float | "
            "None = None, heads: int | None = None, layout: str = 'bhtd', needs: tuple[bool, bool, bool] | None = "
            "None, out: tuple[Array | "
            "None, Array | None, Array | None] | None = None, atomic_sums: bool = False) -> tuple[Array | None, Array "
            "| None, Array | None]"),
        "Gradients (dq, dk, dv) of attention. y, lse: from attention_forward. needs: which to compute (None: all); the "
        "others are None. atomic_sums: a GPU may add up dq in another order each time, where that is faster.");
}

}  // namespace hpcdl::python
