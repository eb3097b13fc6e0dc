// Our ops, called through the kernel ABI, so that the same code checks them and other kernels.

#include <deque>
#include <map>

#include "hpcdl/core/error.h"
#include "hpcdl/lab/verify/contract.h"
#include "hpcdl/lab/verify/subject.h"
#include "hpcdl/ops/adamw/adamw.spec.h"
#include "hpcdl/ops/grad_norm/grad_norm.spec.h"
#include "hpcdl/ops/loss_scale/loss_scale.spec.h"
#include "hpcdl/program/op_info.h"

namespace hpcdl::lab::verify {
namespace {

/// What hpcdl_kernel.user points to.
struct OwnKernel {
  const Contract* contract = nullptr;
  simd::IsaKind isa{};
};
const OwnKernel& own_of(const hpcdl_call* c) { return *static_cast<const OwnKernel*>(c->kernel->user); }

/// The arguments of the op, which a problem keeps after those of the ABI.
const void* args_of(const hpcdl_call* c) {
  return c->args ? static_cast<const std::byte*>(c->args) + Problem::kAbiBytes : own_of(c).contract->args.data();
}
template <class Args> const Args& args_as(const hpcdl_call* c) { return *static_cast<const Args*>(args_of(c)); }

Spec spec_of(const hpcdl_tensor& t) {
  if (!t.data) return {};
  Spec s;
  for (int i = 0; i < t.rank; ++i) s.shape.push_back(t.shape[i]);
  constexpr DType types[] = {DType::none, DType::f32, DType::bf16, DType::i32, DType::u8, DType::f16};
  s.dtype = types[t.dtype];
  return s;
}
Grad operand(const hpcdl_tensor& t, Device d = {}) {
  return t.data ? Grad(Tensor(t.data, spec_of(t), d), Write::overwrite) : Grad();
}

Pool& pool_of(int threads) {
  static std::map<int, std::unique_ptr<Pool>> pools;
  auto& p = pools[threads];
  if (!p) p = std::make_unique<Pool>(threads);
  return *p;
}

/// On a GPU the queue of the call, with our parameters.
Stream stream_of(const hpcdl_call& c, StepParams* params) {
  if (c.device_kind != HPCDL_ON_CUDA) return Stream(pool_of(c.threads), params);
  const Device device = Device::cuda(c.device_index);
  static const auto& mirror =
      *new Buffer(sizeof(StepParams), device);  // the driver may be shut down before static objects are destroyed
  Stream s = Stream::borrowed(device, c.stream, pool_of(1), reinterpret_cast<StepParams*>(mirror.data()));
  s.set_params(params);
  s.push_params();
  return s;
}

/// A translated call: operands in the order of the op, scratch last. Auxiliary outputs that the op needs lie in the
/// workspace, too, at the offsets in `aux`, before the scratch.
struct Translated {
  const OpInfo& op;
  const void* args;
  std::vector<Grad> operands;
  Spec scratch[OpInfo::kMaxScratch + OpInfo::kMaxOut];
  int n_scratch = 0, first_aux = 0, n_aux = 0;

  Translated(const hpcdl_call& c, const Contract& own, Device device)
      : op(own.op_for ? *own.op_for(args_of(&c)) : *own.op), args(args_of(&c)) {
    const auto in = [&](int i) { return i < c.n_inputs ? operand(c.inputs[i], device) : Grad(); };
    const auto out = [&](int i) { return i < c.n_outputs ? operand(c.outputs[i], device) : Grad(); };
    Spec specs[16];
    if (!own.backward) {
      for (int i = 0; i < op.n_out; ++i) operands.push_back(i < op.n_out - op.n_aux ? out(i) : Grad());
      for (int i = 0; i < op.n_in; ++i) operands.push_back(in(i)), specs[i] = in(i).spec();
      if (own.needs_aux) {
        Spec outs[OpInfo::kMaxOut];
        op.infer(specs, args, outs);
        first_aux = op.n_out - op.n_aux, n_aux = op.n_aux;
        std::copy(outs + first_aux, outs + op.n_out, scratch);
      }
      n_scratch = n_aux + (op.scratch ? op.scratch(specs, args, scratch + n_aux) : 0);
      return;
    }
    int next_in = 0, next_out = 0;
    for (const auto& ref : op.backward_operands) {
      if (ref.kind == OperandKind::scratch) continue;
      operands.push_back(ref.kind == OperandKind::grad_in ? out(next_out++) : in(next_in++));
      const bool of_input = ref.kind == OperandKind::grad_in || ref.kind == OperandKind::in;
      if (of_input && operands.back()) specs[ref.index] = operands.back().spec();
    }
    if (op.backward_scratch) n_scratch = op.backward_scratch(specs, args, scratch);
  }
};

Device device_of(const hpcdl_call& c) {
  return c.device_kind == HPCDL_ON_CUDA ? Device::cuda(c.device_index) : Device::cpu();
}

constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::int64_t own_workspace(const hpcdl_call* c) {
  const Translated t(*c, *own_of(c).contract, device_of(*c));
  std::int64_t bytes = 0;
  for (int i = 0; i < t.n_scratch; ++i) bytes += aligned(t.scratch[i].bytes());
  return bytes;
}

int own_run(const hpcdl_call* c) {
  const auto& kernel = own_of(c);
  const Device device = device_of(*c);
  if (!device.is_cuda()) simd::set_active_isa(kernel.isa);
  Translated t(*c, *kernel.contract, device);
  auto* at = static_cast<std::byte*>(c->workspace);
  for (int i = 0; i < t.n_scratch; ++i) {
    const Grad operand(Tensor(at, t.scratch[i], device), Write::overwrite);
    if (i < t.n_aux) t.operands[static_cast<std::size_t>(t.first_aux + i)] = operand;
    else t.operands.push_back(operand);
    at += aligned(t.scratch[i].bytes());
  }
  StepParams params;
  Stream s = stream_of(*c, &params);
  (kernel.contract->backward ? t.op.backward : t.op.forward)(s, t.operands.data(), t.args);
  return HPCDL_OK;
}

std::int64_t grad_norm_workspace(const hpcdl_call* c) { return 8 * tensor_blocks(c->inputs[0].shape[0]); }
int grad_norm_run(const hpcdl_call* c) {
  simd::set_active_isa(own_of(c).isa);
  const auto& a = args_as<contract::GradNormCall>(c);
  const Grad g = operand(c->inputs[0]);
  double squares = 0;
  simd::with_isa([&](auto isa) {
    squares = cpu::sum_of_squares(isa, pool_of(c->threads), static_cast<double*>(c->workspace), &g, 1);
  });
  StepParams p;
  p.grad_scale = a.grad_scale;
  GradNorm::finish(p, squares, a.args);
  *static_cast<float*>(c->outputs[0].data) = p.grad_norm;
  *static_cast<float*>(c->outputs[1].data) = p.clip_factor;
  return HPCDL_OK;
}

/// The optimizer updates in place: inputs are copied to the outputs first.
int adamw_run(const hpcdl_call* c) {
  simd::set_active_isa(own_of(c).isa);
  const auto& a = args_as<contract::AdamWCall>(c);
  const int from[] = {0, 2, 3};
  for (int i = 0; i < 3; ++i)
    if (const auto bytes = spec_of(c->outputs[i]).bytes())
      std::memcpy(c->outputs[i].data, c->inputs[from[i]].data, static_cast<std::size_t>(bytes));
  const Grad tensors[AdamW::kOperands] = {
      operand(c->outputs[0]), operand(c->inputs[1]), operand(c->outputs[1]), operand(c->outputs[2]), {}};
  const std::uint8_t decays = 1;
  StepParams p;
  p.lr = a.lr, p.step = a.step, p.grad_scale = a.grad_scale;
  const auto step = AdamW::step(a.args, p);
  simd::with_isa([&](auto isa) { cpu::adamw(isa, pool_of(c->threads), tensors, &decays, 1, step); });
  return HPCDL_OK;
}

/// Works in place: inputs are copied to the outputs first. Both halves of a step, with nothing in between.
int loss_scale_run(const hpcdl_call* c) {
  StepParams p;
  const auto& a = args_as<contract::LossScaleCall>(c);
  p.grad_scale = a.grad_scale, p.step = a.step, p.skip = a.skip;
  const Device device = device_of(*c);
  Stream s = stream_of(*c, &p);
  const Grad operands[] = {operand(c->outputs[2], device), operand(c->outputs[3], device)};
  for (int i = 0; i < 2; ++i) copy(s, operands[i], operand(c->inputs[i], device));
  LossScale::run(s, operands, &a.args);
  LossScale::End::run(s, operands, &a.args);
#if HPCDL_CUDA
  if (device.is_cuda()) s.pull_params();
#endif
  const auto step = static_cast<std::int32_t>(p.step);
  copy(s, operand(c->outputs[0], device), View(&p.grad_scale, {{1}, DType::f32}));
  copy(s, operand(c->outputs[1], device), View(&step, {{1}, DType::i32}));
  if (device.is_cuda()) s.synchronize();
  return HPCDL_OK;
}

#if HPCDL_CUDA
int grad_norm_on_gpu(const hpcdl_call* c) {
  const auto& a = args_as<contract::GradNormCall>(c);
  const Device device = device_of(*c);
  StepParams p;
  p.grad_scale = a.grad_scale;
  Stream s = stream_of(*c, &p);
  const Grad g = operand(c->inputs[0], device);
  cuda::grad_norm(s, Tensor(c->workspace, {{tensor_blocks(c->inputs[0].shape[0])}, DType::f64}, device), &g, 1, a.args);
  s.pull_params();
  const float results[] = {p.grad_norm, p.clip_factor};
  for (int i = 0; i < 2; ++i)
    copy(s, Tensor(c->outputs[i].data, {{1}, DType::f32}, device), View(results + i, {{1}, DType::f32}));
  return HPCDL_OK;
}

int adamw_on_gpu(const hpcdl_call* c) {
  const auto& a = args_as<contract::AdamWCall>(c);
  const Device device = device_of(*c);
  StepParams p;
  p.lr = a.lr, p.step = a.step, p.grad_scale = a.grad_scale;
  Stream s = stream_of(*c, &p);
  const int from[] = {0, 2, 3};
  for (int i = 0; i < 3; ++i) copy(s, operand(c->outputs[i], device), operand(c->inputs[from[i]], device));
  const Grad tensors[AdamW::kOperands] = {operand(c->outputs[0], device),
                                          operand(c->inputs[1], device),
                                          operand(c->outputs[1], device),
                                          operand(c->outputs[2], device),
                                          {}};
  const std::uint8_t decays = 1;
  cuda::adamw(s, tensors, &decays, 1, a.args);
  return HPCDL_OK;
}
#endif

/// Lives as long as the process, because subjects point into it.
struct Registry {
  std::deque<OwnKernel> kernels;
  std::deque<hpcdl_kernel> table;

  using Run = int (*)(const hpcdl_call*);
  using Workspace = std::int64_t (*)(const hpcdl_call*);
  void add(const Contract& c, simd::IsaKind isa, Run run, Workspace workspace, bool cuda = false) {
    kernels.push_back({&c, isa});
    const std::uint32_t types = HPCDL_TAKES_F32 | HPCDL_TAKES_BF16 | (c.name == "adamw" ? 0 : HPCDL_TAKES_F16),
                        flags = (cuda ? 0 : HPCDL_SAME_BITS_ANY_THREADS) | (c.in_place ? HPCDL_IN_PLACE : 0);
    // Names are literals.
    table.push_back({c.name.data(), cuda ? "cuda" : simd::isa_name(isa).data(), types, flags,
                     cuda ? HPCDL_ON_CUDA : HPCDL_ON_CPU, run, workspace, &kernels.back()});
  }
  void add_ops(simd::IsaKind isa, bool cuda = false) {
    for (const auto& c : contracts())
      if (c.op) add(c, isa, own_run, own_workspace, cuda);
  }
  Registry() {
    constexpr auto scalar = simd::IsaKind::scalar;
    const auto &norm = find_contract("grad_norm"), &adamw = find_contract("adamw"),
               &scale = find_contract("loss_scale");
    for (auto isa : simd::kIsaKinds) {
      if (isa > simd::best_isa()) continue;
      add_ops(isa);
      add(norm, isa, grad_norm_run, grad_norm_workspace);
      add(adamw, isa, adamw_run, nullptr);
    }
    add(scale, scalar, loss_scale_run, nullptr);
#if HPCDL_CUDA
    add_ops(scalar, true);
    add(norm, scalar, grad_norm_on_gpu, grad_norm_workspace, true);
    add(adamw, scalar, adamw_on_gpu, nullptr, true);
    add(scale, scalar, loss_scale_run, nullptr, true);
#endif
  }
};

std::vector<Subject> own_on(int device_kind) {
  static const Registry registry;
  std::vector<Subject> list;
  for (const auto& k : registry.table)
    if (k.device_kind == device_kind) list.push_back(linked_kernel(k));
  return list;
}

}  // namespace

std::vector<Subject> own_kernels() { return own_on(HPCDL_ON_CPU); }
std::vector<Subject> own_gpu_kernels() { return own_on(HPCDL_ON_CUDA); }

Subject linked_kernel(const hpcdl_kernel& k) {
  return {k.contract, k.name, k.dtypes, k.flags, k.device_kind, [&k]() -> const hpcdl_kernel& { return k; }};
}

}  // namespace hpcdl::lab::verify
