// Our ops, called through the kernel ABI, so that the same code checks them and other kernels.

#include <deque>
#include <map>

#include "hpcdl/core/error.h"
#include "hpcdl/op_info.h"
#include "hpcdl/ops/adamw/adamw.spec.h"
#include "hpcdl/ops/grad_norm/grad_norm.spec.h"
#include "hpcdl/ops/loss_scale/loss_scale.spec.h"
#include "hpcdl/simd/isa.h"
#include "tools/verify/contract.h"
#include "tools/verify/subject.h"

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
  constexpr DType types[] = {DType::none, DType::f32, DType::bf16,    DType::i32,
                             DType::u8,   DType::f16, DType::f8_e4m3, DType::f8_e5m2};
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
/// workspace, too, before the scratch, and are the operands from `first_aux` on.
struct Translated {
  const OpInfo& op;
  const void* args;
  std::vector<Grad> operands;
  std::vector<Spec> workspace;
  std::size_t first_aux, n_aux = 0;

  Translated(const hpcdl_call& c, const Contract& own, Device device)
      : op(own.op_for ? *own.op_for(args_of(&c)) : *own.op),
        args(args_of(&c)),
        first_aux(static_cast<std::size_t>(op.n_out - op.n_aux)) {
    auto o = contract::op_operands(
        op, args, own.backward, [&](int i) { return i < c.n_inputs ? operand(c.inputs[i], device) : Grad(); },
        [&](int i, const Spec& spec) {
          const bool aux = !own.backward && static_cast<std::size_t>(i) >= first_aux;
          if (aux && own.needs_aux) workspace.push_back(spec), ++n_aux;
          return !aux && i < c.n_outputs ? operand(c.outputs[i], device) : Grad();
        });
    operands = std::move(o.list);
    workspace.insert(workspace.end(), o.scratch.begin(), o.scratch.end());
  }
};

Device device_of(const hpcdl_call& c) {
  return c.device_kind == HPCDL_ON_CUDA ? Device::cuda(c.device_index) : Device::cpu();
}

constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::int64_t own_workspace(const hpcdl_call* c) {
  const Translated t(*c, *own_of(c).contract, device_of(*c));
  std::int64_t bytes = 0;
  for (const auto& s : t.workspace) bytes += aligned(s.bytes());
  return bytes;
}

int own_run(const hpcdl_call* c) {
  const auto& kernel = own_of(c);
  const Device device = device_of(*c);
  if (!device.is_cuda()) simd::set_active_isa(kernel.isa);
  Translated t(*c, *kernel.contract, device);
  auto* at = static_cast<std::byte*>(c->workspace);
  for (std::size_t i = 0; i < t.workspace.size(); ++i) {
    const Grad operand(Tensor(at, t.workspace[i], device), Write::overwrite);
    if (i < t.n_aux) t.operands[t.first_aux + i] = operand;
    else t.operands.push_back(operand);
    at += aligned(t.workspace[i].bytes());
  }
  StepParams params;
  Stream s = stream_of(*c, &params);
  (kernel.contract->backward ? t.op.backward : t.op.forward)(s, t.operands.data(), t.args);
  return HPCDL_OK;
}

/// What programs record by no op: one update with step parameters of its own, on either device.
struct Update {
  const hpcdl_call& call;
  Device device = device_of(call);
  StepParams params;
  Stream stream;

  Update(const hpcdl_call* c, const StepParams& p) : call(*c), params(p), stream(start()) {}
  Grad in(int i) const { return operand(call.inputs[i], device); }
  Grad out(int i) const { return operand(call.outputs[i], device); }
  /// Makes an output a copy of an input, for what works in place.
  void copy_in(int to, int from) { copy(stream, out(to), in(from)); }
  /// What a kernel has left in the parameters is here, too.
  void pull() {
#if HPCDL_CUDA
    if (device.is_cuda()) stream.pull_params();
#endif
  }
  template <class T> void put(int to, const T& value, DType d) {
    copy(stream, out(to), View(&value, {{1}, d}));
    if (device.is_cuda()) stream.synchronize();
  }

 private:
  Stream start() {
    if (!device.is_cuda()) simd::set_active_isa(own_of(&call).isa);
    return stream_of(call, &params);
  }
};
std::int64_t grad_norm_workspace(const hpcdl_call* c) { return 8 * tensor_blocks(c->inputs[0].shape[0]); }
int grad_norm_run(const hpcdl_call* c) {
  const auto& a = args_as<contract::GradNormCall>(c);
  Update u(c, {.grad_scale = a.grad_scale});
  const Spec partial{{tensor_blocks(c->inputs[0].shape[0])}, DType::f64};
  const Grad operands[] = {Grad(Tensor(c->workspace, partial, u.device), Write::overwrite), u.in(0)};
  const detail::GradNormRecord record{a.args, 1};
  GradNorm::run(u.stream, operands, &record);
  u.pull();
  u.put(0, u.params.grad_norm, DType::f32), u.put(1, u.params.clip_factor, DType::f32);
  return HPCDL_OK;
}

int adamw_run(const hpcdl_call* c) {
  const auto& a = args_as<contract::AdamWCall>(c);
  Update u(c, {.step = a.step, .lr = a.lr, .grad_scale = a.grad_scale});
  u.copy_in(0, 0), u.copy_in(1, 2), u.copy_in(2, 3);
  const Grad tensors[AdamW::kOperands] = {u.out(0), u.in(1), u.out(1), u.out(2), {}};
  struct {
    detail::AdamWRecord head;
    std::uint8_t decays = 1;
  } record{{a.args, 1}};
  AdamW::run(u.stream, tensors, &record);
  return HPCDL_OK;
}

/// Both halves of a step, with nothing in between.
int loss_scale_run(const hpcdl_call* c) {
  const auto& a = args_as<contract::LossScaleCall>(c);
  Update u(c, {.step = a.step, .grad_scale = a.grad_scale, .skip = a.skip});
  u.copy_in(2, 0), u.copy_in(3, 1);
  const Grad operands[] = {u.out(2), u.out(3)};
  LossScale::run(u.stream, operands, &a.args);
  LossScale::End::run(u.stream, operands, &a.args);
  u.pull();
  u.put(0, u.params.grad_scale, DType::f32), u.put(1, static_cast<std::int32_t>(u.params.step), DType::i32);
  return HPCDL_OK;
}

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
    add(norm, scalar, grad_norm_run, grad_norm_workspace, true);
    add(adamw, scalar, adamw_run, nullptr, true);
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
