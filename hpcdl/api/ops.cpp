#include "hpcdl/ops.h"

#include <array>
#include <list>
#include <span>
#include <vector>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/dropout/dropout.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/gelu/gelu.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/matmul.h"
#include "hpcdl/ops/relu/relu.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "hpcdl/ops/softmax/softmax.h"

namespace hpcdl {

namespace {

/// Runs an op whose other outputs and scratch the caller does not see.
void run_now(const OpInfo& op, Stream& s, const Tensor& y, std::span<const View> in, const void* args) {
  std::vector<Spec> specs;
  for (const auto& x : in) {
    specs.push_back(x ? x.spec() : Spec());
    require(!x || x.is_contiguous(), op.name, "inputs must be contiguous, got {} with strides {}", to_string(x.spec()),
            to_string(x.strides()));
    require(!x || x.device() == s.device(), op.name, "the stream is on another device than an input");
  }
  std::array<Spec, OpInfo::kMaxOut> out;
  op.infer(specs.data(), args, out.data());
  require_spec(op.name, "the output", y.spec(), out[0]);
  require(y.is_contiguous() && y.device() == s.device(), op.name,
          "the output must be contiguous, and on the device of the stream");
  std::list<OwnedTensor> own;
  std::vector<Grad> operands{Grad(y, Write::overwrite)};
  const auto add_own = [&](const Spec& spec) {
    operands.emplace_back(spec ? own.emplace_back(spec, s.device()).tensor : Tensor(), Write::overwrite);
  };
  for (int i = 1; i < op.n_out; ++i) add_own(out[static_cast<std::size_t>(i)]);
  for (const auto& x : in)
    operands.emplace_back(x ? Tensor(const_cast<void*>(x.data()), x.spec(), x.device()) : Tensor(), Write::overwrite);
  if (op.scratch) {
    std::array<Spec, OpInfo::kMaxScratch> scratch;
    const int n = op.scratch(specs.data(), args, scratch.data());
    for (int i = 0; i < n; ++i) add_own(scratch[static_cast<std::size_t>(i)]);
  }
  op.forward(s, operands.data(), args);
  if (!own.empty() && s.device().is_cuda()) s.synchronize();  // before its memory goes away
}

template <class Op, class... In>
void run_now(Stream& s, const Tensor& y, const typename Op::Args& args, const In&... in) {
  const View list[] = {View(in)...};
  run_now(op_info<Op>, s, y, list, &args);
}

}  // namespace

Var matmul(const Var& a, const Var& b, bool transpose_a, bool transpose_b, float scale) {
  return record<Matmul>({transpose_a, transpose_b, scale}, a, b);
}
Var linear(const Var& x, const Var& w, const Var& bias, Activation activation, const Var& residual) {
  return linear<Var>(x, w, bias, {.activation = activation}, residual);
}
Var embedding(const Var& table, const Var& ids) { return embedding<Var>(table, ids, Embedding::Args{}); }
Var attention(const Var& q, const Var& k, const Var& v, int heads, int kv_heads, bool causal) {
  return record<Attention>({.heads = heads, .kv_heads = kv_heads, .causal = causal}, q, k, v);
}
Var softmax(const Var& x, float scale, bool causal) { return record<Softmax>({scale, causal}, x); }
Var layer_norm(const Var& x, const Var& gamma, const Var& beta, float eps) {
  return record<LayerNorm>({.eps = eps}, x, gamma, beta);
}
Var rms_norm(const Var& x, const Var& weight, float eps) { return record<RmsNorm>({.eps = eps}, x, weight); }
Var gelu(const Var& x) { return record<Gelu>({}, x); }
Var relu(const Var& x) { return record<Relu>({}, x); }
Var add(const Var& a, const Var& b) { return record<Add>({}, a, b); }
Var cast(const Var& x, DType to) { return cast<Var>(x, to); }
Var dropout(const Var& x, float p) { return dropout<Var>(x, p, 0); }
Var cross_entropy_loss(const Var& logits, const Var& targets) { return cross_entropy<Var>(logits, targets)[0]; }

void matmul(Stream& s, const Tensor& y, const View& a, const View& b, bool transpose_a, bool transpose_b, float scale) {
  run_now<Matmul>(s, y, {transpose_a, transpose_b, scale}, a, b);
}
void linear(Stream& s, const Tensor& y, const View& x, const View& w, const View& bias, Activation activation,
            const View& residual) {
  const LinearArgs args{.activation = activation, .out = y.dtype()};
  if (activation == Activation::none) run_now<Linear>(s, y, args, x, w, bias, residual);
  else run_now<ActivatedLinear>(s, y, args, x, w, bias, residual);
}
void embedding(Stream& s, const Tensor& y, const View& table, const View& ids) {
  run_now<Embedding>(s, y, {}, table, ids, View());
}
void attention(Stream& s, const Tensor& y, const View& q, const View& k, const View& v, int heads, int kv_heads,
               bool causal) {
  run_now<Attention>(s, y, {.heads = heads, .kv_heads = kv_heads, .causal = causal}, q, k, v);
}
void softmax(Stream& s, const Tensor& y, const View& x, float scale, bool causal) {
  run_now<Softmax>(s, y, {scale, causal}, x);
}
void layer_norm(Stream& s, const Tensor& y, const View& x, const View& gamma, const View& beta, float eps) {
  run_now<LayerNorm>(s, y, {.eps = eps}, x, gamma, beta);
}
void rms_norm(Stream& s, const Tensor& y, const View& x, const View& weight, float eps) {
  run_now<RmsNorm>(s, y, {.eps = eps}, x, weight);
}
void gelu(Stream& s, const Tensor& y, const View& x) { run_now<Gelu>(s, y, {}, x); }
void relu(Stream& s, const Tensor& y, const View& x) { run_now<Relu>(s, y, {}, x); }
void add(Stream& s, const Tensor& y, const View& a, const View& b) { run_now<Add>(s, y, {}, a, b); }
void cast(Stream& s, const Tensor& y, const View& x) { run_now<Cast>(s, y, {y.dtype()}, x); }

}  // namespace hpcdl
