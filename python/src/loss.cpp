// Cross-entropy.

#include <cmath>

#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"
#include "python/src/gpu_kernels.h"
#include "python/src/words.h"

namespace hpcdl::python {
namespace {

bool is_mean(std::string_view op, nb::handle reduction) {
  return choose(op, "reduction", reduction, {"mean", "sum"}) == 0;
}

/// Targets in the form that kernels read: i32, negative if ignored. Converted only if necessary. On a CPU
/// a target outside the vocabulary is an error; on a GPU, where calls do not wait to check, it makes the loss NaN.
struct Targets {
  View view;
  std::int64_t valid = 0;  // known only on a CPU

  Targets(Call& call, nb::handle object, const View& logits, nb::handle ignore_index) {
    const auto ignore = integer(call.op(), "ignore_index", ignore_index);
    const View given = call.in("targets", object, kIndices);
    const Spec spec{given.shape(), DType::i32};
    CrossEntropy::infer(logits.spec(), spec, {});
    const bool as_is = given.dtype() == DType::i32 && ignore < 0;
    const Tensor copy = as_is ? Tensor() : call.scratch(spec);
    view = as_is ? given : View(copy);
    const auto vocabulary = logits[-1];
    if (!given.device().is_cuda()) look(call.op(), given, copy, ignore, vocabulary);
#if HPCDL_CUDA
    else if (copy) call.run([&](Stream& s) { cuda::plain_targets(s, copy, given, ignore, vocabulary); });
#endif
  }

 private:
  void look(std::string_view op, const View& given, const Tensor& copy, std::int64_t ignore, std::int64_t vocabulary) {
    for (std::int64_t i = 0; i < given.size(); ++i) {
      const std::int64_t t = given.dtype() == DType::i64 ? given.ptr<std::int64_t>()[i] : given.ptr<std::int32_t>()[i];
      if (t != ignore && (t < 0 || t >= vocabulary)) [[unlikely]]
        fail(op, "targets must be 0 .. {} or ignore_index {}, got {} at position {}", vocabulary - 1, ignore, t, i);
      valid += t != ignore ? 1 : 0;
      if (copy) copy.ptr<std::int32_t>()[i] = t == ignore ? -1 : static_cast<std::int32_t>(t);
    }
  }
};

/// The factor for the gradient of the loss: 1 for a sum, 1 / valid rows for a mean. Without valid rows a mean is
/// NaN, as in PyTorch, but its gradient is 0.
float share(bool mean, std::int64_t valid) {
  return !mean ? 1.0f : valid > 0 ? 1.0f / static_cast<float>(valid) : 0.0f;
}

struct Loss {
  Result loss, lse;
  Tensor row_loss, count;

  Loss(Call& call, const View& logits, const View& targets, nb::handle out) {
    const auto specs = CrossEntropy::infer(logits.spec(), targets.spec(), {});
    loss = call.out("out", nb::none(), {Shape{}, DType::f32});
    lse = call.out("out", out, specs[2]);
    row_loss = call.scratch(CrossEntropy::scratch(logits.spec(), targets.spec(), {})[0]);
    count = call.scratch({{1}, DType::f32});
  }
  void run(Stream& s, const View& logits, const View& targets, bool mean) {
    const Tensor one(loss.tensor.data(), {{1}, DType::f32}, logits.device());
    CrossEntropy::forward(s, one, count, lse, logits, targets, row_loss, {});
    if (!mean) return;
#if HPCDL_CUDA
    if (s.device().is_cuda()) return cuda::divide(s, one.ptr<float>(), count.ptr<float>());
#endif
    *one.ptr<float>() /= *count.ptr<float>();
  }
};

/// The gradient of the loss, as the op needs it: one f32 on the device of the logits.
class LossGradient {
 public:
  /// dloss: a number or a float32 array of one element.
  LossGradient(Call& call, nb::handle dloss) : device_(call.device()) {
    if (PyFloat_Check(dloss.ptr()) ||
        PyLong_Check(dloss.ptr())) {  // a tensor could also be cast, but only by waiting for it
      value_ = number(call.op(), "dloss", dloss);
    } else {
      given_ = call.in("dloss", dloss, kF32);
      require(given_.size() == 1, call.op(), "dloss must be a number or one element, got {}", given_.size());
      if (!device_.is_cuda()) value_ = *given_.ptr<float>();
    }
    if (device_.is_cuda()) scaled_ = call.scratch({{1}, DType::f32});
  }
  View scaled([[maybe_unused]] Stream& s, const Targets& t, bool mean) {
#if HPCDL_CUDA
    if (device_.is_cuda()) {
      cuda::share_of_gradient(s, scaled_.ptr<float>(), given_ ? given_.ptr<float>() : nullptr, value_, t.view, mean);
      return scaled_;
    }
#endif
    value_ *= share(mean, t.valid);
    return View(&value_, {{1}, DType::f32});
  }

 private:
  Device device_;
  float value_ = 1;
  View given_;
  Tensor scaled_;
};

nb::object cross_entropy_call(bool keep, nb::handle logits, nb::handle targets, nb::handle reduction,
                              nb::handle ignore) {
  Call call("cross_entropy");
  const bool mean = is_mean(call.op(), reduction);
  const View x = call.in("logits", logits);
  const Targets t(call, targets, x, ignore);
  Loss l(call, x, t.view, nb::none());
  call.run([&](Stream& s) { l.run(s, x, t.view, mean); });
  return keep ? call.give_all(l.loss, l.lse) : call.give(l.loss);
}

nb::object cross_entropy(nb::handle logits, nb::handle targets, nb::handle reduction, nb::handle ignore) {
  return cross_entropy_call(false, logits, targets, reduction, ignore);
}
nb::object cross_entropy_forward(nb::handle logits, nb::handle targets, nb::handle reduction, nb::handle ignore) {
  return cross_entropy_call(true, logits, targets, reduction, ignore);
}

nb::object cross_entropy_backward(nb::handle dloss, nb::handle logits, nb::handle targets, nb::handle lse,
                                  nb::handle reduction, nb::handle ignore, nb::handle out) {
  Call call("cross_entropy_backward");
  const bool mean = is_mean(call.op(), reduction);
  const View x = call.in("logits", logits);
  const Targets t(call, targets, x, ignore);
  const View l = call.in("lse", lse, kF32);
  require_spec(call.op(), "lse", l.spec(), CrossEntropy::infer(x.spec(), t.view.spec(), {})[2]);
  LossGradient g(call, dloss);
  Result dx = call.out("out", out, x.spec(), x);
  call.run([&](Stream& s) { CrossEntropy::backward(s, dx.overwrite(), x, t.view, l, g.scaled(s, t, mean), {}); });
  return call.give(dx);
}

nb::object cross_entropy_with_grad(nb::handle logits, nb::handle targets, nb::handle reduction, nb::handle ignore,
                                   nb::handle out) {
  Call call("cross_entropy_with_grad");
  const bool mean = is_mean(call.op(), reduction);
  const View x = call.in("logits", logits);
  const Targets t(call, targets, x, ignore);
  Loss l(call, x, t.view, nb::none());
  LossGradient g(call, nb::float_(1.0));
  Result dx = call.out("out", out, x.spec(), x);
  call.run([&](Stream& s) {
    l.run(s, x, t.view, mean);
    CrossEntropy::backward(s, dx.overwrite(), x, t.view, l.lse, g.scaled(s, t, mean), {});
  });
  return call.give_all(l.loss, dx);
}

}  // namespace

void bind_loss(nb::module_& m) {
  m.def("cross_entropy", cross_entropy, anything("logits"), anything("targets"), nb::kw_only(),
        anything("reduction") = "mean", anything("ignore_index") = -100,
        nb::sig("def cross_entropy(logits: Array, targets: Array, *, reduction: str = 'mean', ignore_index: int = "
                "-100) -> Array"),
        R"(Mean (or sum) over the rows of logsumexp(logits) - logits[target]: a float32 scalar array.

logits: (..., V), float32 or bfloat16; rows dense. targets: (...), int32 (read in place) or int64, each 0 ..
V-1 or ignore_index. ValueError for any other target; on a GPU the loss is NaN then.)");
  m.def("cross_entropy_forward", cross_entropy_forward, anything("logits"), anything("targets"), nb::kw_only(),
        anything("reduction") = "mean", anything("ignore_index") = -100,
        nb::sig("def cross_entropy_forward(logits: Array, targets: Array, *, reduction: str = 'mean', ignore_index: "
                "int = -100) "
                "-> tuple[Array, Array]"),
        "cross_entropy, with what its gradient needs: (loss, lse). lse: logsumexp of every row, float32 (...).");
  m.def("cross_entropy_backward", cross_entropy_backward, anything("dloss"), anything("logits"), anything("targets"),
        anything("lse"), nb::kw_only(), anything("reduction") = "mean", anything("ignore_index") = -100,
        anything("out") = nb::none(),
        nb::sig("def cross_entropy_backward(dloss: float | Array, logits: Array, targets: Array, lse: Array, *, "
                "reduction: str "
                "= 'mean', "
                "ignore_index: int = -100, out: Array | None = None) -> Array"),
        "Gradient of cross_entropy for the logits. dloss: a number, or one float32 element (on a GPU the call does not "
        "wait for it). lse: from cross_entropy_forward. out: like logits; may be logits itself.");
  m.def("cross_entropy_with_grad", cross_entropy_with_grad, anything("logits"), anything("targets"), nb::kw_only(),
        anything("reduction") = "mean", anything("ignore_index") = -100, anything("out") = nb::none(),
        nb::sig("def cross_entropy_with_grad(logits: Array, targets: Array, *, reduction: str = 'mean', ignore_index: "
                "int = -100, "
                "out: Array | None = None) -> tuple[Array, Array]"),
        "(loss, dlogits) in one call. out: where dlogits goes; may be logits itself.");
}

}  // namespace hpcdl::python
