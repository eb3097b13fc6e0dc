#pragma once

#include "hpcdl/nn/context.h"
#include "hpcdl/nn/param.h"
#include "hpcdl/ops/sync_batch_norm/sync_batch_norm.h"

namespace hpcdl::nn {

/// relu?(norm(x) + residual?) over all dims but the last, the channels.
struct BatchNorm {
  Param weight, bias;               // (channels)
  Param running_mean, running_var;  // (channels), used by evaluation
  Param num_batches_tracked;        // as in torch; not read, because the momentum is always given
  hpcdl::BatchNorm::Args args;

  BatchNorm() = default;
  explicit BatchNorm(std::int64_t channels) {
    for (auto* p : {&weight, &bias, &running_mean, &running_var}) p->spec = {{channels}, DType::f32};
    weight.init = running_var.init = Init::ones;
    running_mean.role = running_var.role = Role::state;
    num_batches_tracked.spec = {Shape(), DType::i64};
    num_batches_tracked.role = Role::counter;
  }

  /// In training: with the statistics of this batch, or of all ranks' batches, which also update the running ones.
  Var operator()(const Var& x, const ForwardOptions& o, bool relu, const Var& residual = {}) const {
    Graph& g = x.graph();
    const auto scope = module_scope(g, weight);
    auto a = args;
    a.relu = relu;
    const Var mean = running_mean(g), var = running_var(g);
    if (!o.training) return batch_norm_inference(x, weight(g), bias(g), mean, var, a, residual);
    return o.shared_batch ? sync_batch_norm(x, weight(g), bias(g), mean, var, a, *o.shared_batch, residual)
                          : batch_norm(x, weight(g), bias(g), mean, var, a, residual);
  }
  void visit(auto&& f) {
    f("weight", weight), f("bias", bias);
    f("running_mean", running_mean), f("running_var", running_var), f("num_batches_tracked", num_batches_tracked);
  }
};

}  // namespace hpcdl::nn
