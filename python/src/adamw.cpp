// AdamW over many tensors in one call.

#include "hpcdl/ops/adamw/adamw.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "hpcdl/program/on.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/call.h"
#include "python/src/gpu_kernels.h"
#include "python/src/type_error.h"

namespace hpcdl::python {
namespace {

constexpr std::string_view kOp = "adamw";

/// A list of tensors, which stay valid as long as this object.
struct Tensors {
  std::vector<Array> arrays;

  Tensors(const char* name, nb::handle list, std::size_t expected) {
    if (!PyList_Check(list.ptr()) && !PyTuple_Check(list.ptr())) [[unlikely]]
      require_type(false, kOp, "{} must be a list or tuple of arrays, got {}", name, kind_of(list));
    const auto n = static_cast<std::size_t>(PySequence_Size(list.ptr()));
    require(expected == kAny || n == expected, kOp, "{} must have as many entries as params, {}, got {}", name,
            expected, n);
    arrays.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      arrays.emplace_back(kOp, name, nb::object(list[i]));
      const Tensor& t = arrays.back().tensor();
      if (t.dtype() != DType::f32 && t.dtype() != DType::bf16) [[unlikely]]
        require_type(false, kOp, "{}[{}] must be float32 or bfloat16, got {}", name, i, to_string(t.spec()));
      if (!t.is_contiguous()) [[unlikely]]
        fail(kOp, "{}[{}] must be contiguous, got {} with strides {}", name, i, to_string(t.spec()),
             to_string(t.strides()));
    }
  }
  void require_writable(const char* name) const {
    for (std::size_t i = 0; i < arrays.size(); ++i)
      require(arrays[i].writable(), kOp, "{}[{}] is read-only, but this call writes to it", name, i);
  }
  static constexpr std::size_t kAny = static_cast<std::size_t>(-1);
};

/// The check of the op describes every operand, even valid ones: with hundreds of tensors that would take most of a
/// call.
void require_fit(const Spec& p, const Spec& g, const Spec& m, const Spec& v, const Spec& copy) {
  const Spec moment{p.shape, DType::f32};
  if (g.shape == p.shape && m == moment && v == moment && (!copy || copy == Spec{p.shape, DType::bf16})) return;
  detail::require_adamw(p, g, m, v, copy);
}

/// Tensors that are written must be different: one that is listed twice would be updated by two threads.
void require_disjoint(std::initializer_list<const Tensors*> lists) {
  std::vector<std::pair<const std::byte*, const std::byte*>> spans;
  for (const Tensors* list : lists)
    for (const Array& a : list->arrays)
      if (a.tensor().size() > 0)
        spans.emplace_back(a.tensor().ptr<std::byte>(), a.tensor().ptr<std::byte>() + a.tensor().bytes());
  std::sort(spans.begin(), spans.end());
  for (std::size_t i = 1; i < spans.size(); ++i)
    require(spans[i].first >= spans[i - 1].second, kOp,
            "two of the tensors that are updated share memory: is a parameter listed twice?");
}

Device require_one_device(std::initializer_list<const Tensors*> lists) {
  const Device device = (*lists.begin())->arrays[0].tensor().device();
  for (const Tensors* list : lists)
    for (const Array& a : list->arrays)
      if (a.tensor().device() != device) [[unlikely]]
        fail(kOp, "one tensor is on {} and another on {}: expected tensors of one device in one call",
             device_name(device), device_name(a.tensor().device()));
  return device;
}

struct Hyper {
  double beta1, beta2;
  float lr, eps, weight_decay, grad_scale;
  std::int64_t step;
};

void require_hyper(const Hyper& h) {
  require(h.step >= 1, kOp, "step must be at least 1, got {}", h.step);
  require(h.beta1 >= 0 && h.beta1 < 1 && h.beta2 >= 0 && h.beta2 < 1, kOp, "betas must be in [0, 1), got {} and {}",
          h.beta1, h.beta2);
  require(h.eps >= 0 && h.weight_decay >= 0, kOp, "eps and weight_decay must not be negative, got {} and {}", h.eps,
          h.weight_decay);
}

void adamw(nb::handle params, nb::handle grads, nb::handle m, nb::handle v, nb::handle lr, nb::handle step,
           nb::handle betas, nb::handle eps, nb::handle weight_decay, nb::handle decay, nb::handle copies,
           nb::handle grad_scale) {
  require_type(!betas.is_none(), kOp, "betas must be a tuple of 2 numbers, got None");
  const Several both(kOp, "betas", betas, 2);
  const Hyper h{.beta1 = exact_number(kOp, "betas[0]", both[0]),
                .beta2 = exact_number(kOp, "betas[1]", both[1]),
                .lr = number(kOp, "lr", lr),
                .eps = number(kOp, "eps", eps),
                .weight_decay = number(kOp, "weight_decay", weight_decay),
                .grad_scale = number(kOp, "grad_scale", grad_scale),
                .step = integer(kOp, "step", step)};
  require_hyper(h);
  const Tensors ps("params", params, Tensors::kAny);
  const auto n = ps.arrays.size();
  const Tensors gs("grads", grads, n), ms("exp_avgs", m, n), vs("exp_avg_sqs", v, n);
  const Tensors cs("copies", copies.is_none() ? nb::handle(nb::list()) : copies, copies.is_none() ? 0 : n);
  ps.require_writable("params"), ms.require_writable("exp_avgs"), vs.require_writable("exp_avg_sqs"),
      cs.require_writable("copies");
  const Several decays(kOp, "decay", decay, n);
  std::vector<Grad> operands;
  std::vector<std::uint8_t> flags;
  operands.reserve(n * AdamW::kOperands), flags.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    const bool copied = !cs.arrays.empty();
    require_fit(ps.arrays[i].tensor().spec(), gs.arrays[i].tensor().spec(), ms.arrays[i].tensor().spec(),
                vs.arrays[i].tensor().spec(), copied ? cs.arrays[i].tensor().spec() : Spec());
    for (const Tensors* t : {&ps, &gs, &ms, &vs}) operands.emplace_back(t->arrays[i].tensor(), Write::overwrite);
    operands.push_back(copied ? Grad(cs.arrays[i].tensor(), Write::overwrite) : Grad());
    flags.push_back(decay.is_none() || PyObject_IsTrue(nb::object(decays[i]).ptr()) == 1 ? 1 : 0);
  }
  require_disjoint({&ps, &ms, &vs, &cs});
  if (n == 0) return;
  const Device device = require_one_device({&ps, &gs, &ms, &vs, &cs});
  const StepParams state{.step = h.step - 1, .lr = h.lr, .grad_scale = h.grad_scale};
  const AdamW::Args args{h.beta1, h.beta2, h.eps, h.weight_decay};
  const auto count = static_cast<std::int64_t>(n);
  Call call(kOp);
  call.set_framework(ps.arrays[0].framework());
  call.set_device(device);
  if (device.is_cuda()) call.set_params(call.scratch({{sizeof(StepParams)}, DType::u8}).ptr<StepParams>());
  call.run([&](Stream& s) {
    on(
        s,
        [&](auto isa, Pool& pool) {
          cpu::adamw(isa, pool, operands.data(), flags.data(), count, AdamW::step(args, state));
        },
        [&](auto& queue) {
          cuda::put_params(queue, queue.kernel_params(), state);
          cuda::adamw(queue, operands.data(), flags.data(), count, args);
        });
  });
}

}  // namespace

void bind_adamw(nb::module_& m) {
  m.def("adamw", adamw, anything("params"), anything("grads"), anything("exp_avgs"), anything("exp_avg_sqs"),
        nb::kw_only(), anything("lr"), anything("step"), anything("betas") = nb::make_tuple(0.9, 0.999),
        anything("eps") = 1e-8f, anything("weight_decay") = 0.01f, anything("decay") = nb::none(),
        anything("copies") = nb::none(), anything("grad_scale") = 1.0f,
        nb::sig("def adamw(params: list[Array], grads: list[Array], exp_avgs: list[Array], exp_avg_sqs: list[Array], "
                "*, lr: float, step: int, betas: "
                "tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01, decay: list[bool] "
                "| None = None, copies: "
                "list[Array] | None = None, grad_scale: float = 1.0) -> None"),
        R"(One step of AdamW over all tensors, in place, in one kernel.

params, grads: float32 or bfloat16; exp_avgs, exp_avg_sqs: float32; all contiguous, of equal shapes. step
counts from 1. Gradients are multiplied by grad_scale first. decay: which tensors decay (None: all). copies:
bfloat16 tensors that receive the new parameters.)");
}

}  // namespace hpcdl::python
