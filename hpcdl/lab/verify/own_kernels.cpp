// Our ops behind the ABI, so that they are held to the same contracts by the same code as anybody else's kernels.

#include <deque>
#include <map>

#include "hpcdl/core/error.h"
#include "hpcdl/lab/verify/contract.h"
#include "hpcdl/lab/verify/subject.h"
#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/bias_gelu/bias_gelu.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/gelu/gelu.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"
#include "hpcdl/ops/loss_scale/loss_scale.h"
#include "hpcdl/ops/matmul/matmul.h"
#include "hpcdl/ops/mlp/mlp.h"
#include "hpcdl/ops/relu/relu.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "hpcdl/ops/rope/rope.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/ops/swiglu/swiglu.h"
#include "hpcdl/program/op_info.h"

namespace hpcdl::lab::verify {
namespace {

template <class T> T read(const void* args) {
  T t;
  std::memcpy(&t, args, sizeof t);
  return t;
}

/// An op as a contract sees it: `op` picks the op for these arguments, `args` writes its Args from those of the ABI.
struct Own {
  std::string_view contract;
  const OpInfo& (*op)(const void* args);
  bool backward;
  void (*args)(const void* from, void* to);
  bool in_place;
  bool needs_aux = false;  // forward does not run without its auxiliary outputs
};

template <class Op> const OpInfo& always(const void*) { return op_info<Op>; }
void no_args(const void*, void*) {}
template <class Args> void put(void* to, const Args& a) { std::memcpy(to, &a, sizeof a); }

void softmax_args(const void* from, void* to) {
  const auto a = read<hpcdl_softmax_args>(from);
  put(to, Softmax::Args{.scale = a.scale, .causal = a.causal != 0});
}
void norm_args(const void* from, void* to) { put(to, LayerNorm::Args{read<hpcdl_norm_args>(from).eps}); }
void gelu_args(const void* from, void* to) {
  put(to, Gelu::Args{read<hpcdl_gelu_args>(from).erf ? Gelu::Form::erf : Gelu::Form::tanh});
}
void matmul_args(const void* from, void* to) {
  const auto a = read<hpcdl_matmul_args>(from);
  put(to, Matmul::Args{.transpose_a = a.transpose_a != 0, .transpose_b = a.transpose_b != 0, .scale = a.scale});
}
void matmul_add_relu_args(const void*, void* to) {
  put(to, LinearArgs{.activation = Activation::relu, .conv1d = true});
}
void linear_args(const void* from, void* to) {
  const auto a = read<hpcdl_linear_args>(from);
  put(to, LinearArgs{.activation = static_cast<Activation>(a.activation), .conv1d = a.conv1d != 0});
}
const OpInfo& linear_op(const void* args) {
  return read<hpcdl_linear_args>(args).activation ? op_info<ActivatedLinear> : op_info<Linear>;
}
void mlp_args(const void* from, void* to) {
  const auto a = read<hpcdl_linear_args>(from);
  put(to, Mlp::Args{.activation = static_cast<Activation>(a.activation), .conv1d = a.conv1d != 0});
}
void attention_args(const void* from, void* to) {
  const auto a = read<hpcdl_attention_args>(from);
  put(to, Attention::Args{.heads = a.heads, .kv_heads = a.kv_heads, .causal = a.causal != 0, .scale = a.scale});
}
void rope_args(const void* from, void* to) { put(to, Rope::Args{read<hpcdl_rope_args>(from).head_dim}); }
void embedding_args(const void*, void* to) { put(to, Embedding::Args{}); }
void int4_args(const void* from, void* to) {
  const auto a = read<hpcdl_int4_args>(from);
  put(to, Int4Linear::Args{.exact = a.exact != 0,
                           .activation = a.activation == HPCDL_ACT_SILU ? Int4Activation::silu : Int4Activation::none});
}

const Own kOwn[] = {
    {"relu", always<Relu>, false, no_args, true},
    {"relu_backward", always<Relu>, true, no_args, false},
    {"add", always<Add>, false, no_args, true},
    {"gelu", always<Gelu>, false, gelu_args, true},
    {"gelu_backward", always<Gelu>, true, gelu_args, false},
    {"bias_gelu", always<BiasGelu>, false, gelu_args, true},
    {"bias_gelu_backward", always<BiasGelu>, true, gelu_args, false},
    {"swiglu", always<Swiglu>, false, no_args, true},
    {"swiglu_backward", always<Swiglu>, true, no_args, false},
    {"softmax", always<Softmax>, false, softmax_args, true},
    {"softmax_backward", always<Softmax>, true, softmax_args, false},
    {"cross_entropy", always<CrossEntropy>, false, no_args, false},
    {"cross_entropy_backward", always<CrossEntropy>, true, no_args, true},
    {"layer_norm", always<LayerNorm>, false, norm_args, false},
    {"layer_norm_backward", always<LayerNorm>, true, norm_args, false},
    {"rms_norm", always<RmsNorm>, false, norm_args, false},
    {"rms_norm_backward", always<RmsNorm>, true, norm_args, false},
    {"matmul", always<Matmul>, false, matmul_args, false},
    {"matmul_add_relu", always<ActivatedLinear>, false, matmul_add_relu_args, false},
    {"linear", linear_op, false, linear_args, false},
    {"linear_backward", always<Linear>, true, linear_args, false},
    {"int4_linear", always<Int4Linear>, false, int4_args, false},
    {"attention", always<Attention>, false, attention_args, false},
    {"attention_backward", always<Attention>, true, attention_args, false},
    {"rope", always<Rope>, false, rope_args, true},
    {"rope_backward", always<Rope>, true, rope_args, false},
    {"embedding", always<Embedding>, false, embedding_args, false},
    {"embedding_backward", always<Embedding>, true, embedding_args, false},
    {"mlp", always<Mlp>, false, mlp_args, false, true},
    {"mlp_backward", always<Mlp>, true, mlp_args, false},
    {"lm_head_loss", always<LmHeadLoss>, false, no_args, false},
    {"lm_head_loss_backward", always<LmHeadLoss>, true, no_args, false},
};

struct OwnKernel {
  const Own* own = nullptr;
  simd::IsaKind isa{};
};

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

/// On a GPU the queue of the call, with parameters of ours behind it.
Stream stream_of(const hpcdl_call& c, StepParams* params) {
  if (c.device_kind != HPCDL_ON_CUDA) return Stream(pool_of(c.threads), params);
  const Device device = Device::cuda(c.device_index);
  static const auto& mirror =
      *new Buffer(sizeof(StepParams), device);  // the driver may be gone before static objects are
  Stream s = Stream::borrowed(device, c.stream, pool_of(1), reinterpret_cast<StepParams*>(mirror.data()));
  s.set_params(params);
  s.push_params();
  return s;
}

/// A call translated: operands in the op's order, scratch last. Auxiliary outputs that the op needs lie in the
/// workspace, too, where `aux` says, in front of the scratch.
struct Translated {
  const OpInfo& op;
  alignas(16) std::byte args[128] = {};
  std::vector<Grad> operands;
  Spec scratch[OpInfo::kMaxScratch + OpInfo::kMaxOut];
  int n_scratch = 0, first_aux = 0, n_aux = 0;

  Translated(const hpcdl_call& c, const Own& own, Device device) : op(own.op(c.args)) {
    own.args(c.args, args);
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
  const Translated t(*c, *static_cast<const OwnKernel*>(c->kernel->user)->own, device_of(*c));
  std::int64_t bytes = 0;
  for (int i = 0; i < t.n_scratch; ++i) bytes += aligned(t.scratch[i].bytes());
  return bytes;
}

int own_run(const hpcdl_call* c) {
  const auto& kernel = *static_cast<const OwnKernel*>(c->kernel->user);
  const Device device = device_of(*c);
  if (!device.is_cuda()) simd::set_active_isa(kernel.isa);
  Translated t(*c, *kernel.own, device);
  auto* at = static_cast<std::byte*>(c->workspace);
  for (int i = 0; i < t.n_scratch; ++i) {
    const Grad operand(Tensor(at, t.scratch[i], device), Write::overwrite);
    if (i < t.n_aux) t.operands[static_cast<std::size_t>(t.first_aux + i)] = operand;
    else t.operands.push_back(operand);
    at += aligned(t.scratch[i].bytes());
  }
  StepParams params;
  Stream s = stream_of(*c, &params);
  (kernel.own->backward ? t.op.backward : t.op.forward)(s, t.operands.data(), t.args);
  return HPCDL_OK;
}

std::int64_t grad_norm_workspace(const hpcdl_call* c) { return 8 * tensor_blocks(c->inputs[0].shape[0]); }
int grad_norm_run(const hpcdl_call* c) {
  simd::set_active_isa(static_cast<const OwnKernel*>(c->kernel->user)->isa);
  const auto a = read<hpcdl_grad_norm_args>(c->args);
  const Grad g = operand(c->inputs[0]);
  double squares = 0;
  simd::with_isa([&](auto isa) {
    squares = cpu::sum_of_squares(isa, pool_of(c->threads), static_cast<double*>(c->workspace), &g, 1);
  });
  StepParams p;
  p.grad_scale = a.grad_scale;
  GradNorm::finish(p, squares, {.max_norm = a.max_norm});
  *static_cast<float*>(c->outputs[0].data) = p.grad_norm;
  *static_cast<float*>(c->outputs[1].data) = p.clip_factor;
  return HPCDL_OK;
}

/// The optimizer updates in place: inputs are copied to the outputs first.
int adamw_run(const hpcdl_call* c) {
  simd::set_active_isa(static_cast<const OwnKernel*>(c->kernel->user)->isa);
  const auto a = read<hpcdl_adamw_args>(c->args);
  const int from[] = {0, 2, 3};
  for (int i = 0; i < 3; ++i)
    if (const auto bytes = spec_of(c->outputs[i]).bytes())
      std::memcpy(c->outputs[i].data, c->inputs[from[i]].data, static_cast<std::size_t>(bytes));
  const Grad tensors[AdamW::kOperands] = {
      operand(c->outputs[0]), operand(c->inputs[1]), operand(c->outputs[1]), operand(c->outputs[2]), {}};
  const std::uint8_t decays = 1;
  StepParams p;
  p.lr = a.lr, p.step = a.step, p.grad_scale = a.grad_scale;
  const auto step = AdamW::step({.beta1 = a.beta1, .beta2 = a.beta2, .eps = a.eps, .weight_decay = a.weight_decay}, p);
  simd::with_isa([&](auto isa) { cpu::adamw(isa, pool_of(c->threads), tensors, &decays, 1, step); });
  return HPCDL_OK;
}

LossScale::Args loss_scale_args(const hpcdl_call* c, StepParams& p) {
  const auto a = read<hpcdl_loss_scale_args>(c->args);
  p.grad_scale = a.grad_scale, p.step = a.step, p.skip = a.skip != 0;
  return {.growth = a.growth, .backoff = a.backoff, .least = a.least, .most = a.most, .interval = a.interval};
}
/// Works in place: inputs are copied to the outputs first. Both halves of a step, with nothing in between.
int loss_scale_run(const hpcdl_call* c) {
  StepParams p;
  const auto a = loss_scale_args(c, p);
  const Device device = device_of(*c);
  Stream s = stream_of(*c, &p);
  const Grad operands[] = {operand(c->outputs[2], device), operand(c->outputs[3], device)};
  for (int i = 0; i < 2; ++i) copy(s, operands[i], operand(c->inputs[i], device));
  LossScale::run(s, operands, &a);
  LossScale::End::run(s, operands, &a);
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
  const auto a = read<hpcdl_grad_norm_args>(c->args);
  const Device device = device_of(*c);
  StepParams p;
  p.grad_scale = a.grad_scale;
  Stream s = stream_of(*c, &p);
  const Grad g = operand(c->inputs[0], device);
  cuda::grad_norm(s, Tensor(c->workspace, {{tensor_blocks(c->inputs[0].shape[0])}, DType::f64}, device), &g, 1,
                  {.max_norm = a.max_norm});
  s.pull_params();
  const float results[] = {p.grad_norm, p.clip_factor};
  for (int i = 0; i < 2; ++i)
    copy(s, Tensor(c->outputs[i].data, {{1}, DType::f32}, device), View(results + i, {{1}, DType::f32}));
  return HPCDL_OK;
}

int adamw_on_gpu(const hpcdl_call* c) {
  const auto a = read<hpcdl_adamw_args>(c->args);
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
  cuda::adamw(s, tensors, &decays, 1,
              {.beta1 = a.beta1, .beta2 = a.beta2, .eps = a.eps, .weight_decay = a.weight_decay});
  return HPCDL_OK;
}
#endif

/// Lives as long as the program: subjects point into it.
struct Registry {
  std::deque<OwnKernel> kernels;
  std::deque<std::string> names;
  std::deque<hpcdl_kernel> table;

  void add(std::string_view contract, const Own* own, simd::IsaKind isa, std::uint32_t flags,
           int (*run)(const hpcdl_call*), std::int64_t (*workspace)(const hpcdl_call*)) {
    kernels.push_back({own, isa});
    names.emplace_back(contract);
    const char* name = names.back().c_str();
    names.emplace_back(simd::isa_name(isa));
    const std::uint32_t types = HPCDL_TAKES_F32 | HPCDL_TAKES_BF16 | (contract == "adamw" ? 0 : HPCDL_TAKES_F16);
    table.push_back({name, names.back().c_str(), types, flags, HPCDL_ON_CPU, run, workspace, &kernels.back()});
  }
#if HPCDL_CUDA
  void add_gpu(std::string_view contract, const Own* own, std::uint32_t flags, int (*run)(const hpcdl_call*),
               std::int64_t (*workspace)(const hpcdl_call*)) {
    add(contract, own, simd::IsaKind::scalar, flags, run, workspace);
    table.back().name = "cuda", table.back().device_kind = HPCDL_ON_CUDA;
  }
#endif
  Registry() {
    for (auto isa : simd::kIsaKinds) {
      if (isa > simd::best_isa()) continue;
      for (const auto& o : kOwn)
        add(o.contract, &o, isa, HPCDL_SAME_BITS_ANY_THREADS | (o.in_place ? HPCDL_IN_PLACE : 0), own_run,
            own_workspace);
      add("grad_norm", nullptr, isa, HPCDL_SAME_BITS_ANY_THREADS, grad_norm_run, grad_norm_workspace);
      add("adamw", nullptr, isa, HPCDL_SAME_BITS_ANY_THREADS, adamw_run, nullptr);
    }
    add("loss_scale", nullptr, simd::IsaKind::scalar, HPCDL_SAME_BITS_ANY_THREADS, loss_scale_run, nullptr);
#if HPCDL_CUDA
    for (const auto& o : kOwn) add_gpu(o.contract, &o, o.in_place ? HPCDL_IN_PLACE : 0, own_run, own_workspace);
    add_gpu("grad_norm", nullptr, 0, grad_norm_on_gpu, grad_norm_workspace);
    add_gpu("adamw", nullptr, 0, adamw_on_gpu, nullptr);
    add_gpu("loss_scale", nullptr, 0, loss_scale_run, nullptr);
#endif
  }
};

}  // namespace

namespace {

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
