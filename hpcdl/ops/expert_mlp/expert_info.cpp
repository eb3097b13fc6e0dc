// The op as data. How many operands it has depends on the number of experts, so there is one OpInfo for each number;
// they share their functions, and the name in programs.

#include <array>
#include <memory>
#include <mutex>

#include "hpcdl/ops/expert_mlp/expert_operands.h"
#include "hpcdl/program/check.h"

namespace hpcdl {
namespace {

using detail::kMixtureOutputs, detail::mixture_matrices;

std::vector<ExpertMatrices<Spec>> mixture_specs(const Spec* in, const void* args) {
  return mixture_matrices<Spec>(static_cast<const ExpertMlp::Args*>(args)->experts,
                                [&](std::size_t i) { return in[i]; });
}

/// y, and gate and up of each choice.
void mixture_outputs(const Spec* in, const void* args, Spec* out) {
  const auto mlps = mixture_specs(in, args);
  ExpertMlp::require_operands(in[0], in[1], in[2], in[3], mlps);
  const auto gate = static_cast<const ExpertMlp::Args*>(args)->gate;
  require(gate == Swiglu::Gate::silu || gate == Swiglu::Gate::gelu_tanh, ExpertMlp::name, "the gate is unknown");
  out[0] = in[1];
  out[1] = out[2] = {{in[3].size(), matrix_spec(ExpertMlp::name, in[1], mlps[0].gate)[-1]}, in[1].dtype};
}

int mixture_scratch(const Spec* in, const void* args, Spec* out) {
  const auto s = ExpertMlp::scratch(in[1], in[3], mixture_specs(in, args));
  out[0] = s.rows, out[1] = s.hidden, out[2] = s.int4, out[3] = s.places;
  return 4;
}

int mixture_gradient_scratch(const Spec* in, const void* args, Spec* out) {
  const auto mlps = mixture_specs(in, args);
  const auto s = ExpertMlp::backward_scratch(in[1], in[3], mlps[0], std::ssize(mlps));
  out[0] = s.rows, out[1] = s.hidden, out[2] = s.places;
  return 3;
}

Cost mixture_cost(const Spec* in, const void* args) {
  const auto& a = *static_cast<const ExpertMlp::Args*>(args);
  Cost c = ExpertMlp::cost(in[1], a.choices > 0 ? a.choices : in[3].size(), mixture_specs(in, args));
  if (a.addend) c.reads -= static_cast<double>(in[0].bytes());
  return c;
}

Cost mixture_gradient_cost(const Spec* in, const void* args) {
  const Cost forward = mixture_cost(in, args);
  return {.operations = 2 * forward.operations, .unit = forward.unit};
}

using OperandRefs = std::vector<OperandRef>;

/// What ExpertMlp::backward() says of its operands.
OperandRefs gradient_operands(int experts) {
  using enum OperandKind;
  OperandRefs refs{{grad_in, 0}, {grad_in, 1}, {grad_in, 2}};
  const auto matrices_as = [&](OperandKind kind) {
    for (int i = 0; i < 3 * experts; ++i)
      refs.push_back({kind, ExpertMlp::kFixed + i / 3 * ExpertMlp::kOfExpert + i % 3 * 4});
  };
  matrices_as(grad_in);
  for (const int i : {1, 2, 3}) refs.push_back({in, i});
  matrices_as(in);
  refs.insert(refs.end(), {{out, 1}, {out, 2}, {grad_out, 0}, {scratch, 0}, {scratch, 1}, {scratch, 2}});
  return refs;
}

struct OfExperts {
  OperandRefs refs;
  OpInfo info;
};

/// The specs of a record's inputs: operands from `first` on.
std::vector<Spec> inputs_of(const RawRecord& r, std::size_t first, int experts) {
  require(experts >= 1 && experts <= ExpertMlp::kMostExperts, ExpertMlp::name, "expected 1 to {} experts, got {}",
          ExpertMlp::kMostExperts, experts);
  std::vector<Spec> in;
  const auto count = static_cast<std::size_t>(ExpertMlp::kFixed + experts * ExpertMlp::kOfExpert);
  require(r.count() >= first + count, ExpertMlp::name, "{} operands are too few", r.count());
  for (std::size_t i = 0; i < count; ++i) in.push_back(r.spec(first + i));
  return in;
}

void check_mixture(const RawRecord& r) {
  const auto& a = r.args<ExpertMlp::Args>();
  const auto in = inputs_of(r, kMixtureOutputs, a.experts);
  Spec outs[kMixtureOutputs], more[OpInfo::kMaxScratch];
  mixture_outputs(in.data(), &a, outs);
  const auto scratches = static_cast<std::size_t>(mixture_scratch(in.data(), &a, more));
  r.require_count(static_cast<std::int64_t>(kMixtureOutputs + in.size() + scratches));
  require_spec(ExpertMlp::name, "y", r.spec(0), outs[0]);
  for (const std::size_t i : {1, 2})
    if (r.spec(i)) require_spec(ExpertMlp::name, "a kept product", r.contiguous(i), outs[i]);
  require(static_cast<bool>(r.spec(1)) == static_cast<bool>(r.spec(2)), ExpertMlp::name,
          "both products are kept, or none");
  for (const std::size_t i : {2, 3}) r.contiguous(kMixtureOutputs + i);
  for (std::size_t i = 0; i < scratches; ++i)
    require_spec(ExpertMlp::name, "scratch", r.contiguous(kMixtureOutputs + in.size() + i), more[i]);
}

void check_mixture_gradient(const RawRecord& r) {
  const auto& a = r.args<ExpertMlp::Args>();
  require(a.experts >= 1 && a.experts <= ExpertMlp::kMostExperts, ExpertMlp::name, "expected 1 to {} experts, got {}",
          ExpertMlp::kMostExperts, a.experts);
  const auto refs = gradient_operands(a.experts);
  r.require_count(std::ssize(refs));
  std::vector<Spec> in(static_cast<std::size_t>(ExpertMlp::kFixed + a.experts * ExpertMlp::kOfExpert));
  for (std::size_t i = 0; i < refs.size(); ++i)
    if (refs[i].kind == OperandKind::in) in[static_cast<std::size_t>(refs[i].index)] = r.contiguous(i);
  Spec outs[kMixtureOutputs], more[OpInfo::kMaxScratch];
  mixture_outputs(in.data(), &a, outs);
  mixture_gradient_scratch(in.data(), &a, more);
  for (std::size_t i = 0; i < refs.size(); ++i) {
    const auto at = static_cast<std::size_t>(refs[i].index);
    switch (refs[i].kind) {
      case OperandKind::in: break;
      case OperandKind::out: require_spec(ExpertMlp::name, "a kept product", r.contiguous(i), outs[at]); break;
      case OperandKind::grad_out: require_spec(ExpertMlp::name, "the gradient of y", r.spec(i), outs[0]); break;
      case OperandKind::scratch: require_spec(ExpertMlp::name, "scratch", r.contiguous(i), more[at]); break;
      case OperandKind::grad_in:
        if (!r.spec(i)) break;
        require_shape(ExpertMlp::name, "a gradient", require_float(ExpertMlp::name, r.contiguous(i), "a gradient"),
                      at == 0 ? in[1].shape : in[at].shape);
    }
  }
}

OfExperts make_info(int experts) {
  OfExperts made{gradient_operands(experts), {}};
  OpInfo& i = made.info;
  i.name = ExpertMlp::name;
  i.n_in = ExpertMlp::kFixed + experts * ExpertMlp::kOfExpert, i.n_out = static_cast<int>(kMixtureOutputs), i.n_aux = 2;
  i.passes = 0;
  i.cls = OpClass::product, i.casts = 0b11;
  i.args_bytes = sizeof(ExpertMlp::Args);
  i.valid = [](const void* a) { return valid_args(*static_cast<const ExpertMlp::Args*>(a)); };
  i.infer = mixture_outputs, i.cost = mixture_cost, i.scratch = mixture_scratch, i.forward = ExpertMlp::forward;
  i.backward_operands = made.refs;
  i.backward_scratch = mixture_gradient_scratch, i.backward_cost = mixture_gradient_cost,
  i.backward = ExpertMlp::backward;
  return made;
}

void know_once() {
  static const bool known = [] {
    OpFunction f{.run = ExpertMlp::forward, .args_bytes = sizeof(ExpertMlp::Args), .version = 3};
    f.valid = [](const void* a) { return valid_args(*static_cast<const ExpertMlp::Args*>(a)); };
    f.check = check_mixture;
    know(ExpertMlp::name, false, f);
    f.run = ExpertMlp::backward, f.check = check_mixture_gradient;
    know(ExpertMlp::name, true, f);
    return true;
  }();
  static_cast<void>(known);
}

}  // namespace

const OpInfo& ExpertMlp::info(int experts) {
  require(experts >= 1 && experts <= kMostExperts, name, "expected 1 to {} experts, got {}", kMostExperts, experts);
  know_once();
  static std::mutex mutex;
  static std::array<std::unique_ptr<const OfExperts>, kMostExperts + 1> known;
  const std::lock_guard lock(mutex);
  auto& of = known[static_cast<std::size_t>(experts)];
  if (!of) of = std::make_unique<const OfExperts>(make_info(experts));
  return of->info;
}

}  // namespace hpcdl
